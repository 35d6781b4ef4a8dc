"""Help from brokers that drop copies themselves: Amazon SQS FIFO queues, and RabbitMQ's deduplication plug-in.

``publish_properties`` names a message for the broker as its claim is named: by task id, fire time, nesting and retries.
The id alone would not do: a job may choose a constant one, and a retry is published under the old one; the broker would
swallow what follows. Its memory is short (SQS: 5 minutes; the plug-in: while the message is queued, or its cache), so
that it is a first line and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.signals import before_task_publish

from celery_wheelbeat.jobs.headers import FIRE_MS, WAITING
from celery_wheelbeat.worker.claims import claim_key

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

RABBITMQ_HEADER = "x-deduplication-header"
"""Read by rabbitmq-message-deduplication from the headers of a message."""
SQS_PROPERTY = "MessageDeduplicationId"
"""Passed on by kombu from the properties of a message to queues whose name ends in ``.fifo``."""


def publish_properties(run: Mapping[str, Any], transport: str) -> dict[str, Any]:
    """Return the options of ``apply_async`` that name a run for a broker that can drop copies; ``{}`` else.

    ``run`` is the headers of its message, ``transport`` kombu's driver type (``sqs``, ``amqp``). Merge ``headers`` into
    the headers of the message. A name is 32 hex digits, which any broker takes, whatever the task id holds.
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
    """Give every run that this process publishes its ``publish_properties``: ``wheelbeat_broker_dedup`` of a beat.

    A receiver of ``before_task_publish`` sees every message, so these runs are sent by Celery's own code.
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
    """Let retries and waiting runs, which inherit the headers of their first message, be other messages to RabbitMQ."""
    before_task_publish.connect(_renumber, weak=False, dispatch_uid="celery_wheelbeat.renumber_attempts")


def _renumber(headers: MutableMapping[str, Any] | None = None, **_: object) -> None:
    if headers and FIRE_MS in headers and RABBITMQ_HEADER in headers:
        if headers.get(WAITING):
            # each time a run waits is a message of its own, and two of them may be on their way
            del headers[RABBITMQ_HEADER]
        else:
            headers[RABBITMQ_HEADER] = _name_of(headers)
