"""The days of a cron schedule: the dates of the Gregorian calendar that match its three day fields.

There are 28 kinds of months (weekday of the first day, length), so the days are 28 bit masks and a search is a few
shifts. Days are counted from 1970-01-01. Independent of clock and zone.
"""

from __future__ import annotations

from calendar import isleap
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_wheelbeat.schedules.cron_fields import DayFields

_EPOCH = date(1970, 1, 1).toordinal()
_CYCLE_MONTHS = 400 * 12
"""The calendar repeats after 400 years (146,097 days are whole weeks)."""
_LENGTHS = ((31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31))


def _month_mask(fields: DayFields, first_weekday: int, length: int, either: bool) -> int:
    mask = 0
    for day in range(1, length + 1):
        weekday = (first_weekday + day - 1) % 7
        by_date = fields.days >> day & 1 or (fields.last_day and day == length)
        by_weekday = (
            fields.weekdays >> weekday & 1
            or fields.nth_weekdays >> ((day - 1) // 7 * 7 + weekday) & 1
            or (fields.last_weekdays >> weekday & 1 and day > length - 7)
        )
        if (by_date or by_weekday) if either else (by_date and by_weekday):
            mask |= 1 << day
    return mask


class Days:
    """A set of dates that repeats every 400 years; equal if the dates are equal."""

    __slots__ = ("_years",)

    def __init__(self, fields: DayFields, *, either: bool) -> None:
        """``either``: the day-of-month or the day-of-week field must match; else both must."""
        months = {
            (first, length): _month_mask(fields, first, length, either)
            for first in range(7)
            for length in range(28, 32)
        }
        years = []
        for lengths in _LENGTHS:
            for new_year in range(7):
                masks, first = [], new_year
                for month, length in enumerate(lengths, start=1):
                    masks.append(months[first, length] if fields.months >> month & 1 else 0)
                    first = (first + length) % 7
                years.append(tuple(masks))
        self._years = tuple(years)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Days) and self._years == other._years

    def __hash__(self) -> int:
        return hash(self._years)

    def __bool__(self) -> bool:
        """Return whether any date matches."""
        return any(map(any, self._years))

    def at_or_after(self, day: int) -> int | None:
        """Return the first matching day ≥ ``day``, or None if there is none up to the year 9999."""
        when = date.fromordinal(day + _EPOCH)
        year, month = when.year, when.month
        masks = self._masks(year)
        rest = masks[month - 1] >> when.day
        if rest:
            return day + (rest & -rest).bit_length() - 1
        for _ in range(_CYCLE_MONTHS):
            month += 1
            if month > 12:
                year, month = year + 1, 1
                if year > 9999:
                    return None
                masks = self._masks(year)
            if mask := masks[month - 1]:
                return date(year, month, (mask & -mask).bit_length() - 1).toordinal() - _EPOCH
        return None

    def count(self, day: int, end_day: int) -> int:
        """Return the number of matching days in [``day``, ``end_day``), in one step per month."""
        found = 0
        while day < end_day:
            when = date.fromordinal(day + _EPOCH)
            rest = self._masks(when.year)[when.month - 1] >> when.day
            within = min(end_day - day, _LENGTHS[isleap(when.year)][when.month - 1] - when.day + 1)
            found += (rest & (1 << within) - 1).bit_count()
            day += within
        return found

    def _masks(self, year: int) -> tuple[int, ...]:
        before = year - 1
        new_year = (1 + before + before // 4 - before // 100 + before // 400) % 7
        return self._years[new_year + 7 * isleap(year)]


@lru_cache(maxsize=4096)
def days_of(fields: DayFields, *, either: bool) -> Days:
    """Return the cached ``Days`` of these fields: many schedules share few day rules."""
    return Days(fields, either=either)
