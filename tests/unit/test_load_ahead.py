"""The load ahead equals the fire times that the schedules themselves list, whatever kind they are."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.definitions import Job, changes_of

from celery_wheelbeat.dispatch.reports.lateness import Quantiles
from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.observe.forecast import DAY_S, HOUR_S, SPECIAL_MAX, SURVEY_EVERY_MS, Survey, Surveyor
from celery_wheelbeat.schedules.cron import Cron, CronTable
from celery_wheelbeat.schedules.fire_times import fires

T = 1_750_000_000_000
FROM_S = T // 1000 + 1
HOUR_MS = 3_600_000


def engine_of(*jobs: Job) -> Engine:
    engine = Engine(EngineConfig(shards=4), CronTable(), Ledger())
    engine.start(T)
    engine.apply(changes_of(engine.crons, *jobs))
    return engine


def surveyed(engine: Engine) -> np.ndarray:
    """Return the hour by seconds, then the day by minutes."""
    survey = Survey(engine.shards, engine.crons, FROM_S)
    for _ in survey.pieces():
        pass
    load = survey.result()
    assert load.from_s == FROM_S
    return np.concatenate((load.seconds, load.minutes))


def before_end(fire_ms: int) -> bool:
    return fire_ms < (FROM_S + DAY_S) * 1000


def listed(*jobs: Job) -> np.ndarray:
    """Count the fire times of each enabled job one by one."""
    counts = np.zeros(DAY_S, np.int64)
    for job in jobs:
        after_ms = FROM_S * 1000 - 1
        for fire_ms in takewhile(before_end, fires(job.schedule, after_ms)) if job.enabled else ():
            counts[fire_ms // 1000 - FROM_S] += 1
    return np.concatenate((counts[:HOUR_S], counts.reshape(-1, 60).sum(axis=1)))


JOBS = [
    Job(1, interval_ms=60_000),
    Job(2, interval_ms=60_000),
    Job(3, interval_ms=7_000, offset_ms=0),
    Job(4, interval_ms=2 * HOUR_MS),
    Job(5, interval_ms=36 * HOUR_MS, anchor_ms=T + 5_000, offset_ms=0),
    Job(6, interval_ms=300 * HOUR_MS, anchor_ms=T - 1, offset_ms=0),
    Job(7, interval_ms=1_000, enabled=False),
    Job(8, at_ms=T + 1_234_567),
    Job(9, cron=Cron("*/5 * * * *", "UTC")),
    Job(10, cron=Cron("*/5 * * * *", "UTC"), offset_ms=17_000),
    Job(11, cron=Cron("30 3 * * *", "Europe/Berlin"), offset_ms=29_000),
    Job(12, cron=Cron("0 0 1 1 *", "UTC")),
    Job(13, interval_ms=60_000, start_ms=T + 5 * HOUR_MS),
    Job(14, interval_ms=60_000, end_ms=T + 600_000),
    Job(15, interval_ms=300_000, incident_interval_ms=10_000, incident_until_ms=T + 900_500),
    Job(16, cron=Cron("0 * * * *", "UTC"), offset_ms=4_000, incident_interval_ms=60_000, incident_until_ms=T + HOUR_MS),
    Job(17, cron=Cron("0 * * * *", "UTC"), start_ms=T + 5 * HOUR_MS, end_ms=T + 9 * HOUR_MS),
    Job(18, interval_ms=3_600_000, anchor_ms=T + 123_000, offset_ms=0, start_ms=T + 123_000),
    Job(19, interval_ms=60_000, incident_interval_ms=1_000, incident_until_ms=T - 1),
]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: str(job.id))
def test_each_kind_is_counted_exactly(job: Job) -> None:
    assert np.array_equal(surveyed(engine_of(job)), listed(job))


def test_together_they_add_up() -> None:
    assert np.array_equal(surveyed(engine_of(*JOBS)), listed(*JOBS))


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.integers(20, 90_000), st.integers(0, 90_000), st.integers(-100_000, 100_000), st.integers(1, 100_000)
        ),
        max_size=5,
    )
)
def test_any_intervals_with_start_and_end(drawn: list[tuple[int, int, int, int]]) -> None:
    jobs = [
        Job(i, interval_ms=every * 1000, offset_ms=offset % every * 1000, start_ms=T + start * 1000,
            end_ms=T + (start + length) * 1000)
        for i, (every, offset, start, length) in enumerate(drawn)
    ]  # fmt: skip
    assert np.array_equal(surveyed(engine_of(*jobs)), listed(*jobs))


def test_uneven_intervals_count_as_evenly_spread() -> None:
    jobs = [Job(i, interval_ms=500) for i in range(4)] + [Job(9, interval_ms=1_500), Job(10, interval_ms=3_000)]
    seconds = surveyed(engine_of(*jobs))[:HOUR_S]
    assert seconds.sum() == HOUR_S * 9 + HOUR_S // 3


def test_of_many_special_jobs_some_stand_for_the_rest() -> None:
    jobs = [Job(4 * i, interval_ms=60_000, end_ms=FROM_S * 1000 + HOUR_MS) for i in range(3 * SPECIAL_MAX)]
    minutes = surveyed(engine_of(*jobs))[HOUR_S:]
    assert minutes[:60].sum() == 60 * 3 * SPECIAL_MAX
    assert minutes[61:].sum() == 0


def test_a_turn_ends_when_its_time_is_over() -> None:
    engine = engine_of(*JOBS)
    reads = iter(range(1_000_000))
    surveyor = Surveyor(engine, lambda: float(next(reads)))  # each look at the clock costs a second
    turns = 0
    while surveyor.load is None:
        surveyor.turn(T)
        turns += 1
    assert turns > 4, "one piece per turn"
    first = surveyor.load
    surveyor.turn(T + SURVEY_EVERY_MS - 1)
    assert surveyor.load is first
    while surveyor.load is first:
        surveyor.turn(T + SURVEY_EVERY_MS)
    assert surveyor.load.from_s == (T + SURVEY_EVERY_MS) // 1000 + 1
    numbers = surveyor.as_json()["load"]["minutes"].split()
    assert list(map(int, numbers)) == surveyor.load.minutes.tolist()


def test_each_minute_is_kept_once() -> None:
    surveyor = Surveyor(engine_of(), lambda: 0.0)
    for now_ms, sent in ((59_000, 5), (59_500, 6), (61_000, 9), (62_000, 10), (120_000, 30)):
        surveyor.note_minute(now_ms, sent, lambda: Quantiles(1, 0.25, 0.5, 1.0))
    assert surveyor.as_json()["minutes"] == [[60, 4, 0.25, 0.5], [120, 21, 0.25, 0.5]]
