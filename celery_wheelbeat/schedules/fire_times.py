"""Algorithms over any schedule: fire times listed and searched with ``next_fire`` alone.

A schedule is a pure function of an instant. Nothing here keeps state.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from celery_wheelbeat.errors import InvalidSchedule

if TYPE_CHECKING:
    from collections.abc import Iterator


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the last instant of ``datetime`` in milliseconds."""


_STEP_MS = 1_000
_NEAR = 8
"""Number of fire times walked one by one before the search bisects."""


class Schedule(Protocol):
    """A pure function from an instant to the next fire time."""

    def next_fire(self, after_ms: int) -> int | None:
        """Return the first fire time strictly after ``after_ms``, None if there is none. Monotone in ``after_ms``."""


def fires(schedule: Schedule, after_ms: int) -> Iterator[int]:
    """Yield the fire times strictly after ``after_ms``, ascending."""
    fire_ms = schedule.next_fire(after_ms)
    while fire_ms is not None:
        yield fire_ms
        fire_ms = schedule.next_fire(fire_ms)


def last_fire(schedule: Schedule, until_ms: int, not_before_ms: int) -> int | None:
    """Return the last fire time in [``not_before_ms``, ``until_ms``], None if there is none.

    Takes about sixty calls of ``next_fire`` at most: steps back by growing distances, then bisects.
    """
    step_ms, begin_ms = _STEP_MS, max(until_ms - _STEP_MS, not_before_ms - 1)
    found = schedule.next_fire(begin_ms)
    while found is None or found > until_ms:
        if begin_ms <= not_before_ms - 1:
            return None
        step_ms *= 4
        begin_ms = max(until_ms - step_ms, not_before_ms - 1)
        found = schedule.next_fire(begin_ms)
    for _ in range(_NEAR):
        later = schedule.next_fire(found)
        if later is None or later > until_ms:
            return found
        found = later
    last_ms = until_ms
    while found < last_ms:  # none lies in (last_ms, until_ms]
        middle_ms = (found + last_ms) // 2
        later = schedule.next_fire(middle_ms)
        if later is not None and later <= last_ms:
            found = later
        else:
            last_ms = middle_ms
    return found


def fires_after(schedule: Schedule, after: datetime, count: int) -> list[datetime]:
    """Return up to ``count`` fire times strictly after ``after``, as aware datetimes in UTC.

    ``after`` must be aware; its microseconds are rounded down to milliseconds. Returns fewer if the schedule or the
    calendar ends. Raises ``InvalidSchedule`` for a naive ``after``.
    """
    if after.tzinfo is None:
        raise InvalidSchedule(f"{after.isoformat()} has no time zone: expected an aware datetime")
    found: list[datetime] = []
    for fire_ms in fires(schedule, ms_of(after)):
        if len(found) >= count or fire_ms > _LAST_MS:
            break
        found.append(_EPOCH + timedelta(milliseconds=fire_ms))
    return found


def ms_of(instant: datetime) -> int:
    """Return an aware datetime as whole milliseconds since the Unix epoch, rounded down."""
    return (instant - _EPOCH) // timedelta(milliseconds=1)


def instant(at_ms: int) -> datetime:
    """Return the instant ``at_ms`` as an aware datetime in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)
