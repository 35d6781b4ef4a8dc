"""Interval and one-time schedules, and the schedule of a job: offset, bounds and incident on top of a base.

``next_grid_fire`` is the only definition of interval arithmetic; it takes Python ints and numpy arrays. Instants are
integer milliseconds since the Unix epoch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from celery_wheelbeat.errors import InvalidSchedule
from celery_wheelbeat.schedules.fire_times import Schedule, fires_after

if TYPE_CHECKING:
    from datetime import datetime

Int64s = NDArray[np.int64]
Ms = TypeVar("Ms", int, Int64s)

ALWAYS_MS = -(2**62)
"""Start of a schedule without a start."""
NEVER_MS = 2**62
"""End of a schedule without an end; in arrays also: no fire time."""
INTERVAL_MAX_MS = 100 * 366 * 86_400_000
"""Longest interval: a hundred years."""


def next_grid_fire(after_ms: Ms, interval_ms: Ms, anchor_ms: Ms, offset_ms: Ms) -> Ms:
    """Return the first point of the grid ``anchor + offset + k·interval`` strictly after ``after_ms``.

    Exact for |values| up to 2^61, which includes the years 1 to 9999. ``interval_ms`` > 0.
    """
    return after_ms + interval_ms - (after_ms - anchor_ms - offset_ms) % interval_ms


def last_grid_fire(until_ms: Ms, interval_ms: Ms, anchor_ms: Ms, offset_ms: Ms) -> Ms:
    """Return the last point of the same grid at or before ``until_ms``."""
    return until_ms - (until_ms - anchor_ms - offset_ms) % interval_ms


def count_grid_fires(after_ms: Ms, until_ms: Ms, interval_ms: Ms, anchor_ms: Ms, offset_ms: Ms) -> Ms:
    """Return the number of points of the same grid in ``(after_ms, until_ms]``; ``after_ms`` ≤ ``until_ms``."""
    first_ms = last_grid_fire(after_ms, interval_ms, anchor_ms, offset_ms)
    return (until_ms - first_ms) // interval_ms


@dataclass(frozen=True, slots=True, init=False)
class Interval:
    """Fires at ``anchor_ms + offset_ms + k·interval_ms`` for every integer ``k``: a fixed grid."""

    interval_ms: int
    anchor_ms: int
    offset_ms: int

    def __init__(self, seconds: float | timedelta, *, offset_ms: int = 0, anchor_ms: int = 0) -> None:
        """Raises ``InvalidSchedule`` unless ``seconds`` is whole milliseconds, > 0 and at most a hundred years."""
        object.__setattr__(self, "interval_ms", _interval_ms(seconds))
        object.__setattr__(self, "anchor_ms", anchor_ms)
        object.__setattr__(self, "offset_ms", offset_ms)

    @property
    def phase_ms(self) -> int:
        """One point of the grid."""
        return self.anchor_ms + self.offset_ms

    def next_fire(self, after_ms: int) -> int | None:
        """Return the first fire time strictly after ``after_ms``; an interval always has one."""
        return next_grid_fire(after_ms, self.interval_ms, self.anchor_ms, self.offset_ms)

    def next_fires(self, after: datetime, count: int) -> list[datetime]:
        """Return ``count`` fire times strictly after ``after`` (aware), as aware datetimes in UTC."""
        return fires_after(self, after, count)


def _interval_ms(seconds: float | timedelta) -> int:
    length_s = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    if not math.isfinite(length_s) or not 0 < length_s * 1000 <= INTERVAL_MAX_MS:
        raise InvalidSchedule(f"interval of {length_s} s: expected more than 0 s and at most 100 years")
    interval_ms = round(length_s * 1000)
    if abs(interval_ms - length_s * 1000) > 1e-6 * max(1, interval_ms * 1e-9):
        raise InvalidSchedule(f"interval of {length_s} s: expected a whole number of milliseconds")
    return interval_ms


@dataclass(frozen=True, slots=True)
class Once:
    """Fires at one instant."""

    at_ms: int

    def next_fire(self, after_ms: int) -> int | None:
        """Return the instant if it is after ``after_ms``, else None."""
        return self.at_ms if self.at_ms > after_ms else None

    def next_fires(self, after: datetime, count: int) -> list[datetime]:
        """Return the instant as an aware datetime in UTC; an empty list if it is not after ``after``."""
        return fires_after(self, after, count)


@dataclass(frozen=True, slots=True)
class Bounded:
    """The schedule of one job: a base schedule shifted by ``offset_ms``, bounded, and faster during an incident.

    Fire times are in ``[start_ms, end_ms)``. While the next point of the incident grid is ≤ ``incident_until_ms``, that
    grid replaces the base; the first base fire is strictly after the last incident fire. The incident grid has the
    phase of the base (``anchor + offset`` of an interval, else the offset). If its interval divides the base interval,
    every base fire is also an incident fire.
    """

    base: Schedule
    offset_ms: int = 0
    start_ms: int = ALWAYS_MS
    end_ms: int = NEVER_MS
    incident_interval_ms: int = 0
    """0 = no incident."""
    incident_until_ms: int = 0

    def next_fire(self, after_ms: int) -> int | None:
        """Return the first fire time strictly after ``after_ms``, None if there is none before the end."""
        after_ms = max(after_ms, self.start_ms - 1)
        fire_ms = self._incident_fire(after_ms)
        if fire_ms is None:
            base_ms = self.base.next_fire(after_ms - self.offset_ms)
            fire_ms = None if base_ms is None else base_ms + self.offset_ms
        return fire_ms if fire_ms is not None and fire_ms < self.end_ms else None

    def next_fires(self, after: datetime, count: int) -> list[datetime]:
        """Return up to ``count`` fire times strictly after ``after`` (aware), as aware datetimes in UTC."""
        return fires_after(self, after, count)

    def _incident_fire(self, after_ms: int) -> int | None:
        if not self.incident_interval_ms:
            return None
        anchor_ms = self.base.phase_ms if isinstance(self.base, Interval) else 0
        fire_ms = next_grid_fire(after_ms, self.incident_interval_ms, anchor_ms, self.offset_ms)
        return fire_ms if fire_ms <= self.incident_until_ms else None
