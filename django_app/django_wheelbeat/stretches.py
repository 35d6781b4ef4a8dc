"""Stretches: the periods in which a monitor was enabled with its current schedule, so that its fire times were due.

The current stretch of an enabled monitor begins at ``effective_from``. Earlier ones are stored in ``active_before``; a
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
KEPT = 7
"""Stretches kept before the current one; the oldest are dropped."""


class Stretch(NamedTuple):
    """A period in ms since the Unix epoch, both ends inclusive."""

    begin_ms: int
    end_ms: int


def stretches_of(monitor: Monitor, now_ms: int) -> list[Stretch]:
    """Return the stretches of a stored monitor up to ``now_ms``, the newest first."""
    text = str(monitor.active_before)
    pieces = [text[first : first + LENGTH] for first in range(0, len(text), LENGTH)]
    known = [_read(piece) for piece in pieces]
    begin_ms = to_ms(monitor.effective_from)
    if monitor.enabled and begin_ms is not None:
        known.append(Stretch(begin_ms, now_ms))
    return [stretch for stretch in reversed(known) if stretch is not None]


def pauses_of(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return the pauses between ``stretches``, the newest first."""
    return [Stretch(before.end_ms, after.begin_ms) for after, before in pairwise(stretches)]


def _read(piece: str) -> Stretch | None:
    """Parse one stretch; None if it is not in the trigger's format."""
    begin, _, end = piece.removesuffix(",").partition("-")
    well_formed = len(piece) == LENGTH and all(part.isascii() and part.isdigit() for part in (begin, end))
    return Stretch(int(begin), int(end)) if well_formed else None
