"""Intervals, one-time schedules, bounds and incidents; the vectorised form agrees with the scalar one."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from celery_wheelbeat import Interval, InvalidSchedule, Once
from celery_wheelbeat.schedules.columns import NOT_CRON, ScheduleColumns, next_fires
from celery_wheelbeat.schedules.cron import Cron, CronTable
from celery_wheelbeat.schedules.fire_times import fires
from celery_wheelbeat.schedules.intervals import (
    ALWAYS_MS,
    NEVER_MS,
    Bounded,
    count_grid_fires,
    last_grid_fire,
    next_grid_fire,
)

NOW_MS = 1_750_000_000_000
END_OF_9999_MS = 253_402_300_799_999


def first(schedule: Bounded | Interval | Once | Cron, after_ms: int, count: int) -> list[int]:
    return list(itertools.islice(fires(schedule, after_ms), count))


def test_an_interval_fires_on_its_grid_strictly_after() -> None:
    interval = Interval(60, offset_ms=17_000)
    assert interval.next_fire(16_999) == 17_000
    assert interval.next_fire(17_000) == 77_000
    assert interval.next_fire(-43_001) == -43_000
    assert interval.next_fire(-43_000) == 17_000
    assert Interval(60, anchor_ms=NOW_MS).next_fire(NOW_MS - 1) == NOW_MS


def test_intervals_as_datetimes() -> None:
    after = datetime(2025, 1, 1, tzinfo=UTC)
    assert Interval(timedelta(hours=6)).next_fires(after, 2) == [
        after + timedelta(hours=6),
        after + timedelta(hours=12),
    ]
    local = after.astimezone(tz=None)
    assert Interval(21_600).next_fires(local, 1)[0].tzinfo is UTC


@pytest.mark.promise("no-drift")
def test_ten_years_of_a_short_interval_do_not_drift() -> None:
    interval = Interval(0.1, offset_ms=30)
    start_ms = interval.next_fire(NOW_MS)
    assert start_ms is not None
    later_ms = interval.next_fire(start_ms + 10 * 365 * 86_400_000)
    assert later_ms is not None
    assert (later_ms - start_ms) % 100 == 0


@pytest.mark.parametrize("seconds", [0.001, 0.1, 1, 1.5, 0.007, 86_400, 36_525 * 86_400, timedelta(milliseconds=1)])
def test_lengths_that_can_be_kept(seconds: float | timedelta) -> None:
    length_s = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    assert Interval(seconds).interval_ms == round(length_s * 1000)


@pytest.mark.parametrize(
    "seconds",
    [0, -1, 0.0005, 1 / 3, float("nan"), float("inf"), 1e30, timedelta(0), timedelta(microseconds=1500), timedelta.max],
)
def test_lengths_that_cannot_be_kept_are_refused(seconds: float | timedelta) -> None:
    with pytest.raises(InvalidSchedule, match=r"interval of .* expected"):
        Interval(seconds)


def test_once_fires_once() -> None:
    once = Once(NOW_MS)
    assert first(once, NOW_MS - 5, 5) == [NOW_MS]
    assert once.next_fire(NOW_MS) is None
    assert once.next_fires(datetime.fromtimestamp(NOW_MS / 1000 - 1, UTC), 3) == [
        datetime.fromtimestamp(NOW_MS / 1000, UTC)
    ]


def test_values_compare_by_meaning() -> None:
    assert Interval(60) == Interval(timedelta(minutes=1))
    assert hash(Interval(60)) == hash(Interval(60.0))
    assert Once(5) == Once(5)
    assert Interval(60) != Interval(60, offset_ms=1)


def test_the_grid_is_one_arithmetic_for_ints_and_arrays() -> None:
    generator = np.random.default_rng(7)
    after = generator.integers(-(10**14), 3 * 10**14, 5000)
    interval = generator.integers(1, 10**10, 5000)
    anchor = generator.integers(-(10**13), 10**14, 5000)
    offset = generator.integers(0, interval)
    following = next_grid_fire(after, interval, anchor, offset)
    latest = last_grid_fire(after, interval, anchor, offset)
    until = after + generator.integers(0, 10**12, 5000)
    counted = count_grid_fires(after, until, interval, anchor, offset)
    for row, (a, i, n, o, u) in enumerate(
        zip(after.tolist(), interval.tolist(), anchor.tolist(), offset.tolist(), until.tolist(), strict=True)
    ):
        assert following[row] == next_grid_fire(a, i, n, o)
        assert latest[row] == last_grid_fire(a, i, n, o)
        assert counted[row] == count_grid_fires(a, u, i, n, o)
        assert a < following[row] <= a + i
        assert latest[row] == following[row] - i <= a
        assert (following[row] - n - o) % i == 0
        assert counted[row] == (int(last_grid_fire(u, i, n, o)) - int(latest[row])) // i


def test_the_grid_at_the_ends_of_time() -> None:
    for after_ms in (ALWAYS_MS, -62_135_596_800_000, END_OF_9999_MS):
        for interval_ms in (1, 86_400_000, 100 * 366 * 86_400_000):
            expected = next_grid_fire(after_ms, interval_ms, 5, 17_000)
            columns = (np.array([value], dtype=np.int64) for value in (after_ms, interval_ms, 5, 17_000))
            assert next_grid_fire(*columns).tolist() == [expected]


def test_bounds_include_the_start_and_exclude_the_end() -> None:
    minutely = Interval(60)
    bounded = Bounded(minutely, start_ms=120_000, end_ms=240_000)
    assert first(bounded, -(10**12), 9) == [120_000, 180_000]
    assert first(Bounded(minutely, start_ms=120_001, end_ms=240_001), 0, 9) == [180_000, 240_000]
    assert bounded.next_fire(180_000) is None


def test_cron_jitter_moves_every_fire_of_the_cron() -> None:
    moved = Bounded(Cron("*/5 * * * *"), offset_ms=17_000)
    assert first(moved, 0, 3) == [17_000, 317_000, 617_000]
    assert moved.next_fire(17_000) == 317_000
    assert moved.next_fire(16_999) == 17_000


def test_an_incident_replaces_the_grid_and_ends_by_itself() -> None:
    bounded = Bounded(Interval(60, offset_ms=7_000), incident_interval_ms=20_000, incident_until_ms=130_000)
    assert first(bounded, 60_000, 6) == [67_000, 87_000, 107_000, 127_000, 187_000, 247_000]
    assert bounded.next_fire(128_000) == 187_000, "asked between the last incident fire and its end: the base goes on"
    ends_on_a_fire = Bounded(Interval(60), incident_interval_ms=20_000, incident_until_ms=120_000)
    assert first(ends_on_a_fire, 90_000, 3) == [100_000, 120_000, 180_000]


def test_an_incident_keeps_the_base_fires_where_it_divides_the_interval() -> None:
    base = Interval(300, offset_ms=123_000, anchor_ms=-77)
    sped_up = set(first(Bounded(base, incident_interval_ms=10_000, incident_until_ms=NOW_MS + 10**7), NOW_MS, 900))
    assert set(first(base, NOW_MS, 20)) <= sped_up


def test_an_incident_may_be_slower_than_no_base_fire_is_lost_after_it() -> None:
    odd = Bounded(Interval(60), incident_interval_ms=7_000, incident_until_ms=100_000)
    assert first(odd, 80_000, 4) == [84_000, 91_000, 98_000, 120_000]


def test_an_incident_of_a_cron_has_the_phase_of_its_jitter() -> None:
    bounded = Bounded(Cron("0 3 * * *"), offset_ms=4_000, incident_interval_ms=60_000, incident_until_ms=200_000)
    assert first(bounded, 0, 5) == [4_000, 64_000, 124_000, 184_000, 3 * 3_600_000 + 4_000]


def test_an_incident_stays_within_the_bounds() -> None:
    bounded = Bounded(
        Interval(60), start_ms=50_000, end_ms=90_000, incident_interval_ms=10_000, incident_until_ms=500_000
    )
    assert first(bounded, 0, 9) == [50_000, 60_000, 70_000, 80_000]
    starts_later = Bounded(Interval(60), start_ms=500_000, incident_interval_ms=10_000, incident_until_ms=100_000)
    assert first(starts_later, 0, 2) == [540_000, 600_000]


def test_many_jobs_at_once_are_computed_as_one_by_one() -> None:
    generator = np.random.default_rng(11)
    size = 3000
    after = NOW_MS + generator.integers(-200_000, 200_000, size)
    interval = generator.integers(1, 120, size) * 1000
    anchor = generator.choice([0, NOW_MS - 12_345, NOW_MS + 999_999], size)
    offset = generator.integers(0, interval)
    start = np.where(generator.random(size) < 0.5, ALWAYS_MS, NOW_MS + generator.integers(-300_000, 300_000, size))
    end = np.where(generator.random(size) < 0.5, NEVER_MS, NOW_MS + generator.integers(-300_000, 300_000, size))
    incident = np.where(generator.random(size) < 0.5, 0, generator.integers(1, 50, size) * 500)
    until = np.where(incident > 0, NOW_MS + generator.integers(-300_000, 300_000, size), 0)
    no_cron = np.full(size, NOT_CRON, dtype=np.int32)
    columns = ScheduleColumns(interval, anchor + offset, no_cron, offset, start, end, incident, until)
    fire_ms = next_fires(columns, after, CronTable())
    given = (after, interval, anchor, offset, start, end, incident, until)
    rows = zip(*(column.tolist() for column in given), fire_ms.tolist(), strict=True)
    for asked, length, phase, moved, begins, ends, faster, lasts, found in rows:
        job = Bounded(
            Interval(length / 1000, anchor_ms=phase, offset_ms=moved),
            start_ms=begins,
            end_ms=ends,
            incident_interval_ms=faster,
            incident_until_ms=lasts,
        )
        assert found == (job.next_fire(asked) or NEVER_MS)
    assert 0 < np.count_nonzero(fire_ms == NEVER_MS) < size
