"""Observers: tracing tools that only add headers to messages, which the fast lane fills in as holes.

Supported are the Celery integrations of OpenTelemetry and Sentry. Each starts one trace per run; the fast lane uses the
run id as its trace id, so a trace is found by its run and vice versa. Their publish spans are not created. The
comparison of two messages detects any other header that varies.

With ``monitor_beat_tasks``, Sentry also checks in for runs. Only its own code can do that, on the celery lane;
``check_ins`` returns the jobs concerned.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.dispatch.messages.run_ids import rows_of
from celery_wheelbeat.dispatch.messages.template import Hole, MarkedValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.messages.hooks import Hook
    from celery_wheelbeat.dispatch.messages.run_ids import Octets
    from celery_wheelbeat.schedules.kinds import Int64s

OBSERVERS = {"sentry_sdk": "Sentry", "opentelemetry": "OpenTelemetry"}
"""Top-level package → name of the tool."""
_TRACE = re.compile(r"(?:00-)?([0-9a-f]{32})-([0-9a-f]{16})(?:-[0-9a-f]{1,2})?")
_CHANCE = re.compile(r"sentry-sample_rand=(0\.\d{6})(?!\d)")
_QUEUED_AT = "sentry-task-enqueued-time"
_STARTED_AT = "sentry-monitor-start-timestamp-s"
QUEUED_AT_WIDTH = 17
"""Characters of seconds since the epoch with six decimals, as ``new_traces`` makes them."""
STARTED_AT_WIDTH = 20
"""The same with nine decimals."""
_HEX_DIGITS = np.array([at for at in range(36) if at not in (8, 13, 18, 23)])
"""Positions of the hex digits in the text of a UUID."""
_CHECK_IN_FROM_MS = 60_000
"""Sentry does not check in for shorter intervals."""


class Traces(NamedTuple):
    """Fillings of the observers' holes, one element per message."""

    traces: Octets
    """32 hex digits."""
    spans: Octets
    """16 hex digits."""
    chances: Octets
    """``0.`` and six digits; Sentry compares the number with sample rates."""
    queued_at_s: float
    """The same for all messages."""
    started_at: bytes
    """Seconds with nine decimals, as text; the same for all messages."""
    other_traces: Octets
    """Trace ids of the second observer. The fast lane gives both tools the run id; Celery's message has two ids."""
    other_spans: Octets


class CheckIns(NamedTuple):
    """The jobs that Sentry checks in for: all but ``excluded``, patterns of plain names (``exclude_beat_tasks``)."""

    excluded: tuple[str, ...]

    def of(self, names: Iterable[str], interval_ms: Int64s) -> NDArray[np.bool_]:
        """Return for each job whether Sentry may check in for it; ``interval_ms`` ≤ 0: not an interval."""
        found = np.array([not self._excludes(name) for name in names], np.bool_)
        return found & ((interval_ms <= 0) | (interval_ms >= _CHECK_IN_FROM_MS))

    def _excludes(self, name: str) -> bool:
        """Match as Sentry does: anywhere in the name, up to its end."""
        return any(re.search(one if one.endswith("$") else f"{one}$", name) for one in self.excluded)


def check_ins() -> CheckIns | None:
    """Return the jobs that Sentry checks in for; None if check-ins are off."""
    sentry: Any = sys.modules.get("sentry_sdk")
    integration: Any = sentry.get_client().get_integration("celery") if sentry is not None else None
    if not getattr(integration, "monitor_beat_tasks", False):
        return None
    return CheckIns(tuple(integration.exclude_beat_tasks or ()))


def only_observers(hooks: Sequence[Hook]) -> bool:
    """Return whether all hooks belong to known observers."""
    return all(hook.package in OBSERVERS for hook in hooks)


def names_of(hooks: Sequence[Hook]) -> list[str]:
    """Return the names of the tools behind ``hooks``."""
    return sorted({OBSERVERS[hook.package] for hook in hooks if hook.package in OBSERVERS})


def marks_of_observers(headers: dict[str, Any], write_time: Callable[[float], bytes]) -> list[MarkedValue]:
    """Return the marks of the observers' values in ``headers``. ``write_time`` encodes seconds for the transport."""
    marks = []
    if found := _ids_of(headers):
        trace, span = found[0]
        other_trace, other_span = found[-1]
        marks = [MarkedValue(Hole.TRACE, trace, None), MarkedValue(Hole.SPAN, span, None)]
        if other_trace != trace:
            marks.append(MarkedValue(Hole.OTHER_TRACE, other_trace, None))
        if other_span != span:
            marks.append(MarkedValue(Hole.OTHER_SPAN, other_span, None))
    chance = _CHANCE.search(str(headers.get("baggage", "")))
    if chance is not None:
        marks.append(MarkedValue(Hole.CHANCE, chance[1].encode(), None))
    if _QUEUED_AT in headers:
        marks.append(MarkedValue(Hole.QUEUED_AT, write_time(headers[_QUEUED_AT]), None))
    if _STARTED_AT in headers:
        marks.append(MarkedValue(Hole.STARTED_AT, headers[_STARTED_AT].encode(), None))
    return marks


def traces_of(headers: dict[str, Any]) -> Traces:
    """Return the observers' values in one recorded message."""
    found = _ids_of(headers) or [(b"", b"")]
    chance = _CHANCE.search(str(headers.get("baggage", "")))
    return Traces(
        rows_of([found[0][0]]),
        rows_of([found[0][1]]),
        rows_of([chance[1].encode() if chance else b""]),
        float(headers.get(_QUEUED_AT, 0)),
        str(headers.get(_STARTED_AT, "")).encode(),
        rows_of([found[-1][0]]),
        rows_of([found[-1][1]]),
    )


def _ids_of(headers: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    """Return (trace id, span id) of each observer that wrote them."""
    found = [_TRACE.fullmatch(str(headers.get(name, ""))) for name in ("traceparent", "sentry-trace")]
    return [(one[1].encode(), one[2].encode()) for one in found if one is not None]


def new_traces(ids: Octets, nonces: Octets, entropy: bytes, now_s: float) -> Traces:
    """Make the traces of new messages: trace id = run id, span id = the first half of the nonce.

    ``ids``: n × 36; ``nonces``: n × 32; ``entropy``: four bytes per message.
    """
    chances = np.frombuffer(entropy, np.uint32) % 1_000_000
    micros = int(now_s * 1_000_000)
    if micros % 10 == 0:
        micros += 1  # keeps all six decimals, on which the length of the message depends
    traces, spans = ids[:, _HEX_DIGITS], nonces[:, :16]
    return Traces(
        traces,
        spans,
        rows_of([b"0.%06d" % chance for chance in chances.tolist()]),
        micros / 1_000_000,
        b"%.9f" % now_s,
        traces,
        spans,
    )
