"""One-offs: done by the first confirmed run of their own definition, whatever is edited around it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from definitions import Job, batch_of

from celery_wheelbeat.cron import CronTable
from celery_wheelbeat.one_offs import OneOffs
from celery_wheelbeat.sources import Finished

JOB = Job(7, interval_ms=1_000, one_off=True, effective_from_ms=5_000)


@pytest.fixture
def one_offs() -> OneOffs:
    known = OneOffs()
    known.load(batch_of([JOB], CronTable()))
    return known


def redefine(one_offs: OneOffs, *jobs: Job, deleted: tuple[int, ...] = ()):
    return one_offs.redefine(batch_of(jobs, CronTable()), deleted)


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


def test_an_edit_that_comes_before_the_database_knows_leaves_it_done(one_offs: OneOffs) -> None:
    one_offs.send(1, 7)
    one_offs.confirm(1, 6_000)
    assert redefine(one_offs, replace(JOB, payload=b"edited")).done == [7]
    assert one_offs.load(batch_of([JOB], CronTable())) == [7]


def test_what_was_armed_anew_is_not_done_by_a_run_of_before(one_offs: OneOffs) -> None:
    one_offs.send(1, 7)
    found = redefine(one_offs, replace(JOB, effective_from_ms=5_500))
    assert (found.done, found.armed) == ([], [7])
    assert not one_offs.is_on_the_way(7)
    assert one_offs.confirm(1, 6_000) is None
    assert not one_offs.owns(7, 5_499)
    assert one_offs.owns(7, 5_500)


def test_an_edit_of_something_else_keeps_its_run_on_the_way(one_offs: OneOffs) -> None:
    one_offs.send(1, 7)
    found = redefine(one_offs, replace(JOB, payload=b"edited"))
    assert (found.done, found.armed) == ([], [])
    assert one_offs.is_on_the_way(7)


def test_a_deleted_one_is_forgotten(one_offs: OneOffs) -> None:
    one_offs.send(1, 7)
    one_offs.confirm(1, 6_000)
    redefine(one_offs, deleted=(7,))
    assert redefine(one_offs, JOB).done == []
