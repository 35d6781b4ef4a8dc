"""Celery's own schedule objects, turned into ours.

A schedule is translated only where its class is known to compute what we compute; everything else (sub-classes that
override behaviour, ``nowfun``, zones without a name) is asked in the poll lane the way Celery asks it, never guessed.
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
"""A custom schedule is asked at least this often, as Celery's ``beat_max_loop_interval`` has it."""

_ASKED = ("is_due", "remaining_estimate", "now", "maybe_make_aware", "to_local", "utc_enabled", "tz")
_CACHED = {"tz", "utc_enabled"}
"""Looked up once by Celery and kept in the instance; ``tz`` is also set there by users."""
_BEHAVIOUR: dict[type, tuple[str, ...]] = {
    interval: (*_ASKED, "seconds"),
    crontab: (*_ASKED, "remaining_delta", "_delta_to_next"),
    solar: (*_ASKED, "_next_event", "_horizons", "_methods", "_use_center_l"),
}


def translate(schedule: Any, *, timezone: str | None = "UTC") -> Interval | Cron | None:
    """Return the pure schedule that means the same, or None where it has to be asked (``polled``).

    ``schedule``: a Celery schedule object, or the seconds or timedelta that stand for one in ``beat_schedule``.
    ``timezone``: the app's zone (``timezone_of(app)``), for schedules that carry none of their own. Raises
    ``InvalidSchedule`` for an interval that is not positive and for a crontab that never fires.

    An interval keeps its length, to the millisecond, not its phase: it fires on the grid of the epoch.
    ``relative=True`` follows the wall clock of its zone: one day, hours that divide the day and minutes that divide
    the hour become the crontab of the same slots; under a minute it changes nothing; other lengths are asked.
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
    """Whether ``schedule``, which has to be asked, would be pure in a time zone with a name."""
    pure = _behaves_like(schedule, crontab) or (
        _behaves_like(schedule, interval) and _aligned(schedule.run_every, "UTC") is not None
    )
    return pure and zone_name(vars(schedule).get("tz", timezone)) is None


def polled(schedule: BaseSchedule) -> Polled:
    """Return the asker of a schedule that ``translate`` does not know: solar events are pure, the rest is custom."""
    if _behaves_like(schedule, solar):
        return SolarSchedule(schedule.event, schedule.lat, schedule.lon)
    return CustomSchedule(schedule)


class CustomSchedule:
    """A Celery schedule asked through ``is_due(last_run_at)``; what it raises is the poll lane's to handle.

    ``last_run_at`` lives in memory and begins with the first question, as for a new entry of Celery's scheduler. The
    fire time is the instant found due, in whole seconds: at most one run a second, and none of the promises about
    restarts and drift.
    """

    def __init__(self, schedule: BaseSchedule, *, recheck_s: float = RECHECK_S) -> None:
        self._schedule = schedule
        self._recheck_s = recheck_s
        self._last_run_at: datetime | None = None
        self._last_fire_ms: int | None = None

    def ask(self, now_ms: int) -> Asked:
        """Ask the schedule, with ``now_ms`` as the instant of a run that is due."""
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
        """``next_s`` is what the schedule says; where that is no number, or too long, the longest wait counts."""
        if isinstance(next_s, numbers.Real) and float(next_s) < self._recheck_s:
            return max(1, round(float(next_s) * 1000))
        return round(self._recheck_s * 1000)


def _behaves_like(schedule: Any, base: type) -> bool:
    """Whether class and instance leave alone everything that decides when ``base`` is due."""
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
