"""Counting a cron's fire times gives what walking them gives, around clock changes too."""

from __future__ import annotations

from datetime import datetime
from itertools import combinations, takewhile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.definitions import Job, batch_of

from celery_wheelbeat.errors import InvalidSchedule
from celery_wheelbeat.schedules.columns import spans
from celery_wheelbeat.schedules.cron import Cron, CronTable
from celery_wheelbeat.schedules.fire_times import fires, ms_of
from celery_wheelbeat.schedules.zones import Segment, Zone

if TYPE_CHECKING:
    from numpy.typing import NDArray

DAY_MS = 86_400_000
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Tehran",
    "Pacific/Apia",
    "Africa/Cairo",
)
BEGIN_MS = 1_293_840_000_000  # 2011-01-01, so that Samoa's lost day is among the days
SPAN_MS = 5_000 * DAY_MS

minutes = st.sampled_from(["*", "0", "30", "*/7", "5,59", "0-10"])
hours = st.sampled_from(["*", "2", "*/3", "0", "1-3", "23", "2,3"])
days = st.sampled_from(["*", "1", "29-31", "*/2", "15"])
months = st.sampled_from(["*", "2", "3,10,11", "*/5"])
weekdays = st.sampled_from(["*", "0", "1-5", "6"])


@st.composite
def crons(draw: st.DrawFn) -> Cron:
    text = " ".join(draw(part) for part in (minutes, hours, days, months, weekdays))
    try:
        return Cron(text, draw(st.sampled_from(ZONES)), draw(st.sampled_from(["and", "or"])))
    except InvalidSchedule:
        return Cron("30 2 * * *", "Europe/Berlin")


@given(crons(), st.integers(BEGIN_MS, BEGIN_MS + SPAN_MS), st.integers(0, 40 * DAY_MS))
def test_what_is_counted_is_what_is_walked(cron: Cron, after_ms: int, span_ms: int) -> None:
    until_ms = after_ms + span_ms
    walked = list(takewhile(lambda fire: fire <= until_ms, fires(cron, after_ms)))
    assert cron.count(after_ms, until_ms) == len(walked)
    assert cron.last_fire(after_ms, until_ms) == (walked[-1] if walked else None)


CLOCK_CHANGES = [
    ("Europe/Berlin", "2025-03-30T01:00Z"),
    ("Europe/Berlin", "2025-10-26T01:00Z"),
    ("America/New_York", "2024-03-10T07:00Z"),
    ("America/New_York", "2024-11-03T06:00Z"),
    ("Australia/Lord_Howe", "2024-04-06T15:00Z"),
    ("Australia/Lord_Howe", "2024-10-05T15:30Z"),
    ("Antarctica/Troll", "2024-03-31T01:00Z"),
    ("Antarctica/Casey", "2010-03-04T15:00Z"),
    ("Asia/Tehran", "2021-03-21T20:30Z"),
    ("Africa/Cairo", "2024-04-25T22:00Z"),
    ("Pacific/Chatham", "2024-09-28T14:00Z"),
    ("America/Caracas", "2016-05-01T07:00Z"),
    ("Africa/Monrovia", "1972-01-07T00:44:30Z"),
    ("Africa/Freetown", "1939-09-01T01:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00Z"),
]
"""A zone and an instant at which its clock is moved."""


@pytest.mark.parametrize(("zone", "change"), CLOCK_CHANGES)
def test_every_stretch_around_a_clock_change_is_counted_as_it_is_walked(zone: str, change: str) -> None:
    """A slot swallowed by the change and a slot at the end of the skipped stretch are one fire time."""
    change_ms = ms_of(datetime.fromisoformat(change))
    instants = [change_ms + ms for ms in (-14_400_000, -3_600_000, -60_000, -1, 0, 1, 60_000, 3_600_000, 7_200_000)]
    for hour in ("*", "2,3", "2-4", "0-1", "0,1,3", "*/2", "21-4", "1-9/2"):
        for minute in ("0", "*", "0,30", "15-44", "0,59"):
            cron = Cron(f"{minute} {hour} * * *", zone)
            walked = list(takewhile(lambda fire: fire <= instants[-1], fires(cron, instants[0])))
            for after_ms, until_ms in combinations(instants, 2):
                expected = [fire for fire in walked if after_ms < fire <= until_ms]
                assert cron.count(after_ms, until_ms) == len(expected), (cron, after_ms, until_ms)
                last_ms = cron.last_fire(after_ms, until_ms)
                assert last_ms == (expected[-1] if expected else None), (cron, after_ms, until_ms)


@given(
    crons(),
    st.lists(
        st.tuples(st.integers(0, 20 * DAY_MS), st.integers(0, 20 * DAY_MS), st.integers(0, 60)), min_size=1, max_size=5
    ),
    st.integers(BEGIN_MS, BEGIN_MS + SPAN_MS),
)
def test_the_jobs_of_a_group_share_what_lies_between(
    cron: Cron, jobs: list[tuple[int, int, int]], begin_ms: int
) -> None:
    table = CronTable()
    batch = batch_of(
        [Job(number, cron=cron, offset_ms=offset * 1000) for number, (_, _, offset) in enumerate(jobs)], table
    )
    after = np.array([begin_ms + late for late, _, _ in jobs])
    until = after + np.array([length for _, length, _ in jobs])
    found = spans(batch.schedules(), after, until, table)
    for number, (_, _, offset) in enumerate(jobs):
        low, high = int(after[number]) - offset * 1000, int(until[number]) - offset * 1000
        walked = list(takewhile(lambda fire: fire <= high, fires(cron, low)))  # noqa: B023 - used up at once
        assert found.counts[number] == len(walked)
        if walked:
            assert found.newest_ms[number] == walked[-1] + offset * 1000


def looks_for(monkeypatch: pytest.MonkeyPatch, after: NDArray[np.int64], until: NDArray[np.int64]) -> int:
    """Count the jobs of one group, every minute, and return how often the next fire time was asked for."""
    asked = []
    walk = Cron.next_fire
    monkeypatch.setattr(Cron, "next_fire", lambda cron, after_ms: asked.append(after_ms) or walk(cron, after_ms))
    table = CronTable()
    batch = batch_of([Job(number, cron=Cron("* * * * *"), offset_ms=number * 1000) for number in range(60)], table)
    found = spans(batch.schedules(), after, until, table)
    offset = batch.offset_ms
    expected = np.maximum((until - offset) // 60_000 - (after - offset) // 60_000, 0)
    assert found.counts.tolist() == expected.tolist()
    newest = (until - offset) // 60_000 * 60_000 + offset
    assert found.newest_ms[expected > 0].tolist() == newest[expected > 0].tolist()
    return len(asked)


def test_a_year_away_costs_no_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """B136: after a jump of the clock every minute was walked."""
    after = np.full(60, BEGIN_MS)
    assert looks_for(monkeypatch, after, after + 366 * DAY_MS) < 20


@pytest.mark.parametrize("begins_late", [True, False])
def test_one_job_apart_does_not_make_its_group_walk(monkeypatch: pytest.MonkeyPatch, *, begins_late: bool) -> None:
    """Edited while the beat was away, or ended before: the stretch that is common to all jobs is then empty."""
    after, until = np.full(60, BEGIN_MS), np.full(60, BEGIN_MS + 366 * DAY_MS)
    if begins_late:
        after[7] = until[7] - 1
    else:
        until[7] = BEGIN_MS
    assert looks_for(monkeypatch, after, until) < 40


def test_a_job_that_begins_in_a_thousand_years_makes_nobody_look_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    furthest_s = 0
    segment = Zone.segment

    def looking(zone: Zone, instant_s: int) -> Segment:
        nonlocal furthest_s
        furthest_s = max(furthest_s, instant_s)
        return segment(zone, instant_s)

    monkeypatch.setattr(Zone, "segment", looking)
    after, until = np.full(60, BEGIN_MS), np.full(60, BEGIN_MS + 366 * DAY_MS)
    after[7] = BEGIN_MS + 1_000 * 366 * DAY_MS
    looks_for(monkeypatch, after, until)
    assert furthest_s <= (BEGIN_MS + 367 * DAY_MS) // 1000


def test_as_many_looks_as_begins_and_ends_however_long_the_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    source = np.random.default_rng(7)
    after = BEGIN_MS + source.integers(0, 366 * DAY_MS, 60)
    until = BEGIN_MS + source.integers(0, 366 * DAY_MS, 60)
    assert looks_for(monkeypatch, after, until) < 20 * 120
