"""Single-run jobs: done by the first confirmed run of their own definition, whatever is edited around it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine.definitions import Job, batch_of

from celery_wheelbeat.dispatch.pending import STEP_SHIFT, PendingRun, PendingRuns
from celery_wheelbeat.dispatch.single_run_jobs import SingleRunJobs
from celery_wheelbeat.engine.shards import Reached, Relived
from celery_wheelbeat.jobs.definitions import Finished
from celery_wheelbeat.schedules.cron import CronTable

JOB = Job(7, interval_ms=1_000, one_off=True, effective_from_ms=5_000)
ONCE = Job(7, at_ms=6_000, one_off=True, effective_from_ms=5_000)
NOW = Reached(5_500, Relived())


@pytest.fixture(params=[JOB, ONCE], ids=["interval", "once"])
def job(request: pytest.FixtureRequest) -> Job:
    return request.param


@pytest.fixture
def known(job: Job) -> SingleRunJobs:
    return loaded(job)


def loaded(job: Job) -> SingleRunJobs:
    known = SingleRunJobs()
    assert known.load(batch_of([job], CronTable())) == {}
    return known


def redefine(known: SingleRunJobs, *jobs: Job, deleted: tuple[int, ...] = (), at: Reached = NOW):
    return known.redefine(batch_of(jobs, CronTable()), deleted, at)


def run_of(fire_ms: int, step: int = 0) -> PendingRun:
    return PendingRun(7, fire_ms, step << STEP_SHIFT)


def confirm(known: SingleRunJobs, fire_ms: int) -> dict[int, Finished]:
    """The run with this fire time is confirmed at 6.5 s."""
    return known.confirm(PendingRuns.of([run_of(fire_ms)]), 6_500)


def test_the_first_confirmed_run_ends_it(known: SingleRunJobs) -> None:
    assert confirm(known, 6_000) == {7: Finished(6_500, 5_000)}


def test_the_first_run_in_flight_is_its_run(known: SingleRunJobs) -> None:
    other = PendingRun(8, 6_000)
    assert known.first_in_flight([(1, other), (2, run_of(6_000)), (3, run_of(6_000))]) == {7: 2}
    assert known.first_in_flight([(1, other)]) == {}


def test_an_edit_that_comes_before_the_database_knows_leaves_it_done(known: SingleRunJobs, job: Job) -> None:
    confirm(known, 6_000)
    assert redefine(known, replace(job, payload=b"edited")).done == {7: Finished(6_500, 5_000)}
    assert known.load(batch_of([job], CronTable())) == {7: Finished(6_500, 5_000)}
    assert redefine(known, replace(job, enabled=False)).done == {}


def test_an_edit_of_something_else_keeps_its_run_in_flight(known: SingleRunJobs, job: Job) -> None:
    found = redefine(known, replace(job, payload=b"edited"))
    assert (found.done, found.withdrawn) == ({}, [])
    assert known.owns(run_of(6_000))
    assert known.first_in_flight([(1, run_of(6_000))]) == {7: 1}


def test_a_deleted_one_is_forgotten(known: SingleRunJobs, job: Job) -> None:
    confirm(known, 6_000)
    redefine(known, deleted=(7,))
    assert redefine(known, job).done == {}


def test_a_pause_keeps_the_run_in_flight(known: SingleRunJobs, job: Job) -> None:
    assert redefine(known, replace(job, enabled=False)).withdrawn == [7]
    assert confirm(known, 6_000) == {7: Finished(6_500, 5_000)}


def test_another_definition_of_an_interval_is_another_job() -> None:
    known = loaded(JOB)
    found = redefine(known, replace(JOB, effective_from_ms=5_400))
    assert (found.done, found.withdrawn) == ({}, [7])
    assert known.first_in_flight([(1, run_of(5_500))]) == {}
    assert confirm(known, 5_500) == {}


@pytest.mark.parametrize("database_ms", [-86_400_000, 0, 86_400_000])
def test_what_the_wheel_hands_out_later_is_its_run_whatever_the_database_s_clock_says(database_ms: int) -> None:
    known = loaded(JOB)
    assert known.owns(run_of(5_500)), "the first definition of the process: there is no other"
    redefine(known, replace(JOB, effective_from_ms=5_400 + database_ms))
    assert not known.owns(run_of(5_500))
    assert known.owns(run_of(5_501))
    redefine(
        known, replace(JOB, effective_from_ms=5_400 + database_ms, payload=b"edited"), at=Reached(9_000, Relived())
    )
    assert known.owns(run_of(5_501)), "the same job still"


def test_of_a_time_that_is_lived_through_again_the_later_runs_are_its_own() -> None:
    known = loaded(JOB)
    redefine(known, replace(JOB, effective_from_ms=1), at=Reached(5_000, Relived(9_000, 2)))
    assert not known.owns(run_of(6_000)), "handed out before the clock was set back"
    assert not known.owns(run_of(8_000, 1))
    assert not known.owns(run_of(5_000, 2))
    assert known.owns(run_of(6_000, 2))
    assert known.owns(run_of(1_000, 3))
    assert known.owns(run_of(9_001))


@pytest.mark.parametrize("edit", [{"enabled": True}, {"end_ms": 90_000}, {"start_ms": 0}])
def test_a_once_is_known_by_its_instant(edit: dict[str, int]) -> None:
    known = loaded(ONCE)
    assert redefine(known, replace(ONCE, effective_from_ms=5_400, **edit)).withdrawn == []
    assert confirm(known, 6_000) == {7: Finished(6_500, 5_400)}
    again = redefine(known, replace(ONCE, effective_from_ms=5_800, **edit))
    assert again.done == {7: Finished(6_500, 5_800)}, "the database is asked to note it for the new definition"


def test_another_instant_is_another_once() -> None:
    known = loaded(ONCE)
    assert redefine(known, replace(ONCE, at_ms=4_000, effective_from_ms=5_400)).withdrawn == [7]
    assert not known.owns(run_of(6_000))
    assert known.owns(run_of(4_000)), "late, and its own"
    assert confirm(known, 6_000) == {}
