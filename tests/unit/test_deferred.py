"""Deferred runs: refused ones wait apart, bounded, at no cost to the runs of other queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.steps import lines

from celery_wheelbeat.dispatch.backlog import Backlog
from celery_wheelbeat.dispatch.queues.deferred import PAUSE_S
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.definitions import DueBatch

if TYPE_CHECKING:
    from celery_wheelbeat.schedules.kinds import Int64s

FIRST_OF_ALL = 100
"""From this id on, the jobs of the tests have ``misfire=all``."""


class Desk:
    """A backlog with what its broker refused."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self.ledger = Ledger()
        self.asked = 0
        self.backlog = Backlog(self.ledger, limit=limit, keep_all=self.keep_all)

    def keep_all(self, ids: Int64s) -> np.ndarray:
        self.asked += 1
        return ids >= FIRST_OF_ALL

    def offer(self, *pairs: tuple[int, int]) -> None:
        ids, fires_ms = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
        nothing = np.zeros(len(pairs), np.uint32)
        self.ledger.expect(len(pairs))
        self.backlog.offer(DueBatch(shard=0, rows=nothing, ids=ids, fire_ms=fires_ms, route_index=nothing))

    def refuse(self, *pairs: tuple[int, int], now_s: float = 0.0) -> None:
        self.offer(*pairs)
        self.backlog.defer([self.backlog.take(len(pairs)).token], now_s)

    def take(self, runs: int = 1_000) -> list[tuple[int, int]]:
        return [run[:2] for run in self.backlog.take(runs).runs.singly()]

    @property
    def deferred(self) -> list[tuple[int, int]]:
        return [run[:2] for run in self.backlog._deferred]

    def balanced(self) -> bool:
        return self.ledger.difference(self.backlog.pending) == 0 and self.backlog.strays == 0


def test_of_a_job_the_newest_refused_run_is_kept_whenever_the_others_were_refused():
    desk = Desk()
    desk.refuse((1, 20), (2, 10), now_s=0.0)
    desk.refuse((1, 10), now_s=0.5)  # older than what is held
    desk.refuse((2, 20), (2, 30), now_s=0.5)
    assert desk.ledger.skipped["backlog"] == 3
    desk.backlog.requeue_deferred(PAUSE_S)
    assert desk.take() == [(1, 20)]
    desk.backlog.requeue_deferred(PAUSE_S + 0.5)
    assert desk.take() == [(2, 30)]
    assert len(desk.deferred) == 0
    assert desk.balanced()


def test_a_job_that_wants_all_no_longer_keeps_its_newest_refused_run():
    desk = Desk()
    desk.backlog.keep_all = lambda ids: np.ones(len(ids), np.bool_)
    desk.refuse((1, 10), (1, 20))
    desk.backlog.keep_all = desk.keep_all
    desk.refuse((1, 30))
    assert desk.ledger.skipped["backlog"] == 2
    assert desk.deferred == [(1, 30)]


def test_beyond_the_limit_of_the_backlog_what_was_refused_first_goes():
    desk = Desk(limit=5)
    for fire_ms in range(0, 80, 10):
        desk.refuse((FIRST_OF_ALL, fire_ms))
    assert len(desk.deferred) == 5
    assert desk.ledger.skipped["backlog"] == 3
    desk.backlog.requeue_deferred(PAUSE_S)
    assert desk.take() == [(FIRST_OF_ALL, fire_ms) for fire_ms in range(30, 80, 10)]
    assert desk.balanced()


@pytest.mark.parametrize("jobs", [1, 5_000])
def test_a_turn_costs_nothing_for_what_is_deferred(jobs: int):
    def costs(held: int) -> list[int]:
        desk = Desk()
        if held:
            desk.refuse(*((FIRST_OF_ALL + number % jobs, number) for number in range(held)))
        desk.offer((FIRST_OF_ALL, 10**6))
        tokens = [desk.backlog.take(1).token]
        return [
            lines(lambda: desk.backlog.defer(tokens, 0.5)),
            lines(lambda: desk.backlog.requeue_deferred(0.6)),
        ]

    few, many = costs(2 * jobs), costs(10_000 + 2 * jobs)
    assert many == few
    assert max(many) < 100


def test_the_policies_of_a_turn_are_asked_for_at_once():
    desk = Desk()
    desk.refuse(*((job_id, fire_ms) for fire_ms in range(3) for job_id in range(50)))
    assert desk.asked == 1
    assert desk.ledger.skipped["backlog"] == 100


def test_the_runs_of_a_full_queue_leave_half_of_the_room_to_others():
    desk = Desk()
    full = FIRST_OF_ALL
    desk.refuse(*((full, number) for number in range(100)))
    for turn in range(20):
        now_s = (turn + 1) * PAUSE_S
        desk.offer((1, turn), (2, turn))
        desk.backlog.requeue_deferred(now_s)
        lease = desk.backlog.take(4)
        ids = lease.runs.ids
        assert ids[ids != full].tolist() == [1, 2]
        (refused,) = desk.backlog.leases.split(lease.token, np.flatnonzero(ids == full))
        assert len(refused.runs.ids) == 2
        desk.backlog.confirm([lease.token])
        desk.backlog.defer([refused.token], now_s)
    assert desk.backlog.pending == 100
    assert desk.balanced()


def test_what_was_refused_waits_behind_what_could_not_be_sent():
    desk = Desk()
    desk.refuse((1, 10))
    desk.offer((2, 20), (3, 20))
    desk.backlog.requeue([desk.backlog.take(2).token])
    desk.backlog.requeue_deferred(PAUSE_S)
    desk.offer((4, 30))
    assert desk.take() == [(2, 20), (3, 20), (1, 10), (4, 30)]


def test_runs_of_a_job_go_in_order_though_an_older_one_was_refused():
    desk = Desk()
    desk.offer((1, 10))
    refused = desk.backlog.take(1)
    desk.offer(*((job_id, 20) for job_id in (2, 3, 4, 1)))
    desk.backlog.defer([refused.token], 0.0)
    assert desk.take(1) == [(2, 20)]
    desk.backlog.requeue_deferred(PAUSE_S)
    desk.offer((1, 30))
    fires_ms = [fire_ms for runs in (2, 2, 2) for job_id, fire_ms in desk.take(runs) if job_id == 1]
    assert fires_ms == [10, 20, 30]


def test_many_refused_runs_that_wait_again_are_quickly_looked_through_for_the_oldest():
    def cost(runs: int) -> int:
        desk = Desk()
        desk.offer(*((FIRST_OF_ALL, number) for number in range(runs)))
        lease = desk.backlog.take(runs)
        refused = desk.backlog.leases.split_singly(lease.token, [0] * len(lease.runs.ids))
        for number, token in enumerate(refused):
            desk.backlog.defer([token], number)
            desk.backlog.requeue_deferred(number + PAUSE_S)  # each in a turn of its own
        assert desk.backlog.oldest_fire_ms() == 0
        return lines(desk.backlog.oldest_fire_ms)

    assert cost(5_000) < 10 * cost(1)
