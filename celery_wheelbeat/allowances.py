"""Allowances: which tasks and queues a monitor may name, as ``wheelbeat_allowed_tasks`` and ``…_queues`` say.

They bind what is stored in the database; entries of ``beat_schedule`` are code. An exchange or a routing key could lead
to any queue, so none may be named where the queues are limited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.names import matches
from celery_wheelbeat.send_options import sent_besides

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_wheelbeat.rows import Limits, MonitorRow
    from celery_wheelbeat.send_options import SendOptions


def allowance_problems(row: MonitorRow, sending: SendOptions, limits: Limits) -> Iterator[InvalidMonitor]:
    """Yield what ``row``, and what workers will send because of it, names beyond the allowances."""
    if limits.allowed_tasks is None and limits.allowed_queues is None:
        return
    for field, reason in (
        ("task", _outside_tasks(row.task, limits)),
        ("queue", _outside_queues(row.queue, limits)),
        ("exchange", _past_the_queues(row.exchange, limits)),
        ("routing_key", _past_the_queues(row.routing_key, limits)),
    ):
        if reason:
            yield InvalidMonitor(field, reason)
    for option, signature in sent_besides(sending):
        reasons = (
            _outside_tasks(signature.task, limits),
            _outside_queues(signature.queue, limits),
            _past_the_queues(signature.exchange or signature.routing_key, limits),
        )
        yield from (InvalidMonitor("options", f"{option!r}: {reason}") for reason in reasons if reason)


def _outside_tasks(task: str, limits: Limits) -> str | None:
    if not task or limits.allowed_tasks is None or matches(task, limits.allowed_tasks):
        return None
    return f"{task!r} matches no pattern of wheelbeat_allowed_tasks: {_listed(limits.allowed_tasks)}"


def _outside_queues(queue: str | None, limits: Limits) -> str | None:
    if not queue or limits.allowed_queues is None or matches(queue, limits.allowed_queues):
        return None
    return f"{queue!r} matches no pattern of wheelbeat_allowed_queues: {_listed(limits.allowed_queues)}"


def _past_the_queues(address: str | None, limits: Limits) -> str | None:
    if not address or limits.allowed_queues is None:
        return None
    return f"{address!r} could lead to any queue; with wheelbeat_allowed_queues only a queue can be named"


def _listed(patterns: tuple[str, ...]) -> str:
    return ", ".join(map(repr, patterns)) or "it is empty"
