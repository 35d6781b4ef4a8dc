"""The engine as its neighbours see it: load, apply, advance, step back, look up."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pytest
from support.engine.definitions import Job, batch_of, changes_of, entry_count, intervals

from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.engine.poll_lane import PolledJobs
from celery_wheelbeat.engine.shards import Relived
from celery_wheelbeat.errors import WheelbeatError
from celery_wheelbeat.jobs.definitions import Flag, Misfire, Offer, Route
from celery_wheelbeat.schedules.cron import Cron, CronTable
from celery_wheelbeat.schedules.kinds import NEVER_MS, Asked

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")
T = 1_750_000_000_000
HOUR_MS = 3_600_000


def engine_of(*jobs: Job, now_ms: int = T, **config: int) -> Engine:
    """Return an engine at ``now_ms`` that runs ``jobs``."""
    engine = Engine(EngineConfig(**{"shards": 4, **config}), CronTable(), Ledger())
    engine.start(now_ms)
    engine.apply(changes_of(engine.crons, *jobs))
    return engine


def runs_of(due: list) -> list[tuple[int, int]]:
    """Return (job id, fire time) of all batches, by fire time."""
    runs = [pair for batch in due for pair in zip(batch.ids.tolist(), batch.fire_ms.tolist(), strict=True)]
    return sorted(runs, key=lambda run: (run[1], run[0]))


def load(engine: Engine, jobs: list[Job], mark_ms: int | None) -> list:
    """Load ``jobs`` with one mark."""
    engine.routes.intern(Route("probe"))
    return engine.load(batch_of(jobs, engine.crons), {"broker": mark_ms})


def calls_of(work: Callable[[], Value]) -> tuple[int, Value]:
    """Count the calls of functions, Python's and C's, that ``work`` makes."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        value = work()
    finally:
        sys.setprofile(None)
    return calls, value


@pytest.mark.promise("never-early")
@pytest.mark.parametrize("tick_ms", [100, 500, 1_000])
def test_a_run_is_never_early_and_at_most_one_tick_late(tick_ms):
    job = Job(1, interval_ms=7_000, anchor_ms=T + 1, offset_ms=0)
    engine = engine_of(job, tick_ms=tick_ms)
    for now in range(T, T + 60_000, tick_ms // 2):
        for _, fire in runs_of(engine.advance(now)):
            assert fire <= now < fire + tick_ms + tick_ms // 2
            assert (fire - T - 1) % 7_000 == 0
    assert engine.ledger.expected == 9


@pytest.mark.promise("no-drift")
def test_lateness_never_moves_the_grid():
    engine = engine_of(Job(1, interval_ms=10_000, offset_ms=3_000))
    fires = []
    for now in (T + 3_000, T + 3_999, T + 29_500, T + 29_501, T + 61_234):
        fires += [fire - T for _, fire in runs_of(engine.advance(now))]
    assert fires == [3_000, 13_000, 23_000, 33_000, 43_000, 53_000]


def test_an_edit_keeps_what_is_pending_and_brings_nothing_back():
    job = Job(1, interval_ms=10_000, offset_ms=0)
    engine = engine_of(job)
    engine.advance(T + 9_000)
    late = T + 14_000
    engine.apply(changes_of(engine.crons, replace(job, payload=b"[[1],{}]")))
    assert runs_of(engine.advance(late)) == [(1, T + 10_000)]
    engine.apply(changes_of(engine.crons, replace(job, interval_ms=20_000)))
    assert runs_of(engine.advance(T + 40_000)) == [(1, T + 20_000), (1, T + 40_000)]


def test_applying_twice_changes_nothing():
    jobs = [Job(n, interval_ms=10_000) for n in range(50)]
    engine = engine_of(*jobs)
    entries = sum(entry_count(shard.wheel) for shard in engine.shards)
    report = engine.apply(changes_of(engine.crons, *jobs, deleted=[99]))
    assert report == (0, 50, 0, [])
    engine.advance(T)
    assert sum(entry_count(shard.wheel) for shard in engine.shards) in (entries, 50)
    assert len(runs_of(engine.advance(T + 10_000))) == 50


def test_a_job_that_left_its_slot_and_came_back_fires_once():
    job = Job(1, interval_ms=30_000, offset_ms=0)
    engine = engine_of(job)
    engine.advance(T)
    for interval_ms in (7_000, 30_000, 7_000, 30_000):
        engine.apply(changes_of(engine.crons, replace(job, interval_ms=interval_ms)))
    found = runs_of([batch for second in range(1, 91) for batch in engine.advance(T + 1_000 * second)])
    assert found == [(1, fire) for fire in range(T + 90_000 - T % 30_000 - 60_000, T + 90_001, 30_000) if fire > T]


def test_jobs_pass_the_border_of_far_windows():
    jobs = [Job(n, interval_ms=2 * HOUR_MS, anchor_ms=T + n * 60_000, offset_ms=0) for n in range(1, 120)]
    engine = engine_of(*jobs)
    found = runs_of([batch for minute in range(1, 241) for batch in engine.advance(T + minute * 60_000)])
    assert found == sorted(
        ((n, T + n * 60_000 + again) for n in range(1, 120) for again in (0, 2 * HOUR_MS)), key=lambda run: run[1]
    )


def test_a_cron_group_follows_the_clock_change_of_its_zone():
    before = 1_774_742_400_000  # 2026-03-29 00:00 UTC: at 01:00 Berlin skips from 02:00 to 03:00
    jobs = [
        Job(1, cron=Cron("30 2 * * *", "Europe/Berlin")),
        Job(2, cron=Cron("30 2 * * *", "Europe/Berlin"), offset_ms=7_000),
        Job(3, cron=Cron("*/30 * * * *", "Europe/Berlin")),
    ]
    engine = engine_of(*jobs, now_ms=before, stall_limit_ms=2 * 86_400_000)
    engine.advance(before)
    found = runs_of(engine.advance(before + 2 * HOUR_MS))
    assert [run for run in found if run[0] != 3] == [(1, before + HOUR_MS), (2, before + HOUR_MS + 7_000)]
    assert [fire - before for job_id, fire in found if job_id == 3] == [1_800_000 * k for k in range(1, 5)]
    assert len(engine.crons) == 2


def test_year_9999_is_armed():
    end_of_time = 253_402_300_799_000
    engine = engine_of(Job(1, at_ms=end_of_time), Job(2, interval_ms=100 * 366 * 86_400_000))
    (once, slow) = engine.lookup([1, 2])
    assert once.next_fire_ms == end_of_time
    assert T < slow.next_fire_ms <= T + 100 * 366 * 86_400_000
    assert engine.sweep(1).healthy


class TestOnce:
    def test_fires_and_stays_known(self):
        engine = engine_of(Job(1, at_ms=T + 1_500))
        assert runs_of(engine.advance(T + 2_000)) == [(1, T + 1_500)]
        (view,) = engine.lookup([1])
        assert view.next_fire_ms is None
        assert engine.advance(T + 100_000) == []

    def test_late_on_its_way_here_fires_late_rather_than_never(self):
        engine = engine_of()
        engine.advance(T + 5_000)
        change = changes_of(engine.crons, Job(1, at_ms=T + 4_500, effective_from_ms=T + 4_000))
        engine.apply(change)
        engine.apply(change)
        assert runs_of(engine.advance(T + 5_000)) == [(1, T + 4_500)]
        engine.apply(change)
        assert engine.advance(T + 9_000) == []
        assert engine.ledger.expected == 1

    @pytest.mark.parametrize(("misfire", "runs"), [(Misfire.LATEST, 1), (Misfire.ALL, 1), (Misfire.SKIP, 0)])
    def test_an_instant_that_had_passed_when_it_was_stored_is_run_at_once(self, misfire, runs):
        engine = engine_of()
        engine.advance(T + 5_000)
        job = Job(1, at_ms=T - 86_400_000, effective_from_ms=T + 4_000, misfire=misfire)
        engine.apply(changes_of(engine.crons, job))
        assert runs_of(engine.advance(T + 5_000)) == [(1, T - 86_400_000)] * runs
        assert engine.advance(T + 60_000) == []

    @pytest.mark.parametrize("mark_ms", [T - 60_000, T - 2_000])
    def test_a_start_offers_it_however_old_it_is(self, mark_ms):
        engine = Engine(EngineConfig(shards=4), CronTable(), Ledger())
        engine.start(T)
        old = Job(1, at_ms=T - 86_400_000, effective_from_ms=T - 3_600_000, misfire=Misfire.LATEST)
        skipped = Job(2, at_ms=T - 86_400_000, effective_from_ms=T - 3_600_000, misfire=Misfire.SKIP)
        due = load(engine, [old, skipped], mark_ms)
        assert runs_of(due) == [(1, T - 86_400_000)]
        assert runs_of(engine.advance(T + 60_000)) == []


class TestStall:
    def test_up_to_the_limit_every_slot_is_replayed(self):
        engine = engine_of(Job(1, interval_ms=60_000, offset_ms=0))
        due = engine.advance(T + 300_000)
        assert len(runs_of(due)) == 5
        assert {batch.offer for batch in due} == {Offer.DUE}

    @pytest.mark.parametrize("cause", ["stall", "clock"])
    def test_beyond_it_the_policy_decides(self, cause):
        job = Job(1, interval_ms=60_000, offset_ms=0, misfire=Misfire.LATEST)
        engine = engine_of(job, Job(2, interval_ms=60_000, offset_ms=0))
        due = engine.advance(T + 301_000, cause=cause)
        newest = (T + 301_000) // 60_000 * 60_000
        assert runs_of(due) == [(1, newest)]
        assert due[0].offer is Offer.MISFIRE
        assert engine.ledger.skipped[cause] == engine.ledger.expected - 1
        assert runs_of(engine.advance(newest + 60_000)) == [(1, newest + 60_000), (2, newest + 60_000)]

    def test_too_many_runs_count_as_too_long(self):
        engine = engine_of(*(Job(n, interval_ms=1_000) for n in range(100)), backlog_max=1_000)
        assert len(runs_of(engine.advance(T + 10_000))) == 1_000
        assert engine.advance(T + 21_000) == []
        assert engine.ledger.skipped["stall"] == 1_100

    def test_a_long_replay_comes_in_parts(self):
        engine = engine_of(*(Job(n, interval_ms=1_000) for n in range(100)), runs_per_advance=250)
        parts = []
        while not engine.caught_up(T + 10_000):
            parts.append(len(runs_of(engine.advance(T + 10_000))))
        assert parts == [300, 300, 300, 100]


class TestRestart:
    def test_the_lookback_is_offered_again_whatever_the_policy(self):
        engine = engine_of()
        jobs = [Job(n, interval_ms=1_000, offset_ms=0, misfire=Misfire.SKIP) for n in range(4)]
        due = load(engine, jobs, mark_ms=T - 3_000)
        assert {batch.offer for batch in due} == {Offer.REOFFERED}
        assert len(runs_of(due)) == 12
        assert engine.ledger.expected == 0

    def test_at_a_first_start_the_same_runs_count(self):
        engine = engine_of()
        engine.misfires.first_start = True
        engine.advance(T + 8_000)
        jobs = [Job(n, interval_ms=1_000, offset_ms=0, misfire=Misfire.SKIP) for n in range(4)]
        due = load(engine, jobs, mark_ms=T)
        assert {batch.offer for batch in due} == {Offer.MISFIRE}
        assert sorted({fire_ms - T for _, fire_ms in runs_of(due)}) == [1_000, 2_000, 3_000, 4_000, 5_000]
        assert (engine.ledger.expected, engine.ledger.skipped["restart"]) == (4 * 8, 4 * 3)

    def test_the_rest_of_the_gap_goes_by_policy(self):
        engine = engine_of()
        due = load(engine, [Job(1, interval_ms=60_000, offset_ms=0, misfire=Misfire.LATEST)], mark_ms=T - 600_000)
        assert [(batch.offer, *run) for batch in due for run in runs_of([batch])] == [
            (Offer.MISFIRE, 1, T // 60_000 * 60_000)
        ]
        assert (engine.ledger.expected, engine.ledger.skipped["restart"]) == (10, 9)

    @pytest.mark.parametrize("mark_ms", [None, T, T + 4_000])
    def test_without_a_gap_nothing_was_missed(self, mark_ms):
        engine = engine_of()
        assert load(engine, [Job(1, interval_ms=1_000, misfire=Misfire.ALL)], mark_ms) == []

    def test_a_gap_never_begins_before_the_definition(self):
        engine = engine_of()
        job = Job(1, interval_ms=60_000, offset_ms=0, misfire=Misfire.ALL, effective_from_ms=T - 100_000)
        first = -(-job.effective_from_ms // 60_000) * 60_000
        assert runs_of(load(engine, [job], mark_ms=T - 10 * HOUR_MS)) == [
            (1, fire) for fire in range(first, T + 1, 60_000)
        ]

    def test_a_paused_job_missed_nothing(self):
        engine = engine_of()
        job = Job(1, interval_ms=60_000, misfire=Misfire.ALL, enabled=False)
        assert load(engine, [job], mark_ms=T - HOUR_MS) == []

    def test_marks_are_kept_by_destination(self):
        engine = engine_of()
        engine.routes.intern(Route("probe"))
        engine.routes.intern(Route("probe", destination="elsewhere"))
        jobs = [Job(n, interval_ms=60_000, offset_ms=0, misfire=Misfire.LATEST, route_index=n) for n in (0, 1)]
        due = engine.load(batch_of(jobs, engine.crons), {"broker": None, "elsewhere": T - HOUR_MS})
        assert [job_id for job_id, _ in runs_of(due)] == [1]


class TestStepBack:
    def test_intervals_go_on_and_are_flagged(self):
        engine = engine_of(Job(1, interval_ms=10_000, offset_ms=0))
        engine.advance(T + 30_000)
        engine.step_back(T + 5_000, 1)
        due = engine.advance(T + 40_000)
        assert [(batch.step, fire - T) for batch in due for _, fire in runs_of([batch])] == [
            (1, 10_000),
            (1, 20_000),
            (1, 30_000),
            (0, 40_000),
        ]

    def test_crons_and_once_wait(self):
        minute = T // 60_000 * 60_000
        engine = engine_of(Job(1, cron=Cron("* * * * *")), Job(2, at_ms=minute + 90_000), now_ms=minute)
        engine.advance(minute + 120_000)
        engine.step_back(minute + 30_000, 1)
        assert engine.advance(minute + 120_000) == []
        engine.apply(changes_of(engine.crons, Job(1, cron=Cron("* * * * *"))))
        assert runs_of(engine.advance(minute + 180_000)) == [(1, minute + 180_000)]

    def test_a_restart_remembers(self):
        minute = T // 60_000 * 60_000
        engine = Engine(EngineConfig(shards=1), CronTable(), Ledger())
        engine.start(minute, Relived(minute + 90_000, 3, minute + 90_000))
        engine.apply(changes_of(engine.crons, Job(1, interval_ms=60_000, offset_ms=0), Job(2, cron=Cron("* * * * *"))))
        due = engine.advance(minute + 120_000)
        assert [(batch.step, *run) for batch in due for run in runs_of([batch])] == [
            (3, 1, minute + 60_000),
            (0, 1, minute + 120_000),
            (0, 2, minute + 120_000),
        ]


class EveryMinute:
    """A foreign schedule that fires on whole minutes, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def ask(self, now_ms: int) -> Asked:
        if self.error:
            raise self.error
        minute = now_ms // 60_000 * 60_000
        return Asked(minute, minute + 60_000)


class TestPollLane:
    def test_foreign_schedules_are_asked_and_may_fail(self):
        engine = engine_of(Job(1, polled=EveryMinute()), Job(2, polled=EveryMinute(KeyError("sun"))))
        minute = T // 60_000 * 60_000 + 60_000
        assert runs_of(engine.advance(minute)) == [(1, minute)]
        assert [failure.job_id for failure in engine.poll_lane.turn.failures] == [2]
        assert runs_of(engine.advance(minute + 60_000)) == [(1, minute + 60_000)]

    def test_moves_between_wheel_and_lane(self):
        engine = engine_of(Job(1, interval_ms=1_000, offset_ms=0))
        assert len(runs_of(engine.advance(T + 3_000))) == 3
        engine.apply(changes_of(engine.crons, Job(1, polled=EveryMinute())))
        assert 1 in engine.poll_lane.jobs
        minute = T // 60_000 * 60_000 + 60_000
        assert runs_of(engine.advance(minute + 5_000)) == [(1, minute)]
        engine.apply(changes_of(engine.crons, Job(1, interval_ms=2_000, offset_ms=0)))
        assert 1 not in engine.poll_lane.jobs
        assert len(runs_of(engine.advance(minute + 9_000))) == 2
        engine.apply(changes_of(engine.crons, deleted=[1]))
        assert engine.advance(minute + 60_000) == []

    def test_what_is_left_of_a_turn_is_asked_in_the_next_one_of_the_same_tick(self):
        minute = T // 60_000 * 60_000 + 60_000
        engine = Engine(EngineConfig(shards=4), CronTable(), Ledger(), PolledJobs(lambda: 0.0, steps=2))
        engine.start(minute - 1_000)
        engine.apply(changes_of(engine.crons, *(Job(n, polled=EveryMinute()) for n in range(5))))
        assert [len(runs_of(engine.advance(minute))) for _ in range(4)] == [2, 2, 1, 0]
        assert engine.ledger.expected == 5


class TestIntervalsBesideTheTick:
    def test_they_keep_their_grid(self):
        engine = engine_of(Job(1, interval_ms=1_500, anchor_ms=T, offset_ms=0), Job(2, interval_ms=250, offset_ms=0))
        due = [batch for second in (1, 2, 3, 6) for batch in engine.advance(T + 1_000 * second)]
        assert all((batch.fire_ms[1:] >= batch.fire_ms[:-1]).all() for batch in due)
        found = runs_of(due)
        assert [fire - T for job_id, fire in found if job_id == 1] == [1_500, 3_000, 4_500, 6_000]
        assert [fire - T for job_id, fire in found if job_id == 2] == list(range(250, 6_001, 250))
        assert engine.ledger.expected == len(found)

    def test_many_fast_jobs_make_no_other_one_late(self):
        fast = [Job(n, interval_ms=1, offset_ms=0) for n in range(21)]
        engine = engine_of(*fast, Job(100, interval_ms=1_500, offset_ms=0), Job(101, interval_ms=1_000, offset_ms=0))
        for second in range(1, 41):
            now = T + 1_000 * second
            found = runs_of(engine.advance(now))
            assert [fire for job_id, fire in found if job_id == 100] == [
                fire for fire in range(now - 999, now + 1) if fire % 1_500 == 0
            ]
            assert (101, now) in found
            assert len(found) == 21 * 1_000 + 1 + any(fire % 1_500 == 0 for fire in range(now - 999, now + 1))

    @pytest.mark.parametrize("misfire", Misfire)
    def test_a_gap_costs_the_same_however_long_it_is(self, misfire):
        """Counted in calls: a walk over the fire times of an hour alone would be millions of them."""
        costs = []
        for hours in (1, 1_000):
            jobs = [Job(n, interval_ms=1, offset_ms=0, misfire=misfire) for n in range(21)]
            engine = engine_of(*jobs, Job(50, interval_ms=1_000, offset_ms=0, misfire=misfire))
            calls, due = calls_of(lambda engine=engine, hours=hours: engine.advance(T + hours * HOUR_MS))
            costs.append(calls)
            assert engine.ledger.expected == hours * (21 * HOUR_MS + 3_600)
            offered = {Misfire.ALL: 22 * 1_000, Misfire.LATEST: 22}.get(misfire, 0)
            assert len(runs_of(due)) == offered
            assert engine.ledger.skipped["stall"] == engine.ledger.expected - offered
        assert max(costs) < 30_000
        assert costs[1] < 2 * costs[0], "the bisection of misfire=all takes a few more steps"

    def test_a_start_costs_the_same_however_long_it_was_away(self):
        costs = []
        for hours in (1, 1_000):
            engine = Engine(EngineConfig(shards=4), CronTable(), Ledger())
            engine.start(T)
            jobs = [Job(n, interval_ms=1, offset_ms=0) for n in range(21)]
            calls, due = calls_of(lambda engine=engine, jobs=jobs, hours=hours: load(engine, jobs, T - hours * HOUR_MS))
            costs.append(calls)
            assert len(runs_of(due)) == 21 * engine.config.lookback_ms
        assert costs[1] < 1.1 * costs[0] < 10_000

    def test_a_stall_that_holds_more_runs_than_may_wait_goes_by_the_policy(self):
        engine = engine_of(Job(1, interval_ms=10, offset_ms=0, misfire=Misfire.LATEST), backlog_max=1_000)
        assert len(runs_of(engine.advance(T + 10_000))) == 1_000
        assert runs_of(engine.advance(T + 21_000)) == [(1, T + 21_000)]
        assert engine.ledger.skipped["stall"] == 1_099

    def test_a_clock_that_is_set_back_has_them_lived_through_again(self):
        engine = engine_of(Job(1, interval_ms=400, offset_ms=0))
        engine.advance(T + 10_000)
        engine.step_back(T, 1)
        due = engine.advance(T + 2_000)
        assert {batch.step for batch in due} == {1}
        assert [fire - T for _, fire in runs_of(due)] == [400, 800, 1_200, 1_600, 2_000]


def test_lookup_shows_the_definition_in_force():
    job = Job(7, interval_ms=60_000, payload='[["ü"],{}]'.encode(), misfire=Misfire.LATEST, route_index=3)
    engine = engine_of(job, Job(8, interval_ms=1_000, enabled=False))
    view, paused, unknown = engine.lookup([7, 8, 9])
    assert (view.name, view.payload, view.route_index) == ("job 7", '[["ü"],{}]'.encode(), 3)
    assert view.flags == Flag.ENABLED | Misfire.LATEST.value << 2
    assert view.next_fire_ms == engine.next_fire(7, T) == job.schedule.next_fire(T)
    assert paused is None
    assert unknown is None
    assert engine.next_fire(8, T) == Job(8, interval_ms=1_000).schedule.next_fire(T)
    assert engine.schedule_of(9) is None
    assert engine.next_fire(9, T) is None


def test_columns_of_jobs_are_those_of_their_views():
    """Of tables with new rows, dead rows, wide and narrow columns, and of one without a row."""
    first = [Job(number, interval_ms=60_000 + number, route_index=number % 3) for number in range(0, 400, 4)]
    others = [Job(number, interval_ms=86_400_000 * 365) for number in range(1, 40, 4)]
    engine = engine_of(*first, *others)
    engine.apply(changes_of(engine.crons, *[Job(number, interval_ms=5_000, enabled=False) for number in (8, 12)]))
    engine.apply(changes_of(engine.crons, Job(2**40, interval_ms=5), Job(2**40 + 2, interval_ms=5), deleted=[4, 16, 5]))
    ids = np.array([396, 3, 8, 4, 0, 5, 1, 2**40 + 2, 7_000, 2**40, 12, 0, -9])
    columns = engine.shards.columns_of(ids)
    for at, view in enumerate(engine.lookup(ids.tolist())):
        assert columns.enabled[at] == (view is not None), ids[at]
        if view is not None:
            assert (columns.route[at], columns.flags[at]) == (view.route_index, view.flags), ids[at]
    assert columns.interval[[0, 4, 6]].tolist() == [60_396, 60_000, 86_400_000 * 365]
    assert len(engine.shards.columns_of(ids[:0]).enabled) == 0


def test_finished_jobs_are_switched_off():
    engine = engine_of(Job(1, interval_ms=1_000), Job(2, interval_ms=1_000))
    engine.finish([1, 55])
    assert engine.lookup([1]) == [None]
    assert [job_id for job_id, _ in runs_of(engine.advance(T + 1_000))] == [2]


def test_jobs_beyond_the_limit_are_refused_and_counted():
    engine = engine_of(Job(1, interval_ms=1_000), max_jobs=3)
    report = engine.apply(changes_of(engine.crons, *(Job(n, interval_ms=2_000) for n in range(1, 6))))
    assert report == (2, 1, 0, [4, 5])
    assert engine.stats().refused == 2
    assert engine.schedule_of(1).base.interval_ms == 2_000
    assert engine.schedule_of(4) is None


@pytest.mark.parametrize("shards", [0, 3, -4])
def test_shards_are_a_power_of_two(shards):
    with pytest.raises(WheelbeatError, match="power of two"):
        Engine(EngineConfig(shards=shards), CronTable(), Ledger())


def test_due_batches_name_rows_and_routes():
    engine = engine_of(*(Job(n, interval_ms=1_000, route_index=n) for n in range(9)))
    for batch in engine.advance(T + 1_000):
        columns = engine.shards[batch.shard].table.columns
        assert (columns.ids[batch.rows] == batch.ids).all()
        assert (batch.route_index == batch.ids).all()
        assert (batch.ids % 4 == batch.shard).all()


def test_a_million_jobs_fit_their_bytes():
    count, block = 1_000_000, 100_000
    engine = Engine(EngineConfig(), CronTable(), Ledger())
    engine.start(T)
    tracemalloc.start()
    for first in range(0, count, block):
        engine.load(intervals(range(first, first + block), 60_000), {})
    due = engine.advance(T + 1_000)
    resident, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    texts = 8 * count
    assert (resident - texts) / count < 64
    assert (peak - texts) / count < 110
    assert len(engine) == count
    assert abs(sum(map(len, due)) - count / 60) < 1_000
    assert all(not (batch.fire_ms > T + 1_000).any() for batch in due)
    assert np.unique(np.concatenate([batch.ids for batch in due])).size == sum(map(len, due))
    assert NEVER_MS not in engine.shards[0].table.rows.next_fire
