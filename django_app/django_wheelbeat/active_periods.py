"""Active periods: the times in which a monitor was enabled with its current schedule, so that its runs were due.

The current period of an enabled monitor begins at ``effective_from``. Earlier ones are stored in ``active_before``; a
trigger appends one when a monitor is paused: ``begin-end,`` in milliseconds since the Unix epoch, fifteen digits each.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from django_wheelbeat.monitors.rows import to_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_wheelbeat.models import Monitor

DIGITS = 15
LENGTH = 2 * DIGITS + 2
PERIODS_KEPT = 7
"""Stretches kept before the current one; the oldest are dropped."""


class ActivePeriod(NamedTuple):
    """A period in ms since the Unix epoch, both ends inclusive."""

    begin_ms: int
    end_ms: int


def active_periods_of(monitor: Monitor, now_ms: int) -> list[ActivePeriod]:
    """Return the periods of a stored monitor up to ``now_ms``, the newest first."""
    text = str(monitor.active_before)
    pieces = [text[first : first + LENGTH] for first in range(0, len(text), LENGTH)]
    known = [_read(piece) for piece in pieces]
    begin_ms = to_ms(monitor.effective_from)
    if monitor.enabled and begin_ms is not None:
        known.append(ActivePeriod(begin_ms, now_ms))
    return [period for period in reversed(known) if period is not None]


def pauses_of(periods: Sequence[ActivePeriod]) -> list[ActivePeriod]:
    """Return the pauses between ``periods``, the newest first."""
    return [ActivePeriod(before.end_ms, after.begin_ms) for after, before in pairwise(periods)]


def _read(piece: str) -> ActivePeriod | None:
    """Parse one period; None if it is not in the trigger's format."""
    begin, _, end = piece.removesuffix(",").partition("-")
    well_formed = len(piece) == LENGTH and all(part.isascii() and part.isdigit() for part in (begin, end))
    return ActivePeriod(int(begin), int(end)) if well_formed else None
