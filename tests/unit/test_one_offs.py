"""One-offs: done by the first confirmed run of their own definition, whatever is edited around it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine.definitions import Job, batch_of

from celery_wheelbeat.dispatch.one_offs import OneOffs
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
def one_offs(job: Job) -> OneOffs:
    return loaded(job)


def loaded(job: Job) -> OneOffs:
    known = OneOffs()
    assert known.load(batch_of([job], CronTable())) == {}
    return known


def redefine(one_offs: OneOffs, *jobs: Job, deleted: tuple[int, ...] = (), at: Reached = NOW):
    return one_offs.redefine(batch_of(jobs, CronTable()), deleted, at)


def test_the_first_confirmed_run_ends_it(one_offs: OneOffs) -> None:
    one_offs.send(1, 7)
    assert one_offs.is_on_the_way(7)
    assert one_offs.confirm(1, 6_000) == (7, Finished(6_000, 5_000))
    assert not one_offs.is_on_the_way(7)


def test_a_run_that_failed_ends_nothing(one_offs: OneOffs) -> None:
    one_offs.send(1, 7)
    one_offs.give_up(1)
    assert not one_offs.is_on_the_way(7)
    assert one_offs.confirm(1, 6_000) is None


def test_an_edit_that_comes_before_the_database_knows_leaves_it_done(one_offs: OneOffs, job: Job) -> None:
    one_offs.send(1, 7)
    one_offs.confirm(1, 6_000)
    assert redefine(one_offs, replace(job, payload=b"edited")).done == {7: Finished(6_000, 5_000)}
    assert one_offs.load(batch_of([job], CronTable())) == {7: Finished(6_000, 5_000)}
    assert redefine(one_offs, replace(job, enabled=False)).done == {}


def test_an_edit_of_something_else_keeps_its_run_on_the_way(one_offs: OneOffs, job: Job) -> None:
    one_offs.send(1, 7)
    found = redefine(one_offs, replace(job, payload=b"edited"))
    assert (found.done, found.withdrawn) == ({}, [])
    assert one_offs.is_on_the_way(7)
    assert one_offs.owns(7, 6_000, 0)


def test_a_deleted_one_is_forgotten(one_offs: OneOffs, job: Job) -> None:
    one_offs.send(1, 7)
    one_offs.confirm(1, 6_000)
    redefine(one_offs, deleted=(7,))
    assert redefine(one_offs, job).done == {}


def test_a_pause_keeps_whose_run_is_on_the_way(one_offs: OneOffs, job: Job) -> None:
    one_offs.send(1, 7)
    assert redefine(one_offs, replace(job, enabled=False)).withdrawn == [7]
    assert one_offs.confirm(1, 6_000) == (7, Finished(6_000, 5_000))


def test_another_definition_of_an_interval_is_another_one_off() -> None:
    one_offs = loaded(JOB)
    one_offs.send(1, 7)
    found = redefine(one_offs, replace(JOB, effective_from_ms=5_400))
    assert (found.done, found.withdrawn) == ({}, [7])
    assert not one_offs.is_on_the_way(7)
    assert one_offs.confirm(1, 6_000) is None


@pytest.mark.parametrize("database_ms", [-86_400_000, 0, 86_400_000])
def test_what_the_wheel_hands_out_later_is_its_run_whatever_the_database_s_clock_says(database_ms: int) -> None:
    one_offs = loaded(JOB)
    assert one_offs.owns(7, 5_500, 0), "the first definition of the process: there is no other"
    redefine(one_offs, replace(JOB, effective_from_ms=5_400 + database_ms))
    assert not one_offs.owns(7, 5_500, 0)
    assert one_offs.owns(7, 5_501, 0)
    redefine(
        one_offs, replace(JOB, effective_from_ms=5_400 + database_ms, payload=b"edited"), at=Reached(9_000, Relived())
    )
    assert one_offs.owns(7, 5_501, 0), "the same one-off still"


def test_of_a_time_that_is_lived_through_again_the_later_runs_are_its_own() -> None:
    one_offs = loaded(JOB)
    redefine(one_offs, replace(JOB, effective_from_ms=1), at=Reached(5_000, Relived(9_000, 2)))
    assert not one_offs.owns(7, 6_000, 0), "handed out before the clock was set back"
    assert not one_offs.owns(7, 8_000, 1)
    assert not one_offs.owns(7, 5_000, 2)
    assert one_offs.owns(7, 6_000, 2)
    assert one_offs.owns(7, 1_000, 3)
    assert one_offs.owns(7, 9_001, 0)


@pytest.mark.parametrize("edit", [{"enabled": True}, {"end_ms": 90_000}, {"start_ms": 0}])
def test_a_once_is_known_by_its_instant(edit: dict[str, int]) -> None:
    one_offs = loaded(ONCE)
    one_offs.send(1, 7)
    assert redefine(one_offs, replace(ONCE, effective_from_ms=5_400, **edit)).withdrawn == []
    assert one_offs.is_on_the_way(7)
    assert one_offs.confirm(1, 6_000) == (7, Finished(6_000, 5_400))
    again = redefine(one_offs, replace(ONCE, effective_from_ms=5_800, **edit))
    assert again.done == {7: Finished(6_000, 5_800)}, "the database is asked to note it for the new definition"


def test_another_instant_is_another_once() -> None:
    one_offs = loaded(ONCE)
    one_offs.send(1, 7)
    assert redefine(one_offs, replace(ONCE, at_ms=4_000, effective_from_ms=5_400)).withdrawn == [7]
    assert not one_offs.is_on_the_way(7)
    assert not one_offs.owns(7, 6_000, 0)
    assert one_offs.owns(7, 4_000, 0), "late, and its own"
    assert one_offs.confirm(1, 6_000) is None
