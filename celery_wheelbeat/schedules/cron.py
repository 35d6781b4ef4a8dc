"""Cron schedules: five fields, a time zone and a day rule, evaluated across the offset changes of the zone.

The rules are those of cron(8). A fixed-time job runs at the end of a skipped stretch that contains one of its slots,
and once in a repeated stretch. Every other job follows the wall clock. A change of more than three hours is a
correction: nothing is caught up or suppressed. A fire time is strictly after the given instant.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from celery_wheelbeat.errors import InvalidSchedule
from celery_wheelbeat.schedules import cron_fields, cron_words
from celery_wheelbeat.schedules.cron_days import Days, days_of
from celery_wheelbeat.schedules.fire_times import fires_after, last_fire
from celery_wheelbeat.schedules.zones import EARLIEST_S, LATEST_S, Segment, Zone, zone

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from celery_wheelbeat.schedules.cron_fields import DayFields

DAY_RULES = ("and", "or")
CORRECTION_S = 3 * 3600
"""A larger change of the wall clock is a correction, not daylight saving time."""
_NEAR_S = 48 * 3600
"""Bound on the distance of any two offsets of a zone, and so on the delay of a repeated wall time."""
_SEARCH_S = 401 * 366 * 86_400
"""A schedule that does not fire within one cycle of the calendar (400 years) never fires."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron schedule; compared and hashed by its meaning, not by its text.

    ``expression``: five fields or a macro (``@daily``). ``timezone``: IANA name. ``day_rule``: with ``and`` both day
    fields must match (Celery's rule); with ``or`` one is enough, unless either starts with a star (crontab(5)).
    Raises ``InvalidSchedule`` if the schedule cannot be run exactly as written, or never fires.
    """

    expression: str = field(compare=False)
    timezone: str = "UTC"
    day_rule: str = field(default="and", compare=False)
    fixed_time: bool = field(init=False, repr=False)
    _minutes: int = field(init=False, repr=False)
    _hours: int = field(init=False, repr=False)
    _days: Days = field(init=False, repr=False)
    _first_s: int = field(init=False, repr=False, compare=False)
    _zone: Zone = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.day_rule not in DAY_RULES:
            raise InvalidSchedule(f"day rule {self.day_rule!r:.80}: expected 'and' or 'or'")
        fields = cron_fields.parse(self.expression)
        day_fields = fields.day_fields
        days = days_of(day_fields, either=_matches_either(day_fields, self.day_rule))
        if not days:
            raise InvalidSchedule(
                f"cron {self.expression!r:.200} never fires: no date matches its day and month fields"
            )
        store = object.__setattr__
        store(self, "fixed_time", fields.fixed_time)
        store(self, "_minutes", fields.minutes)
        store(self, "_hours", fields.hours)
        store(self, "_days", days)
        store(self, "_first_s", _lowest(fields.hours) * 3600 + _lowest(fields.minutes) * 60)
        store(self, "_zone", zone(self.timezone))

    def __reduce__(self) -> tuple[type[Cron], tuple[str, str, str]]:
        return Cron, (self.expression, self.timezone, self.day_rule)

    @classmethod
    def from_sets(
        cls,
        *,
        minutes: Collection[int],
        hours: Collection[int],
        days: Collection[int],
        months: Collection[int],
        weekdays: Collection[int],
        fixed_time: bool,
        timezone: str = "UTC",
        day_rule: str = "and",
    ) -> Cron:
        """Build a schedule from sets of values (Sunday = 0), as in Celery's ``crontab``.

        ``fixed_time``: neither the minute nor the hour field started with a star. A set of all days counts as a star.
        """
        if not fixed_time and 0 not in minutes and 0 not in hours:
            raise InvalidSchedule("cron sets without a fixed time: a field that starts with a star holds the value 0")
        texts = (
            cron_fields.render(cron_fields.MINUTE, minutes, star=not fixed_time and 0 in minutes),
            cron_fields.render(cron_fields.HOUR, hours, star=not fixed_time and 0 in hours),
            cron_fields.render(cron_fields.DAY, days, star=len(days) == 31),
            cron_fields.render(cron_fields.MONTH, months, star=len(months) == 12),
            cron_fields.render(cron_fields.WEEKDAY, weekdays, star=len(weekdays) == 7),
        )
        return cls(" ".join(texts), timezone, day_rule)

    def next_fire(self, after_ms: int) -> int | None:
        """Return the first fire time strictly after ``after_ms`` (ms since the Unix epoch), or None.

        Searches up to 401 years ahead, at most to the year 9999.
        """
        instant_s = max(after_ms // 1000 + 1, EARLIEST_S)
        limit_s = min(instant_s + _SEARCH_S, LATEST_S)
        while instant_s < limit_s:
            segment = self._zone.segment(instant_s)
            search_s = instant_s
            if self.fixed_time and 0 < abs(segment.shift_s) <= CORRECTION_S:
                if instant_s == segment.start_s and self._skipped_slot_exists(segment):
                    return instant_s * 1000
                # The first pass has covered local time up to the end of the repeated stretch.
                search_s = max(instant_s, segment.start_s - segment.shift_s)
            wall_s = self._next_wall(search_s + segment.offset_s)
            if wall_s is None:
                return None
            fire_s = wall_s - segment.offset_s
            if fire_s < segment.end_s:
                return fire_s * 1000
            # In a long segment no earlier wall time matches or is repeated: skip to 48 h before the match.
            leap_s = fire_s - _NEAR_S if segment.end_s >= instant_s + _NEAR_S else segment.end_s
            instant_s = max(segment.end_s, leap_s)
        return None

    def count(self, after_ms: int, until_ms: int) -> int:
        """Return the number of fire times in (``after_ms``, ``until_ms``], in one step per month."""
        instant_s = max(after_ms // 1000 + 1, EARLIEST_S)
        end_s = min(until_ms // 1000 + 1, LATEST_S)
        found = 0
        while instant_s < end_s:
            segment = self._zone.segment(instant_s)
            begin_s = instant_s
            if self.fixed_time and 0 < abs(segment.shift_s) <= CORRECTION_S:
                begin_s = max(instant_s, segment.start_s - segment.shift_s)
                if instant_s == segment.start_s and self._skipped_slot_exists(segment):
                    # A single fire time, even if the skipped stretch ends on a slot.
                    found += 1
                    begin_s = instant_s + 1
            instant_s = min(segment.end_s, end_s)
            if begin_s < instant_s:
                found += self._count_wall_times(begin_s + segment.offset_s, instant_s + segment.offset_s)
        return found

    def last_fire(self, after_ms: int, until_ms: int) -> int | None:
        """Return the last fire time in (``after_ms``, ``until_ms``], or None; about sixty calls of ``next_fire``."""
        return last_fire(self, until_ms, after_ms + 1)

    def next_fires(self, after: datetime, count: int) -> list[datetime]:
        """Return up to ``count`` fire times strictly after ``after`` (aware), as aware datetimes in UTC."""
        return fires_after(self, after, count)

    def describe(self) -> str:
        """Return the schedule in words, without the zone: "at 02:30 on Monday"."""
        return cron_words.describe(cron_fields.parse(self.expression), either=self._either())

    def warnings(self, now_ms: int | None = None) -> tuple[str, ...]:
        """Return one sentence for each legal construct that is often a mistake.

        With ``now_ms``, includes clock changes of the following 366 days that affect this schedule. Schedules that run
        in every hour without a fixed time are not affected.
        """
        fields = cron_fields.parse(self.expression)
        found = cron_words.field_warnings(fields, day_rule=self.day_rule, either=self._either())
        every_hour = self._hours == cron_fields.HOUR.every and not self.fixed_time
        if now_ms is None or every_hour:
            return found
        return found + tuple(self._clock_warnings(now_ms // 1000))

    def _clock_warnings(self, now_s: int) -> Iterator[str]:
        instant_s, end_s = max(now_s, EARLIEST_S), min(now_s + 366 * 86_400, LATEST_S)
        while instant_s < end_s:
            segment = self._zone.segment(instant_s)
            instant_s = segment.end_s
            shift_s = segment.shift_s
            reached_s = segment.start_s + segment.offset_s
            low_s, high_s = sorted((reached_s, reached_s - shift_s))
            if segment.start_s <= now_s or abs(shift_s) > CORRECTION_S or not self._slot_exists(low_s, high_s):
                continue
            period = f"{_wall(low_s)} to {_wall(high_s)[-5:]} ({self.timezone})"
            if shift_s > 0:
                effect = f"the run comes at {_wall(high_s)[-5:]}" if self.fixed_time else "these runs do not happen"
                yield f"{period} is skipped by the clock: {effect}"
            else:
                effect = "only the first pass runs" if self.fixed_time else "both passes run"
                yield f"{period} is repeated by the clock: {effect}"

    def _either(self) -> bool:
        return _matches_either(cron_fields.parse(self.expression).day_fields, self.day_rule)

    def _slot_exists(self, low_s: int, high_s: int) -> bool:
        wall_s = self._next_wall(low_s)
        return wall_s is not None and wall_s < high_s

    def _skipped_slot_exists(self, segment: Segment) -> bool:
        """Return whether a slot lies in the local time that was skipped at the start of ``segment``."""
        reached_s = segment.start_s + segment.offset_s
        return self._slot_exists(reached_s - segment.shift_s, reached_s)

    def _count_wall_times(self, low_s: int, high_s: int) -> int:
        """Return the number of slots at wall times in [``low_s``, ``high_s``)."""
        (low_day, low_minute), (high_day, high_minute) = (divmod(-(-wall_s // 60), 1440) for wall_s in (low_s, high_s))
        found = self._days.count(low_day, high_day) * self._slots_before(1440)
        for day, minute, sign in ((low_day, low_minute, -1), (high_day, high_minute, 1)):
            if minute and self._days.count(day, day + 1):
                found += sign * self._slots_before(minute)
        return found

    def _slots_before(self, minute: int) -> int:
        """Return the number of slots of a matching day before ``minute`` of the day."""
        hour, within = divmod(minute, 60)
        whole = (self._hours & (1 << hour) - 1).bit_count() * self._minutes.bit_count()
        return whole + (self._hours >> hour & 1) * (self._minutes & (1 << within) - 1).bit_count()

    def _next_wall(self, wall_s: int) -> int | None:
        """Return the first slot at or after the wall time ``wall_s`` (seconds, as if it were UTC)."""
        today, minute = divmod(-(-wall_s // 60), 1440)
        day = self._days.at_or_after(today)
        if day == today:
            hour, within = divmod(minute, 60)
            if self._hours >> hour & 1 and (rest := self._minutes >> within):
                return day * 86_400 + hour * 3600 + (within + _lowest(rest)) * 60
            if rest := self._hours >> (hour + 1):
                return day * 86_400 + (hour + 1 + _lowest(rest)) * 3600 + self._first_s % 3600
            day = self._days.at_or_after(today + 1)
        return None if day is None else day * 86_400 + self._first_s


def _matches_either(day_fields: DayFields, day_rule: str) -> bool:
    return day_rule == "or" and not (day_fields.day_star or day_fields.weekday_star)


def _wall(wall_s: int) -> str:
    return f"{datetime.fromtimestamp(wall_s, UTC):%Y-%m-%d %H:%M}"


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


class CronTable:
    """Interned cron schedules: equal schedules share an index and the computation of their fire times.

    Append-only: an index always refers to the same schedule. ``intern`` may be called from any thread.
    """

    def __init__(self) -> None:
        self._crons: list[Cron] = []
        self._index: dict[Cron, int] = {}
        self._answers: list[tuple[int, int | None]] = []
        self._lock = threading.Lock()

    def intern(self, cron: Cron) -> int:
        """Return the index of ``cron``; adds a new schedule."""
        index = self._index.get(cron)
        if index is None:
            with self._lock:
                index = self._index.get(cron)
                if index is None:
                    index = len(self._crons)
                    self._crons.append(cron)
                    self._answers.append((0, 0))
                    self._index[cron] = index
        return index

    def next_fire(self, index: int, after_ms: int) -> int | None:
        """Return the next fire time of schedule ``index`` strictly after ``after_ms``.

        The last result of each schedule is cached: it holds for every instant from ``after_ms`` up to the fire time.
        """
        asked_ms, fire_ms = self._answers[index]
        if asked_ms <= after_ms and (fire_ms is None or after_ms < fire_ms):
            return fire_ms
        known_ms = fire_ms
        fire_ms = self._crons[index].next_fire(after_ms)
        self._answers[index] = (min(asked_ms, after_ms) if fire_ms == known_ms else after_ms, fire_ms)
        return fire_ms

    def __getitem__(self, index: int) -> Cron:
        return self._crons[index]

    def __len__(self) -> int:
        return len(self._crons)
