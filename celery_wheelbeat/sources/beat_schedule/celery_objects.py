"""Convert schedules to Celery's objects, for readers of ``entry.schedule``: extensions, logs, Sentry.

The reverse of ``celery_schedules``. A schedule becomes a Celery ``schedule`` or ``crontab`` if translating that back
gives the same schedule, else a ``ComputedSchedule``. Nothing here decides when a job fires.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from celery.schedules import BaseSchedule, crontab, schedstate, schedule

from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.fire_times import ms_of
from celery_wheelbeat.schedules.intervals import Interval
from celery_wheelbeat.sources.beat_schedule.celery_schedules import translate

if TYPE_CHECKING:
    from celery_wheelbeat.schedules.intervals import Bounded

_NEVER_S = 365 * 86_400.0
_KEPT = 4_096
"""Bound of each cache of Celery objects: distinct intervals, and distinct crons."""


def celery_schedule_of(bounded: Bounded | None) -> BaseSchedule:
    """Return a Celery schedule for a job's schedule; None for a schedule of the poll lane."""
    base = None if bounded is None else bounded.base
    if isinstance(base, Interval):
        return _interval(base.interval_ms)
    if isinstance(base, Cron):
        found = _crontab(base)
        if found is not None:
            return found
    return ComputedSchedule(bounded)


class ComputedSchedule(BaseSchedule):  # type: ignore[misc]  # celery ships no types
    """A schedule that Celery's classes cannot express (last day of the month, one instant)."""

    def __init__(self, bounded: Bounded | None) -> None:
        super().__init__()
        self._bounded = bounded

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return the time until the first fire after ``last_run_at``."""
        fire_ms = None if self._bounded is None else self._bounded.next_fire(ms_of(last_run_at))
        if fire_ms is None:
            return timedelta(seconds=_NEVER_S)
        return timedelta(milliseconds=fire_ms - ms_of(datetime.now(UTC)))

    def is_due(self, last_run_at: datetime) -> Any:
        """Return Celery's pair: whether the schedule is due, and the seconds until the next check."""
        wait_s = self.remaining_estimate(last_run_at).total_seconds()
        return schedstate(wait_s <= 0, max(wait_s, 1.0))

    def __repr__(self) -> str:
        return f"<computed: {None if self._bounded is None else self._bounded.base!r}>"


@lru_cache(_KEPT)
def _interval(interval_ms: int) -> schedule:
    return schedule(timedelta(milliseconds=interval_ms))


@lru_cache(_KEPT)
def _crontab(cron: Cron) -> crontab | None:
    fields = cron.expression.split()
    if len(fields) != 5:
        return None
    minute, hour, day, month, weekday = fields
    try:
        found = crontab(minute=minute, hour=hour, day_of_month=day, month_of_year=month, day_of_week=weekday)
        found.tz = ZoneInfo(cron.timezone)
        return found if translate(found) == cron else None
    except (ValueError, TypeError):  # also if it would never fire by Celery's day rule
        return None
