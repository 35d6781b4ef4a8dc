"""Cron expressions in words, for forms: a description and warnings.

It only describes; it must never decide when a job runs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from celery_wheelbeat.schedules.cron_fields import DAY, FIELDS, HOUR, MINUTE, MONTH, WEEKDAY, Field

if TYPE_CHECKING:
    from celery_wheelbeat.schedules.cron_fields import CronFields, DayFields

_ORDINALS = ("first", "second", "third", "fourth", "fifth")


def describe(fields: CronFields, *, either: bool) -> str:
    """Return when the fields match, in English: "at 02:30 on Monday and on day 1 of the month"."""
    parts = [_times(fields), _days(fields.day_fields, either=either)]
    if fields.day_fields.months != MONTH.every:
        parts.append("in " + _list([_name(MONTH, value) for value in _values(fields.day_fields.months)]))
    return " ".join(filter(None, parts))


def field_warnings(fields: CronFields, *, day_rule: str, either: bool) -> tuple[str, ...]:
    """Return warnings for likely mistakes: a step larger than its field, both day fields restricted."""
    found = []
    for field, text in zip(FIELDS, fields.text.split(), strict=True):
        size = field.high - field.low + 1
        found += [
            f"step /{step} in the {field.title} field is larger than the field ({size} values), so only the first "
            f"value counts; for 'every {step} …' use an interval"
            for step in re.findall(r"/([0-9]+)", text)
            if int(step) > size
        ]
    days = fields.day_fields
    if _restricts_dates(days) and _restricts_weekdays(days):
        meaning = "on days that match either of them" if either else "only on days that match both of them"
        other = "'and' would mean both" if day_rule == "or" and either else "cron(8) would run on days matching either"
        found.append(f"day of month and day of week are both restricted: runs {meaning} ({other})")
    return tuple(found)


def _times(fields: CronFields) -> str:
    minutes, hours = _values(fields.minutes), _values(fields.hours)
    if len(minutes) * len(hours) <= 6:
        return "at " + _list([f"{hour:02}:{minute:02}" for hour in hours for minute in minutes])
    minute_words = _repeated(MINUTE, minutes, "minute")
    if fields.hours == HOUR.every:
        return (
            minute_words if len(minutes) > 1 and minute_words.startswith("every") else f"{minute_words} of every hour"
        )
    hour_words = _repeated(HOUR, hours, "hour")
    return f"{minute_words}, {hour_words}" if hour_words.startswith("every") else f"{minute_words} during {hour_words}"


def _repeated(field: Field, values: list[int], unit: str) -> str:
    """Return "every 15 minutes" for an even step through the whole field, else a list of the values."""
    size = field.high - field.low + 1
    if len(values) == size:
        return f"every {unit}"
    if len(values) > 1 and values[0] == field.low:
        step = values[1] - values[0]
        if size % step == 0 and values == list(range(field.low, field.high + 1, step)):
            return f"every {step} {unit}s"
    at = "at " if unit == "minute" else ""
    return f"{at}{unit}{'s' if len(values) > 1 else ''} {_list(_runs(values))}"


def _days(days: DayFields, *, either: bool) -> str:
    dates = [f"day {_list(_runs(_values(days.days)))}"] if days.days else []
    if days.last_day:
        dates.append("the last day")
    weekdays = [_name(WEEKDAY, value) for value in _values(days.weekdays)]
    weekdays += [f"the {_ORDINALS[bit // 7]} {_name(WEEKDAY, bit % 7)}" for bit in _values(days.nth_weekdays)]
    weekdays += [f"the last {_name(WEEKDAY, value)}" for value in _values(days.last_weekdays)]
    date_words = f"on {_list(dates)} of the month" if _restricts_dates(days) else ""
    weekday_words = f"on {_list(weekdays)}" if _restricts_weekdays(days) else ""
    if either:
        # With this rule an unrestricted field without a star matches every day.
        return f"{date_words} or {weekday_words}" if date_words and weekday_words else ""
    if date_words and weekday_words:
        return f"{date_words} if it is {weekday_words.removeprefix('on ')}"
    return date_words or weekday_words


def _restricts_dates(days: DayFields) -> bool:
    return days.days != DAY.every


def _restricts_weekdays(days: DayFields) -> bool:
    return days.weekdays != WEEKDAY.every


def _values(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _runs(values: list[int]) -> list[str]:
    """Join consecutive values: 1, 2, 3, 7 → "1 to 3", "7"."""
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return [
        word
        for first, last in runs
        for word in (
            [str(first)] if first == last else [str(first), str(last)] if last == first + 1 else [f"{first} to {last}"]
        )
    ]


def _name(field: Field, value: int) -> str:
    return next(name for name, number in field.names.items() if number == value and len(name) > 1).capitalize()


def _list(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
