"""Parses the five fields of a cron expression into sets of values.

Expressions that cannot be run exactly are refused. The rest is rewritten into plain numbers, which croniter expands.
Forms that croniter misreads (``59-59``, ``5-5/3``, ``55-5/3``, ``*,5``) never reach it. The text is bounded by
``LENGTH_MAX``, the work by a constant per character.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from croniter import croniter

from celery_wheelbeat.errors import InvalidSchedule

if TYPE_CHECKING:
    from collections.abc import Collection

LENGTH_MAX = 1000
"""Longest expression in characters; a list of every value of every field is shorter."""

_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")


_STAR = re.compile(r"\*(?:/([0-9]{1,4}))?")
_RANGE = re.compile(r"([0-9]{1,2}|[a-z]{3,9})(?:-([0-9]{1,2}|[a-z]{3,9}))?(?:/([0-9]{1,4}))?")
_NTH = re.compile(r"([0-9]|[a-z]{3,9})#([0-9])")


def _numbered(names: tuple[str, ...], first: int) -> dict[str, int]:
    numbers = {name: first + index for index, name in enumerate(names)}
    return numbers | {name[:3]: number for name, number in numbers.items()}


class Field(NamedTuple):
    """One field of the grammar: its bounds and the names of its values."""

    title: str
    low: int
    high: int
    names: dict[str, int]

    @property
    def every(self) -> int:
        """Bit mask of all values."""
        return (1 << (self.high + 1)) - (1 << self.low)


MINUTE = Field("minute", 0, 59, {})
HOUR = Field("hour", 0, 23, {})
DAY = Field("day of month", 1, 31, {})
MONTH = Field("month", 1, 12, _numbered(_MONTHS, 1))
WEEKDAY = Field("day of week", 0, 6, _numbered(_WEEKDAYS, 0) | {"7": 0})
FIELDS = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)

_LAST_WEEKDAY = re.compile(rf"([0-9]|{'|'.join(WEEKDAY.names)})l")


class DayFields(NamedTuple):
    """The three fields that select days, as bit masks: bit ``k`` stands for the value ``k``."""

    days: int
    last_day: bool
    """``L`` in the day-of-month field."""
    months: int
    weekdays: int
    """Sunday is 0."""
    nth_weekdays: int
    """Bit ``7·(n-1) + weekday`` stands for ``weekday#n``."""
    last_weekdays: int
    """``5L``: the last Friday of the month."""
    day_star: bool
    """The day-of-month field starts with a star."""
    weekday_star: bool


class CronFields(NamedTuple):
    """A parsed expression. ``text``: in lower case, with single spaces and macros expanded."""

    text: str
    minutes: int
    hours: int
    fixed_time: bool
    """Neither the minute nor the hour field starts with a star."""
    day_fields: DayFields


@lru_cache(maxsize=16_384)
def parse(expression: str) -> CronFields:
    """Parse five cron fields or a macro. Raises ``InvalidSchedule`` with the field, the part and the remedy."""
    texts = _split(expression)
    plain: list[str] = []
    special = _Special()
    for field, text in zip(FIELDS, texts, strict=True):
        parts = [_rewrite(expression, field, part, special) for part in text.split(",")]
        plain.append(",".join(filter(None, parts)))
    minutes, hours, days, months, weekdays = _expand(expression, plain)
    return CronFields(
        text=" ".join(texts),
        minutes=minutes,
        hours=hours,
        fixed_time=not (texts[0].startswith("*") or texts[1].startswith("*")),
        day_fields=DayFields(
            days=days,
            last_day=special.last_day,
            months=months,
            weekdays=weekdays,
            nth_weekdays=special.nth_weekdays,
            last_weekdays=special.last_weekdays,
            day_star=texts[2].startswith("*"),
            weekday_star=texts[4].startswith("*"),
        ),
    )


def render(field: Field, values: Collection[int], *, star: bool) -> str:
    """Return a set of values as a field that ``parse`` reads back; it starts with a star if ``star``.

    With ``star``, the set must contain the lowest value of the field.
    """
    numbers = sorted(values)
    if not numbers or not all(isinstance(number, int) and field.low <= number <= field.high for number in numbers):
        raise InvalidSchedule(
            f"cron {field.title} field, {numbers}: expected at least one number, from {field.low} to {field.high}"
        )
    if star:
        step = numbers[1] - numbers[0] if len(numbers) > 1 else field.high + 1
        if step == 1 and len(numbers) == field.high - field.low + 1:
            return "*"
        if numbers == list(range(field.low, field.high + 1, step)):
            return f"*/{step}"
        return f"*/{field.high + 1}," + ",".join(map(str, numbers[1:]))
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


class _Special:
    """Parts without a plain number, collected while the fields are rewritten."""

    def __init__(self) -> None:
        self.last_day = False
        self.nth_weekdays = 0
        self.last_weekdays = 0


def _split(expression: str) -> list[str]:
    if len(expression) > LENGTH_MAX:
        raise InvalidSchedule(f"cron expression of {len(expression)} characters: expected at most {LENGTH_MAX}")
    if not expression.isascii():
        raise InvalidSchedule(f"cron {expression!r:.200}: expected ASCII characters only")
    texts = expression.lower().split()
    if len(texts) == 1 and texts[0].startswith("@"):
        if texts[0] not in _MACROS:
            raise InvalidSchedule(f"cron {expression!r:.200}: unknown macro, expected one of {', '.join(_MACROS)}")
        texts = _MACROS[texts[0]].split()
    if len(texts) != len(FIELDS):
        raise InvalidSchedule(
            f"cron {expression!r:.200} has {len(texts)} fields: expected five (minute hour day-of-month month "
            "day-of-week) or a macro such as @daily; seconds and years are not supported, and for a plain "
            "repetition an interval is the right schedule"
        )
    return texts


def _rewrite(expression: str, field: Field, part: str, special: _Special) -> str:
    """Return ``part`` as plain numbers; "" if it was added to ``special``."""
    if star := _STAR.fullmatch(part):
        return _plain_range(field.low, field.high, _step(expression, field, star[1]))
    if field is WEEKDAY and (match := _LAST_WEEKDAY.fullmatch(part)):
        special.last_weekdays |= 1 << _value(expression, field, match[1])
        return ""
    if match := _RANGE.fullmatch(part):
        return _rewrite_range(expression, field, match)
    if field is DAY and part == "l":
        special.last_day = True
        return ""
    if field is WEEKDAY and (match := _NTH.fullmatch(part)):
        if not 1 <= int(match[2]) <= 5:
            raise _refusal(expression, field, part, "a month has at most five of one weekday, expected #1 to #5")
        special.nth_weekdays |= 1 << (7 * (int(match[2]) - 1) + _value(expression, field, match[1]))
        return ""
    raise _refusal(expression, field, part, _reason(field, part))


def _rewrite_range(expression: str, field: Field, match: re.Match[str]) -> str:
    """Rewrite ``a``, ``a-b``, ``a/step`` and ``a-b/step``; a range that ends below its start wraps."""
    first = _value(expression, field, match[1])
    step = _step(expression, field, match[3])
    if field is WEEKDAY and match[1] == "7" and match[2] is None and match[3] is not None:
        reason = f"crons differ in what a step from 7 means, write 0/{step}, or 0 for Sunday alone"
        raise _refusal(expression, field, match[0], reason)
    if match[2] is None:
        return str(first) if match[3] is None else _plain_range(first, field.high, step)
    last = _value(expression, field, match[2])
    if field is WEEKDAY and first == 0 and match[1] != "7" and match[2] == "7":
        last = field.high  # Sunday to Sunday is the whole week
    if first <= last:
        return _plain_range(first, last, step)
    # The step continues across the wrap: 55-5/3 is 55, 58, 1, 4.
    size = field.high - field.low + 1
    length = last - first + size + 1
    return ",".join(str((first - field.low + ahead) % size + field.low) for ahead in range(0, length, step))


def _plain_range(first: int, last: int, step: int) -> str:
    if first + step > last:
        return str(first)
    return f"{first}-{last}/{step}"


def _value(expression: str, field: Field, text: str) -> int:
    named = field.names.get(text)
    if named is not None:
        return named
    if not text.isdigit():
        raise _refusal(expression, field, text, _reason(field, text))
    number = int(text)
    if not field.low <= number <= field.high:
        raise _refusal(expression, field, text, f"out of range, expected {field.low} to {field.high}")
    return number


def _step(expression: str, field: Field, text: str | None) -> int:
    if text is None:
        return 1
    if int(text) == 0:
        raise _refusal(expression, field, f"/{text}", "a step of 0 never advances, expected 1 or more")
    return int(text)


def _reason(field: Field, part: str) -> str:
    if part == "":
        return "an empty item, remove the extra comma"
    if part == "?":
        return "'?' is not supported, write '*'"
    if field is DAY and re.fullmatch(r"[0-9]{0,2}l?w", part):
        return "'W' (nearest working day) is not supported"
    if part in MONTH.names or part in WEEKDAY.names:
        return "this name belongs to another field"
    names = " or a name such as " + max(field.names, key=len) if field.names else ""
    return f"expected '*', a number from {field.low} to {field.high}{names}, a range or a list, with an optional /step"


def _refusal(expression: str, field: Field, part: str, reason: str) -> InvalidSchedule:
    return InvalidSchedule(f"cron {expression!r:.200}: {field.title} field, {part!r:.80}: {reason}")


def _expand(expression: str, plain: list[str]) -> list[int]:
    """Expand the rewritten fields with croniter; returns a bit mask per field, 0 for an empty one."""
    try:
        values, _ = croniter.expand(" ".join(text or "*" for text in plain))
    except ValueError as error:
        raise InvalidSchedule(f"cron {expression!r:.200}: {error}") from error
    masks = []
    for field, text, expanded in zip(FIELDS, plain, values, strict=True):
        mask = field.every if "*" in expanded else sum(1 << int(value) for value in set(expanded))
        masks.append(mask if text else 0)
    return masks
