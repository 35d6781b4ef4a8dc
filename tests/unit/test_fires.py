"""What follows from ``next_fire`` alone: the last fire time before an instant."""

from __future__ import annotations

from itertools import takewhile

import pytest

from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.fire_times import fires, last_fire
from celery_wheelbeat.schedules.intervals import Bounded, Interval, Once

T = 1_750_000_000_000


@pytest.mark.parametrize(
    "schedule",
    [
        Bounded(Interval(60), 17_000),
        Bounded(Interval(0.25)),
        Bounded(Interval(7 * 3600)),
        Bounded(Cron("*/5 9-10 * * *", "Europe/Berlin"), 12_000),
        Bounded(Cron("0 0 29 2 *", "UTC")),
        Bounded(Once(T - 5)),
        Bounded(Once(T + 5)),
        Bounded(Interval(60), start_ms=T - 150_000),
        Bounded(Interval(60), start_ms=T + 1),
        Bounded(Interval(60), end_ms=T - 86_400_000),
        Bounded(Interval(3600), incident_interval_ms=10_000, incident_until_ms=T - 5_000),
    ],
    ids=str,
)
@pytest.mark.parametrize("since_ms", [T - 30 * 86_400_000, T - 61_000, T - 1, T, T + 1])
def test_the_last_fire_is_the_last_of_all(schedule: Bounded, since_ms: int) -> None:
    recent_ms = max(since_ms, T - 3_600_000)  # where there is one, it is later than millions before it
    every = _walked(schedule, recent_ms) or _walked(schedule, since_ms)
    assert last_fire(schedule, T, since_ms) == max(every, default=None)


def _walked(schedule: Bounded, since_ms: int) -> list[int]:
    return list(takewhile(lambda fire_ms: fire_ms <= T, fires(schedule, since_ms - 1)))


def test_the_search_for_the_last_fire_is_short() -> None:
    class Counting:
        looks = 0

        def next_fire(self, after_ms: int) -> int | None:
            self.looks += 1
            return after_ms + 1 if after_ms < T - 1_000_000_000 else None

    schedule = Counting()
    assert last_fire(schedule, T, 0) == T - 1_000_000_000
    assert schedule.looks < 100
