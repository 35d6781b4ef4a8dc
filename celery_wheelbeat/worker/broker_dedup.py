"""Help from brokers that drop copies themselves: Amazon SQS FIFO queues, and RabbitMQ's deduplication plug-in.

``publish_properties`` names a run for the broker. Its memory is short (SQS: 5 minutes; the plug-in: while the message
is queued, or its cache), so that it is a first line and no more. A retry is published under the task's old id; its
broker id must differ, or the broker swallows the retry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.signals import before_task_publish

from celery_wheelbeat.worker.headers import FIRE_MS, WAITING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

RABBITMQ_HEADER = "x-deduplication-header"
"""Read by rabbitmq-message-deduplication from the headers of a message."""
SQS_PROPERTY = "MessageDeduplicationId"
"""Passed on by kombu from the properties of a message to queues whose name ends in ``.fifo``."""


def publish_properties(run_id: str, transport: str) -> dict[str, Any]:
    """Return the options of ``apply_async`` that name run ``run_id`` for a broker that can drop copies; ``{}`` else.

    ``transport`` is kombu's driver type (``sqs``, ``amqp``). Merge ``headers`` into the headers of the message.
    """
    match transport.lower():
        case "sqs":
            return {SQS_PROPERTY: run_id}
        case "amqp":
            return {"headers": {RABBITMQ_HEADER: run_id}}
    return {}


def name_runs(transport: str) -> None:
    """Give every run that this process publishes its ``publish_properties``: ``wheelbeat_broker_dedup`` of a beat.

    A receiver of ``before_task_publish`` sees every message, so these runs are sent by Celery's own code.
    """

    def name_run(
        headers: MutableMapping[str, Any] | None = None, properties: MutableMapping[str, Any] | None = None, **_: object
    ) -> None:
        if not headers or properties is None or FIRE_MS not in headers or headers.get("retries"):
            return
        named = publish_properties(headers["id"], transport)
        headers.update(named.pop("headers", {}))
        properties.update(named)

    before_task_publish.connect(name_run, weak=False, dispatch_uid="celery_wheelbeat.name_runs")


def renumber_attempts() -> None:
    """Let retries and waiting runs, which inherit the headers of their first message, be other messages to RabbitMQ."""
    before_task_publish.connect(_renumber, weak=False, dispatch_uid="celery_wheelbeat.renumber_attempts")


def _renumber(headers: MutableMapping[str, Any] | None = None, **_: object) -> None:
    if headers and FIRE_MS in headers and RABBITMQ_HEADER in headers:
        retries = headers.get("retries") or 0
        if headers.get(WAITING):
            # each time a run waits is a message of its own, and two of them may be on their way
            del headers[RABBITMQ_HEADER]
        elif retries:
            headers[RABBITMQ_HEADER] = f"{headers['id']}:{retries}"
