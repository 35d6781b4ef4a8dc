"""Deduplication by the broker: Amazon SQS FIFO queues, and RabbitMQ's deduplication plug-in.

``publish_properties`` identifies a message to the broker as its claim key does: by task id, fire time, nesting and
retries. The id alone is not enough: a job may choose a constant id, and a retry keeps its id; the broker would drop the
later messages. Brokers remember messages for a short time (SQS: 5 minutes; the plug-in: while the message is queued, or
in its cache), so this only supplements claims.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.signals import before_task_publish

from celery_wheelbeat.jobs.headers import FIRE_MS, WAITING
from celery_wheelbeat.worker.claims import claim_key

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

RABBITMQ_HEADER = "x-deduplication-header"
"""Message header that rabbitmq-message-deduplication reads."""
SQS_PROPERTY = "MessageDeduplicationId"
"""Message property that kombu passes to queues whose name ends in ``.fifo``."""


def publish_properties(run: Mapping[str, Any], transport: str) -> dict[str, Any]:
    """Return the options of ``apply_async`` that identify a run to a deduplicating broker; ``{}`` for other brokers.

    ``run``: headers of its message; ``transport``: kombu's driver type (``sqs``, ``amqp``). Merge ``headers`` into the
    headers of the message. The identifier is 32 hex digits, valid for any broker and any task id.
    """
    match transport.lower():
        case "sqs":
            return {SQS_PROPERTY: _name_of(run)}
        case "amqp":
            return {"headers": {RABBITMQ_HEADER: _name_of(run)}}
    return {}


def _name_of(run: Mapping[str, Any]) -> str:
    nesting, retries = (run.get(name) or 0 for name in ("replaced_task_nesting", "retries"))
    return claim_key(run["id"], run[FIRE_MS], nesting, retries)


def name_runs(transport: str) -> None:
    """Add ``publish_properties`` to every run that this process publishes (``wheelbeat_broker_dedup`` of a beat).

    Connects a receiver of ``before_task_publish``, so these runs take the celery lane.
    """

    def name_run(
        headers: MutableMapping[str, Any] | None = None, properties: MutableMapping[str, Any] | None = None, **_: object
    ) -> None:
        if not headers or properties is None or FIRE_MS not in headers or headers.get("retries"):
            return
        named = publish_properties(headers, transport)
        headers.update(named.pop("headers", {}))
        properties.update(named)

    before_task_publish.connect(name_run, weak=False, dispatch_uid="celery_wheelbeat.name_runs")


def renumber_attempts() -> None:
    """Give retries and waiting runs, which inherit the headers of their first message, identifiers of their own."""
    before_task_publish.connect(_renumber, weak=False, dispatch_uid="celery_wheelbeat.renumber_attempts")


def _renumber(headers: MutableMapping[str, Any] | None = None, **_: object) -> None:
    if headers and FIRE_MS in headers and RABBITMQ_HEADER in headers:
        if headers.get(WAITING):
            # each wait of a run publishes another message, and two of them may be in flight
            del headers[RABBITMQ_HEADER]
        else:
            headers[RABBITMQ_HEADER] = _name_of(headers)
