"""Any text as a cron: a schedule that runs, with all its answers in agreement, or ``InvalidSchedule``; nothing else."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.examples import examples

from celery_wheelbeat import Cron, InvalidSchedule
from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.jobs.validation import cron_of
from celery_wheelbeat.schedules.cron_days import Days
from celery_wheelbeat.schedules.fire_times import fires
from celery_wheelbeat.schedules.intervals import Bounded
from celery_wheelbeat.schedules.zones import EARLIEST_S, LATEST_S, Zone
from celery_wheelbeat.sources.beat_schedule.celery_objects import celery_schedule_of

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
LONG = ["january", "september", "monday", "saturday"]
BOUNDS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]
NAMES: list[dict[str, int]] = [
    {},
    {},
    {},
    {name: number for number, name in enumerate(MONTHS, start=1)} | {"january": 1, "september": 9},
    {name: number for number, name in enumerate(WEEKDAYS)} | {"monday": 1, "saturday": 6},
]
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Tehran",
    "Pacific/Apia",
    "Africa/Cairo",
]
STEPS_MAX = 3_000
"""What a search takes at most: an unlucky date on 29 February, missed by the clock change of its zone now and then."""


def values(place: int) -> st.SearchStrategy[str]:
    """Numbers in and around the bounds, zeros in front, names in any case, and what looks like one of them."""
    low, high = BOUNDS[place]
    numbers = st.one_of(st.integers(low, high), st.integers(-1, high + 2)).map(str)
    odd = st.sampled_from(
        [
            "00",
            "007",
            "+5",
            "-5",
            "0x1",
            "1_0",
            "1.5",
            "1e1",
            "٣",
            "５",
            "²",
            "99999",
            "9" * 40,
            "R",
            "H",
            "?",
            "",
            "*",
            "**",
        ]
    )
    names = st.sampled_from([*MONTHS, *WEEKDAYS, *LONG, "l", "w", "lw", "mond", "*", "x"])
    cased = st.tuples(names, st.sampled_from([str.lower, str.upper, str.title])).map(lambda drawn: drawn[1](drawn[0]))
    return st.one_of(numbers, numbers, numbers, numbers.map(lambda text: "0" + text), cased, odd)


def items(place: int) -> st.SearchStrategy[str]:
    """One item of a list: stars, values, ranges, steps, and the marks of special days, in place and out of place."""
    value = values(place)
    step = st.one_of(st.integers(0, 80).map(str), st.sampled_from(["", "00", "9999", "10000", "*", "-1", "1/2", "mon"]))
    base = st.one_of(
        st.just("*"), st.just("*"), value, value, st.tuples(value, value).map("-".join), st.just("1-2-3"), st.just("-")
    )
    stepped = st.tuples(base, step).map("/".join)
    marked = st.tuples(value, st.sampled_from(["L", "l", "#1", "#5", "#0", "#6", "#", "W", "-L", "#1#2"])).map("".join)
    return st.one_of(base, base, stepped, marked, st.sampled_from(["L", "W", "LW", "L-3", "15W", "*/", "/5", "@daily"]))


def lists(place: int) -> st.SearchStrategy[str]:
    return st.lists(items(place), min_size=1, max_size=4).map(",".join)


SEPARATORS = st.sampled_from(
    [" ", " ", " ", " ", "  ", "\t", "\n", "\r\n", "\x0b", "\x1f", "\u00a0", "\u3000", "\0", ""]
)
MACROS = st.sampled_from(
    [
        "@daily",
        "@DAILY",
        "@Weekly",
        "@yearly",
        "@annually",
        "@midnight",
        "@hourly",
        "@reboot",
        "@",
        "@ daily",
        "@every 5m",
    ]
)


@st.composite
def nearly(draw: st.DrawFn) -> str:
    """Five fields, now and then four or six, between separators that are not always one."""
    fields = [draw(lists(place)) for place in range(5)]
    if draw(st.integers(0, 9)) == 0:
        fields.insert(draw(st.integers(0, 5)), draw(lists(0)))
    if draw(st.integers(0, 9)) == 0:
        del fields[draw(st.integers(0, len(fields) - 1))]
    text = draw(SEPARATORS) if draw(st.integers(0, 9)) == 0 else ""
    for field in fields:
        text += field + (draw(SEPARATORS) if draw(st.integers(0, 9)) == 0 else " ")
    return text


def plain_items(place: int) -> st.SearchStrategy[str]:
    """What is accepted, mostly, so that enough is left to compare."""
    low, high = BOUNDS[place]
    value = st.one_of(st.integers(low, high).map(str), st.sampled_from([*NAMES[place], str(low)]))
    step = st.integers(1, 40).map(str)
    plain = st.one_of(
        st.just("*"),
        st.tuples(st.just("*"), step).map("/".join),
        value,
        st.tuples(value, value).map("-".join),
        st.tuples(value, step).map("/".join),
        st.tuples(st.tuples(value, value).map("-".join), step).map("/".join),
    )
    if place == 2:
        return st.one_of(plain, plain, st.just("L"))
    if place == 4:
        return st.one_of(plain, plain, value.map(lambda text: text + "L"), value.map(lambda text: text + "#2"))
    return plain


plain_texts = st.tuples(
    *(st.lists(plain_items(place), min_size=1, max_size=3).map(",".join) for place in range(5))
).map(" ".join)
texts = st.one_of(
    nearly(), nearly(), plain_texts, MACROS, st.text(max_size=30),
    st.text("0123456789*/,-LW#?@ \tabcnotuesx", max_size=30),
    st.tuples(nearly(), st.integers(1, 3_000)).map(lambda drawn: drawn[0] * drawn[1]),
)  # fmt: skip


class Work:
    """Steps of a search: zones asked for a segment, days asked for the next one."""

    def __init__(self) -> None:
        self.steps = 0


@pytest.fixture(scope="module")
def work() -> Work:
    counted = Work()
    patch = pytest.MonkeyPatch()
    for owner, name in ((Zone, "segment"), (Days, "at_or_after"), (Days, "count")):
        original = getattr(owner, name)

        def counting(self: object, *args: int, original: object = original) -> object:
            counted.steps += 1
            return original(self, *args)  # type: ignore[operator]

        patch.setattr(owner, name, counting)
    yield counted
    patch.undo()


def cron_or_reason(text: str, zone: str, rule: str) -> Cron | str:
    try:
        return Cron(text, zone, rule)
    except InvalidSchedule as error:
        return str(error)


@examples(120)
@given(texts, st.sampled_from(ZONES), st.sampled_from(["and", "or"]), st.integers(EARLIEST_S * 1000, LATEST_S * 1000))
@example("5,* * * * *", "UTC", "and", 1_750_000_000_000)
@example("*,5 * L,* *,jan *,3#2", "UTC", "or", 1_750_000_000_000)
@example("0 0 * * friL", "UTC", "and", 1_750_000_000_000)
@example("0 0 29 2 1", "Africa/Cairo", "and", LATEST_S * 1000 - 1)
@example("\0" * 5_000 + "* * * * *" * 1_000, "UTC", "and", 0)
@example("\0" * 995 + " * * * *", "UTC", "and", 0)
@example("\ud800 * * * *", "UTC", "and", 0)
def test_a_text_is_a_schedule_that_runs_or_is_refused(
    work: Work, text: str, zone: str, rule: str, after_ms: int
) -> None:
    work.steps = 0
    cron, checked = cron_or_reason(text, zone, rule), cron_of(text, zone, rule)
    if isinstance(cron, str):
        assert isinstance(checked, InvalidMonitor)
        assert (checked.field, checked.reason) == ("cron", cron)
        assert 10 < len(cron) < 600
        return
    assert checked == cron
    assert cron.describe()
    assert all(cron.warnings(after_ms))
    assert celery_schedule_of(Bounded(cron))
    ahead = list(islice(fires(cron, after_ms), 30))
    assert work.steps < STEPS_MAX * (1 + len(ahead))
    if not ahead:
        assert after_ms > (LATEST_S - 402 * 366 * 86_400) * 1000, (
            "a schedule that runs comes at least once in four hundred years"
        )
        return
    assert ahead == sorted(set(ahead))
    assert ahead[0] > after_ms
    for number, fire_ms in enumerate(ahead, start=1):
        assert cron.count(after_ms, fire_ms) == number
        assert cron.count(after_ms, fire_ms - 1) == number - 1
        assert cron.last_fire(after_ms, fire_ms) == fire_ms
        assert cron.next_fire(fire_ms - 1) == fire_ms
    assert cron.last_fire(after_ms, ahead[0] - 1) is None


class Meaning(NamedTuple):
    """What the five fields of a text choose, read without the code under test."""

    minutes: set[int]
    hours: set[int]
    days: set[int]
    last_day: bool
    months: set[int]
    weekdays: set[int]
    nth: set[tuple[int, int]]
    last_weekdays: set[int]


def value_of(text: str, place: int) -> int:
    return NAMES[place].get(text.lower(), int(text) if text.isdigit() else -1)


def chosen(item: str, place: int) -> set[int]:
    """The values of one item without ``L`` and ``#``; 7 is Sunday, and a range may lead over the end of its field."""
    low, high = BOUNDS[place]
    base, _, step = item.partition("/")
    if base == "*":
        found = list(range(low, 7 if place == 4 else high + 1))
    elif "-" in base:
        first, last = (value_of(text, place) for text in base.split("-"))
        if place == 4:
            first, last = (0 if first == 7 else first), (0 if last == 7 and first else last)
            last = 6 if first == 0 and base.split("-")[1] == "7" and base.split("-")[0] != "7" else last
            last = 0 if base == "7-7" else last
        high = 6 if place == 4 else high
        found = [first]
        while found[-1] != last:
            found.append(found[-1] + 1 if found[-1] < high else low)
    else:
        first = value_of(base, place)
        first = 0 if place == 4 and first == 7 else first
        found = list(range(first, (6 if place == 4 else high) + 1)) if step else [first]
    return set(found[:: int(step or 1)])


def meaning_of(text: str) -> Meaning:
    found = Meaning(set(), set(), set(), "L" in text.split()[2].split(","), set(), set(), set(), set())
    plain = (found.minutes, found.hours, found.days, found.months, found.weekdays)
    for place, field in enumerate(text.split()):
        for item in field.split(","):
            if place == 4 and item.endswith("L"):
                found.last_weekdays.add(value_of(item[:-1], 4) % 7)
            elif place == 4 and "#" in item:
                found.nth.add((value_of(item.split("#")[0], 4) % 7, int(item.split("#")[1])))
            elif item != "L":
                plain[place].update(chosen(item, place))
    return found


def is_day(found: Meaning, day: date, *, either: bool) -> bool:
    """Whether the three day fields choose the day."""
    weekday, after = day.isoweekday() % 7, day + timedelta(days=7)
    by_date = day.day in found.days or (found.last_day and (day + timedelta(days=1)).day == 1)
    by_weekday = (
        weekday in found.weekdays
        or (weekday, (day.day + 6) // 7) in found.nth
        or (weekday in found.last_weekdays and after.month != day.month)
    )
    return day.month in found.months and ((by_date or by_weekday) if either else (by_date and by_weekday))


@examples(150)
@given(plain_texts, st.booleans(), st.dates(date(1900, 1, 1), date(2200, 1, 1)))
def test_the_days_and_minutes_are_those_of_a_reading_by_sets(text: str, either: bool, begin: date) -> None:
    found, fields = meaning_of(text), text.split()
    either = either and not (fields[2].startswith("*") or fields[4].startswith("*"))
    cron = cron_or_reason(text, "UTC", "or" if either else "and")
    stepped_from_7 = any(item.startswith("7/") for item in fields[4].split(","))
    assert stepped_from_7 is (isinstance(cron, str) and "a step from 7" in cron)
    if stepped_from_7:
        return
    if isinstance(cron, str):
        assert "never fires" in cron
        cycle = (date(2000, 1, 1) + timedelta(days=number) for number in range(146_097))
        assert not any(is_day(found, day, either=either) for day in cycle)
        return
    day = begin
    while not is_day(found, day, either=either) and day < begin + timedelta(days=800):
        day += timedelta(days=1)
    if day == begin + timedelta(days=800):
        day = datetime.fromtimestamp(next(fires(cron, ms_of(begin) - 1)) / 1000, UTC).date()
        assert day >= begin
        assert is_day(found, day, either=either)
    expected = [
        datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC)
        for hour in sorted(found.hours)
        for minute in sorted(found.minutes)
    ]
    after = datetime(begin.year, begin.month, begin.day, tzinfo=UTC) - timedelta(milliseconds=1)
    assert cron.next_fires(after, len(expected)) == expected
    assert cron.count(ms_of(begin) - 1, ms_of(day) + 86_400_000 - 1) == len(expected)


def ms_of(day: date) -> int:
    return round(datetime(day.year, day.month, day.day, tzinfo=ZoneInfo("UTC")).timestamp() * 1000)
