"""Which calls of ``send_task`` become one-off runs, and with which options. Pure.

A call that cannot be stored has a reason, one of ``REASONS``. Options that only concern the publishing of the message
by the caller are left out: the beat publishes it.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.jobs import names
from celery_wheelbeat.jobs.headers import OVERLAP

if TYPE_CHECKING:
    from collections.abc import Mapping

REASONS = {
    "chord_unlock": "the task with which Celery polls a chord",
    "connection": "the call names a connection, or a producer that is not of the app's pool",
    "options": "an option, an argument or a size that the store does not carry; the debug log names it",
    "overlap": "a retry of a run that must not overlap with others",
    "result_backend": "results of rpc:// go back to the process that has sent the task",
    "router": "the call names a router",
    "run_of_a_monitor": "a retry of a monitor's run, whose id can be computed",
    "serializer": "arguments are stored as JSON, and the task has another serializer",
    "stamps": "the call has stamps",
}
"""Reason → meaning."""
SENDERS_OWN = frozenset(
    ("add_to_parent", "connection", "countdown", "eta", "origin", "producer", "publisher", "redelivered", "reply_to",
     "result_cls", "retry", "retry_policy", "route_name", "router", "stamped_headers", "task_type")
)  # fmt: skip
"""Options that are not stored. ``reply_to`` serves the results of rpc:// alone."""
_ROUTERS = ("router", "route_name")
_BEAT_HEADERS = ("celery_beat_task", "periodic_task_name")
_EPOCH = datetime.fromtimestamp(0, UTC)


class Call(NamedTuple):
    """A call of ``send_task``."""

    name: str
    args: Any
    kwargs: Any
    options: dict[str, Any]
    """Everything else, by name."""


def due_ms(options: Mapping[str, Any], now_ms: int) -> int | None:
    """Return when the task is due, as Celery reads ``countdown`` and ``eta``; None if it has neither or a bad one."""
    countdown, eta = options.get("countdown"), options.get("eta")
    try:
        if countdown:
            seconds: float = countdown
            return now_ms + math.ceil(seconds * 1000)
        if isinstance(eta, str):
            eta = datetime.fromisoformat(eta)
        if not isinstance(eta, datetime):
            return None
        aware = eta if eta.tzinfo is not None else eta.replace(tzinfo=UTC)
        return -((_EPOCH - aware) // timedelta(milliseconds=1))
    except (TypeError, ValueError, OverflowError):
        return None


def why_not(call: Call) -> str | None:
    """Return the reason why a call cannot be stored, as far as the call alone shows; None if it can."""
    options, task_id = call.options, call.options.get("task_id")
    headers = options.get("headers") or {}
    reasons = {
        "chord_unlock": call.name == "celery.chord_unlock",
        "connection": bool(options.get("connection")),
        "router": any(options.get(name) for name in _ROUTERS),
        "stamps": bool(options.get("stamped_headers")),
        # Celery raises for such arguments
        "options": not (_fits(call.args, (list, tuple)) and _fits(call.kwargs, dict) and _fits(headers, dict)),
        "overlap": isinstance(headers, dict) and headers.get(OVERLAP, "allow") != "allow",
        "run_of_a_monitor": bool(task_id) and names.id_problem(str(task_id)) is not None,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _fits(value: Any, kind: type | tuple[type, ...]) -> bool:
    return not value or isinstance(value, kind)


def stored_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stored of the options."""
    kept = {
        name: value
        for name, value in options.items()
        if name not in SENDERS_OWN
        and not name.startswith(names.OWN_PREFIX)
        and value is not None
        and not (isinstance(value, (list, tuple, dict, str)) and not value)
    }
    headers = {name: value for name, value in (kept.pop("headers", None) or {}).items() if _is_users(name)}
    if headers:
        kept["headers"] = headers
    queue = kept.get("queue")
    if queue is not None and not isinstance(queue, str):
        kept["queue"] = getattr(queue, "name", queue)
    return kept


def _is_users(header: str) -> bool:
    """Return whether a header is not one that the beat writes into every message; a retry has those of its run."""
    return not header.startswith(names.OWN_PREFIX) and header not in _BEAT_HEADERS


def key_of(task_id: str) -> str:
    """Return the key under which a task is found whose id the caller named."""
    return f"task:{task_id}"
