"""Convert Celery's schedule objects to pure schedules.

A schedule is translated only if its class is known to have the same fire times. All others (subclasses that override
behaviour, ``nowfun``, zones without a name) are polled as Celery polls them, in the poll lane.
"""

from __future__ import annotations

import numbers
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery.schedules import BaseSchedule, crontab, solar
from celery.schedules import schedule as interval

from celery_wheelbeat.errors import InvalidSchedule
from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.intervals import Interval
from celery_wheelbeat.schedules.kinds import Asked
from celery_wheelbeat.schedules.solar import SolarSchedule
from celery_wheelbeat.sources.beat_schedule.celery_zones import zone_name

if TYPE_CHECKING:
    from datetime import datetime

    from celery_wheelbeat.schedules.kinds import Polled

RECHECK_S = 300.0
"""A custom schedule is polled at least this often, like Celery's default ``beat_max_loop_interval``."""

_ASKED = ("is_due", "remaining_estimate", "now", "maybe_make_aware", "to_local", "utc_enabled", "tz")
_CACHED = {"tz", "utc_enabled"}
"""Attributes that Celery caches in the instance; users also set ``tz`` there."""
_BEHAVIOUR: dict[type, tuple[str, ...]] = {
    interval: (*_ASKED, "seconds"),
    crontab: (*_ASKED, "remaining_delta", "_delta_to_next"),
    solar: (*_ASKED, "_next_event", "_horizons", "_methods", "_use_center_l"),
}


def translate(schedule: Any, *, timezone: str | None = "UTC") -> Interval | Cron | None:
    """Return the pure schedule with the same fire times, or None if the schedule must be polled (``polled``).

    ``schedule``: a Celery schedule object, or seconds or a timedelta as in ``beat_schedule``. ``timezone``: the app's
    zone (``timezone_of(app)``), for schedules without one. Raises ``InvalidSchedule`` for an interval that is not
    positive and for a crontab that never fires.

    An interval keeps its length in milliseconds, not its phase: it fires on the grid of the epoch. ``relative=True``
    follows the wall clock of its zone: one day, hours that divide the day and minutes that divide the hour become the
    crontab of the same slots; under a minute it has no effect; other lengths are polled.
    """
    if isinstance(schedule, timedelta):
        return _interval(schedule)
    if isinstance(schedule, numbers.Real):
        return _interval(timedelta(seconds=float(schedule)))
    if not hasattr(schedule, "is_due"):
        raise InvalidSchedule(f"{schedule!r}: expected seconds, a timedelta or a Celery schedule object")
    if _behaves_like(schedule, crontab):
        return _cron(schedule, zone_name(vars(schedule).get("tz", timezone)))
    if _behaves_like(schedule, interval):
        if schedule.relative and schedule.run_every >= timedelta(minutes=1):
            return _aligned(schedule.run_every, zone_name(vars(schedule).get("tz", timezone)))
        return _interval(schedule.run_every)
    return None


def nameless(schedule: Any, timezone: str | None) -> bool:
    """Return whether the polled ``schedule`` would be pure if its time zone had a name."""
    pure = _behaves_like(schedule, crontab) or (
        _behaves_like(schedule, interval) and _aligned(schedule.run_every, "UTC") is not None
    )
    return pure and zone_name(vars(schedule).get("tz", timezone)) is None


def polled(schedule: BaseSchedule) -> Polled:
    """Return the polled form of a schedule that ``translate`` does not know: solar events are pure, others custom."""
    if _behaves_like(schedule, solar):
        return SolarSchedule(schedule.event, schedule.lat, schedule.lon)
    return CustomSchedule(schedule)


class CustomSchedule:
    """A Celery schedule polled through ``is_due(last_run_at)``; the poll lane handles its exceptions.

    ``last_run_at`` is kept in memory and starts at the first poll, as for a new entry of Celery's scheduler. The fire
    time is the instant of the poll that was due, in whole seconds: at most one run per second, and no promises about
    restarts and drift.
    """

    def __init__(self, schedule: BaseSchedule, *, recheck_s: float = RECHECK_S) -> None:
        self._schedule = schedule
        self._recheck_s = recheck_s
        self._last_run_at: datetime | None = None
        self._last_fire_ms: int | None = None

    def ask(self, now_ms: int) -> Asked:
        """Poll the schedule; if it is due, ``now_ms`` is the instant of the run."""
        if self._last_run_at is None:
            self._last_run_at = self._schedule.now()
        due, next_s = self._schedule.is_due(self._last_run_at)
        fire_ms = now_ms - now_ms % 1000
        if due and self._last_fire_ms is not None and fire_ms <= self._last_fire_ms:
            return Asked(None, max(self._last_fire_ms, fire_ms) + 1000)
        if due:
            self._last_run_at = self._schedule.now()
            self._last_fire_ms = fire_ms
        return Asked(fire_ms if due else None, now_ms + self._wait_ms(next_s))

    def _wait_ms(self, next_s: Any) -> int:
        """Return the next poll from the schedule's ``next_s``; the longest wait if that is not a number or too long."""
        if isinstance(next_s, numbers.Real) and float(next_s) < self._recheck_s:
            return max(1, round(float(next_s) * 1000))
        return round(self._recheck_s * 1000)


def _behaves_like(schedule: Any, base: type) -> bool:
    """Return whether neither class nor instance overrides an attribute that decides when ``base`` is due."""
    return (
        isinstance(schedule, base)
        and getattr(schedule, "nowfun", None) is None
        and all(
            getattr(type(schedule), name, None) is getattr(base, name, None)
            and (name in _CACHED or name not in vars(schedule))
            for name in _BEHAVIOUR[base]
        )
    )


def _interval(length: timedelta) -> Interval:
    if not isinstance(length, timedelta):
        raise InvalidSchedule(f"interval {length!r}: expected seconds or a timedelta")
    if length <= timedelta(0):
        raise InvalidSchedule(f"interval of {length.total_seconds()} s: expected more than 0 s")
    return Interval(max(timedelta(milliseconds=1), timedelta(milliseconds=round(length / timedelta(milliseconds=1)))))


def _cron(schedule: crontab, timezone: str | None) -> Cron | None:
    if timezone is None:
        return None
    stars = [isinstance(text, str) and text.startswith("*") for text in (schedule._orig_minute, schedule._orig_hour)]
    return Cron.from_sets(
        minutes=schedule.minute,
        hours=schedule.hour,
        days=schedule.day_of_month,
        months=schedule.month_of_year,
        weekdays=schedule.day_of_week,
        fixed_time=not any(stars),
        timezone=timezone,
    )


def _aligned(length: timedelta, timezone: str | None) -> Cron | None:
    length_s = length.total_seconds()
    if timezone is None:
        return None
    if length_s == 86_400:
        return Cron("0 0 * * *", timezone)
    if length_s % 3600 == 0 and 86_400 % length_s == 0:
        return Cron(f"0 */{int(length_s) // 3600} * * *", timezone)
    if length_s % 60 == 0 and 3600 % length_s == 0:
        return Cron(f"*/{int(length_s) // 60} * * * *", timezone)
    return None
