"""Cron against three independent judges: a replay of every minute, Celery's own crontab, and random text."""

from __future__ import annotations

import random
import tracemalloc
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab
from hypothesis import assume, given
from hypothesis import strategies as st
from support.examples import examples

from celery_wheelbeat import Cron, InvalidSchedule
from celery_wheelbeat.schedules import cron_fields
from celery_wheelbeat.schedules.zones import Zone
from celery_wheelbeat.sources.beat_schedule.celery_schedules import translate

MINUTE = timedelta(minutes=1)
MONTH_LENGTHS = dict(enumerate((31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), start=1))

# Zone and the hour around which its clock changes: forward, backward, by an hour, half an hour, two hours,
# three hours, at midnight, at a quarter, at the end of Ramadan, for good, and by a whole day.
CHANGES = [
    ("America/New_York", "2024-03-10T07:00Z"),
    ("America/New_York", "2024-11-03T06:00Z"),
    ("Europe/Berlin", "2025-03-30T01:00Z"),
    ("Europe/Dublin", "2025-10-26T01:00Z"),
    ("Australia/Lord_Howe", "2024-04-06T15:00Z"),
    ("Australia/Lord_Howe", "2024-10-05T15:00Z"),
    ("Africa/Cairo", "2024-04-25T22:00Z"),
    ("Africa/Cairo", "2024-10-31T21:00Z"),
    ("Pacific/Chatham", "2024-09-28T14:00Z"),
    ("Antarctica/Troll", "2024-10-27T01:00Z"),
    ("Antarctica/Casey", "2010-03-04T15:00Z"),
    ("Africa/Casablanca", "2024-04-14T02:00Z"),
    ("Asia/Pyongyang", "2018-05-04T15:00Z"),
    ("America/Caracas", "2007-12-09T07:00Z"),
    ("America/Santiago", "2024-04-07T03:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00Z"),
    ("Asia/Kathmandu", "2024-01-01T00:00Z"),
]


class Drawn(NamedTuple):
    """Sets of values together with the text that says so."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    fixed_time: bool


def field(low: int, high: int) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """One field and the values it stands for, expanded without the code under test."""
    values = st.integers(low, high)
    every = frozenset(range(low, high + 1))
    stepped = st.integers(1, high).map(lambda step: (f"*/{step}", frozenset(range(low, high + 1, step))))
    ranges = st.tuples(values, values, st.integers(1, 9)).map(
        lambda drawn: (
            f"{min(drawn[:2])}-{max(drawn[:2])}/{drawn[2]}",
            frozenset(range(min(drawn[:2]), max(drawn[:2]) + 1, drawn[2])),
        )
    )
    lists = st.lists(values, min_size=1, max_size=4).map(lambda drawn: (",".join(map(str, drawn)), frozenset(drawn)))
    return st.one_of(st.just(("*", every)), stepped, ranges, lists)


@st.composite
def crons(draw: st.DrawFn, *, dense_days: bool) -> Drawn:
    minutes, hours = draw(field(0, 59)), draw(field(0, 23))
    days = draw(st.one_of(st.just(("*", frozenset(range(1, 32)))), field(1, 31)))
    months = ("*", frozenset(range(1, 13))) if dense_days else draw(field(1, 12))
    weekdays = draw(st.one_of(st.just(("*", frozenset(range(7)))), field(0, 6)))
    return Drawn(
        " ".join(drawn[0] for drawn in (minutes, hours, days, months, weekdays)),
        minutes[1],
        hours[1],
        days[1],
        months[1],
        weekdays[1],
        not (minutes[0].startswith("*") or hours[0].startswith("*")),
    )


@lru_cache(maxsize=64)
def minutes_around(name: str, change: str) -> list[tuple[datetime, datetime, timedelta]]:
    """Every minute of three days around a change: (UTC, wall time, offset)."""
    start = datetime.fromisoformat(change) - timedelta(hours=36)
    found = []
    for minute in range(72 * 60):
        instant = start + minute * MINUTE
        local = instant.astimezone(ZoneInfo(name))
        offset = local.utcoffset()
        assert offset is not None
        found.append((instant, local.replace(tzinfo=None, fold=0), offset))
    return found


def replay(drawn: Drawn, minutes: list[tuple[datetime, datetime, timedelta]]) -> list[datetime]:
    """What a daemon that wakes every minute and follows rules 1 to 4 would start."""

    def matches(wall: datetime) -> bool:
        return (
            wall.minute in drawn.minutes
            and wall.hour in drawn.hours
            and wall.day in drawn.days
            and wall.month in drawn.months
            and wall.isoweekday() % 7 in drawn.weekdays
        )

    fires, seen = [], set()
    previous = minutes[0][2]
    for instant, wall, offset in minutes:
        shift, previous = offset - previous, offset
        run = matches(wall)
        if drawn.fixed_time and timedelta(0) < shift <= timedelta(hours=3):
            skipped = [wall - ahead * MINUTE for ahead in range(1, shift // MINUTE + 1)]
            run = run or any(map(matches, skipped))
        if drawn.fixed_time and wall in seen:
            run = False
        seen.add(wall)
        if run:
            fires.append(instant)
    return fires


def may_fire(drawn: Drawn) -> bool:
    """Whether any of its months is long enough for any of its days; with every month allowed, weekdays come round."""
    return any(day <= MONTH_LENGTHS[month] for day in drawn.days for month in drawn.months)


@pytest.mark.promise("a-schedule-is-a-pure-function")
@examples(120)
@given(drawn=crons(dense_days=True), where=st.sampled_from(CHANGES))
def test_a_replay_of_every_minute_around_clock_changes(drawn: Drawn, where: tuple[str, str]) -> None:
    minutes = minutes_around(*where)
    expected = replay(drawn, minutes)
    try:
        cron = Cron(drawn.text, where[0])
    except InvalidSchedule:
        assert not may_fire(drawn)
        return
    fires = cron.next_fires(minutes[0][0] - MINUTE, len(expected) + 1)
    assert [fire for fire in fires if fire <= minutes[-1][0]] == expected


@pytest.mark.promise("a-schedule-is-a-pure-function")
@examples(100)
@given(
    drawn=crons(dense_days=True),
    where=st.sampled_from(CHANGES),
    seconds=st.integers(-36 * 3600, 36 * 3600),
    milliseconds=st.integers(0, 999),
)
def test_the_next_fire_is_the_first_of_all_later_ones(
    drawn: Drawn, where: tuple[str, str], seconds: int, milliseconds: int
) -> None:
    name, change = where
    after = datetime.fromisoformat(change) + timedelta(seconds=seconds, milliseconds=milliseconds)
    expected = [fire for fire in replay(drawn, minutes_around(name, change)) if fire > after]
    assume(may_fire(drawn))
    (fire,) = Cron(drawn.text, name).next_fires(after, 1)
    assert fire > after
    if expected:
        assert fire == expected[0]


FROM_2015 = datetime(2015, 1, 1, tzinfo=UTC)
APP = Celery("judge", timezone="UTC", set_as_current=False)


@examples(100)
@given(
    drawn=crons(dense_days=False),
    name=st.sampled_from(["UTC", "Asia/Tokyo", "Asia/Kathmandu", "America/Bogota"]),
    after=st.integers(0, 20 * 365 * 86_400).map(lambda second: FROM_2015 + timedelta(seconds=second)),
)
def test_celerys_crontab_agrees_where_no_clock_changes(drawn: Drawn, name: str, after: datetime) -> None:
    minute, hour, day_of_month, month_of_year, day_of_week = drawn.text.split()
    fields = {
        "minute": minute,
        "hour": hour,
        "day_of_month": day_of_month,
        "month_of_year": month_of_year,
        "day_of_week": day_of_week,
    }
    try:
        celerys = crontab(**fields, nowfun=lambda: after, app=APP)
        ours = translate(crontab(**fields), timezone=name)
    except ValueError:
        with pytest.raises(InvalidSchedule, match="never fires"):
            Cron(drawn.text, name)
        return
    assert ours == Cron(drawn.text, name)
    celerys.tz = ZoneInfo(name)
    try:
        expected = after + celerys.remaining_estimate(after)
    except RuntimeError:  # Celery gives up on rare days after 2,000 guesses
        return
    assert ours is not None
    assert ours.next_fires(after, 1) == [expected]


MISTAKES = [
    "60", "32", "-1", "*/0", "1.5", "5-", "L", "W", "15W", "#", "1#6", "9L", "mon#0", "?",
    "R", "H", ",", "-", "/", "**", "1,,2", "*/2/3", "1_0", "+5", "@daily", "jann", "0x1",
]  # fmt: skip
GOOD = ["*", "0", "5", "7", "1-5", "*/15", "3/2", "5-5/3", "7,1", "*/2,3", "1-7/3", "5-2", "12"]
GOOD_DAYS = [*GOOD, "L", "31", "1,L", "29-31"]
GOOD_MONTHS = ["*", "jan", "dec-feb", "july", "1-12/5", "2"]
GOOD_WEEKDAYS = ["*", "1#2", "5L", "sun-tue", "monday", "7", "5-7", "0-7", "fri#5,2"]
ALPHABET = "0123456789*/,-LW#?@ abcdefghijklmnopqrstuvwxyz"


def random_texts(count: int) -> list[str]:
    """Half noise, half nearly right: in each field a mistake now and then."""
    source = random.Random(20_250_615)
    texts = []
    for number in range(count):
        if number % 2:
            texts.append("".join(source.choices(ALPHABET, k=source.randrange(30))))
        else:
            fields = [source.choice(good) for good in (GOOD, GOOD, GOOD_DAYS, GOOD_MONTHS, GOOD_WEEKDAYS)]
            if source.random() < 0.8:
                fields[source.randrange(5)] = source.choice(MISTAKES) + source.choice(["", "", ",1"])
            texts.append(" ".join(fields))
    return texts


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_random_text_is_valid_or_refused_and_a_search_stays_bounded(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    steps = 0
    segment = Zone.segment

    def counting(self: Zone, instant_s: int) -> object:
        nonlocal steps
        steps += 1
        return segment(self, instant_s)

    monkeypatch.setattr(Zone, "segment", counting)
    valid = 0
    for text in random_texts(count):
        try:
            cron = Cron(text)
        except InvalidSchedule:
            continue
        valid += 1
        steps = 0
        fire_ms = cron.next_fire(1_750_000_000_000)
        assert fire_ms is not None, text
        assert steps <= 200, text
    assert count // 20 < valid < count // 5


@pytest.mark.parametrize(
    "text",
    [
        ",".join(["*/1"] * 248) + " * * * *",
        "0-59," * 165 + "0 * * * *",
        "0 0 * * " + ",".join(["0-6/1"] * 160),
        "-" * 1000,
        "*" * 1000,
        "1 " * 500,
        "9" * 1000,
        "monday" * 160 + " * * * *",
    ],
)
def test_the_longest_texts_take_little_memory(text: str) -> None:
    cron_fields.parse.cache_clear()
    tracemalloc.start()
    try:
        Cron(text)
    except InvalidSchedule:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2_000_000
    assert cron_fields.parse.cache_info().maxsize is not None
