"""Backlog: every offered run leaves in one way, in the order of its job, within bounded memory."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from celery_wheelbeat.dispatch import backlog
from celery_wheelbeat.dispatch.backlog import Backlog
from celery_wheelbeat.dispatch.pending import PendingRun
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.definitions import DueBatch, Offer
from celery_wheelbeat.schedules.kinds import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_wheelbeat.schedules.kinds import Int64s

REPLAYED = {7, 8, 9}
"""Job ids of the tests that have ``misfire=all``."""


def keep_all(ids: Int64s) -> np.ndarray:
    return np.isin(ids, list(REPLAYED))


def due(pairs: Iterable[tuple[int, int]], offer: Offer = Offer.DUE, step: int = 0) -> DueBatch:
    pairs = list(pairs)
    ids = np.array([job_id for job_id, _ in pairs], np.int64)
    fire_ms = np.array([fire for _, fire in pairs], np.int64)
    nothing = np.zeros(len(pairs), np.uint32)
    return DueBatch(shard=0, rows=nothing, ids=ids, fire_ms=fire_ms, route_index=nothing, offer=offer, step=step)


class Desk:
    """A backlog and its ledger, with the engine's part of the bookkeeping."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self.ledger = Ledger()
        self.backlog = Backlog(self.ledger, limit=limit, keep_all=keep_all)

    def offer(self, *pairs: tuple[int, int], offer: Offer = Offer.DUE, step: int = 0) -> None:
        if offer is not Offer.REOFFERED:
            self.ledger.expect(len(pairs))
        self.backlog.offer(due(pairs, offer, step))

    def take(self, runs: int) -> dict[int, PendingRun]:
        lease = self.backlog.take(runs)
        return self.backlog.leases.split_singly(lease.token, [0] * len(lease.runs.ids))

    def balanced(self) -> bool:
        return self.ledger.difference(self.backlog.pending) == 0


def job_fires(taken: dict[int, PendingRun]) -> list[tuple[int, int]]:
    return [(pair.job_id, pair.fire_ms) for pair in taken.values()]


def test_what_is_taken_and_confirmed_is_sent():
    desk = Desk()
    desk.offer((1, 1000), (2, 1000), (3, 2000))
    taken = desk.take(2)
    assert job_fires(taken) == [(1, 1000), (2, 1000)]
    assert (desk.backlog.waiting, desk.backlog.in_flight, desk.backlog.pending) == (1, 2, 3)
    assert desk.backlog.oldest_fire_ms() == 1000
    confirmed = desk.backlog.confirm(taken)
    assert confirmed.ids.tolist() == [1, 2]
    assert (desk.ledger.sent, desk.backlog.pending) == (2, 1)
    assert desk.backlog.oldest_fire_ms() == 2000
    assert desk.balanced()


def test_the_shards_of_one_tick_are_taken_in_order_of_fire_time():
    desk = Desk()
    desk.offer((0, 1000), (0, 2000), (0, 3000))
    desk.offer((1, 1000), (1, 2500))
    assert job_fires(desk.take(10)) == [(0, 1000), (1, 1000), (0, 2000), (1, 2500), (0, 3000)]


def test_an_outage_keeps_the_newest_run_of_a_job_and_all_of_those_that_want_it():
    desk = Desk()
    for runs in ([(1, 1000), (2, 1000), (7, 1000)], [(1, 2000), (2, 2000), (7, 2000)], [(1, 3000)]):
        desk.offer(*runs)
        desk.backlog.squeeze()
    assert desk.ledger.skipped["backlog"] == 3
    assert desk.backlog.pending == 4
    assert desk.balanced()
    assert job_fires(desk.take(10)) == [(7, 1000), (2, 2000), (7, 2000), (1, 3000)]


def test_runs_of_a_momentarily_full_window_are_not_squeezed():
    desk = Desk()
    desk.offer((1, 1000))
    desk.take(0)
    desk.offer((1, 2000))
    assert job_fires(desk.take(5)) == [(1, 1000), (1, 2000)]


def test_beyond_the_limit_the_oldest_runs_go_whatever_their_policy():
    desk = Desk(limit=4)
    desk.offer(*[(7, fire) for fire in range(0, 6000, 1000)], (1, 6000))
    desk.backlog.squeeze()
    assert desk.ledger.skipped["backlog"] == 3
    assert job_fires(desk.take(10)) == [(7, 3000), (7, 4000), (7, 5000), (1, 6000)]
    assert desk.balanced()


def test_a_slow_destination_is_squeezed_only_beyond_the_limit():
    desk = Desk(limit=5)
    desk.offer((1, 1000), (1, 2000), (2, 1000), (2, 2000))
    assert len(desk.take(1)) == 1
    assert desk.ledger.skipped["backlog"] == 0
    desk.offer((1, 3000), (2, 3000), (3, 3000))
    assert job_fires(desk.take(9)) == [(1, 3000), (2, 3000), (3, 3000)]
    assert desk.ledger.skipped["backlog"] == 3
    assert desk.balanced()


def test_a_drained_outage_leaves_half_of_the_room_to_what_is_due_now():
    desk = Desk()
    desk.offer(*[(job_id, 1000) for job_id in range(100, 110)])
    desk.backlog.squeeze()
    desk.offer(*[(job_id, 60_000) for job_id in range(200, 210)])
    taken = job_fires(desk.take(6))
    assert [fire for _, fire in taken] == [1000] * 3 + [60_000] * 3
    assert len(desk.take(100)) == 14


@pytest.mark.parametrize("after_an_outage", [False, True])
def test_a_job_with_one_run_does_not_wait_for_hundreds_of_others(*, after_an_outage: bool):
    desk = Desk()
    for fire in range(300):
        desk.offer((7, fire), (8, fire), (9, fire))
    desk.take(6)
    if after_an_outage:
        desk.backlog.squeeze()
    desk.offer((1, 1_000))
    assert (1, 1_000) in job_fires(desk.take(4))
    assert desk.balanced()


def test_a_new_run_waits_behind_the_late_ones_of_its_job():
    desk = Desk()
    desk.offer(*[(job_id, 1000) for job_id in range(100, 110)])
    desk.backlog.squeeze()
    desk.offer((109, 2000), (300, 2000))
    taken = job_fires(desk.take(4))
    assert taken == [(100, 1000), (101, 1000), (102, 1000), (300, 2000)]
    rest = job_fires(desk.take(100))
    assert rest.index((109, 1000)) < rest.index((109, 2000))


def test_runs_that_were_not_sent_come_first_again():
    desk = Desk()
    desk.offer((1, 1000), (2, 2000), (3, 3000), (4, 4000))
    first = desk.take(3)
    desk.backlog.requeue(reversed(list(first)))
    assert (desk.backlog.in_flight, desk.backlog.pending) == (0, 4)
    assert job_fires(desk.take(4)) == [(1, 1000), (2, 2000), (3, 3000), (4, 4000)]
    assert desk.balanced()


def test_runs_given_back_while_the_destination_is_down_are_squeezed_with_the_others():
    desk = Desk()
    desk.offer((1, 1000))
    taken = desk.take(1)
    desk.offer((1, 2000))
    desk.backlog.squeeze()
    desk.backlog.requeue(taken)
    desk.backlog.squeeze()
    assert job_fires(desk.take(5)) == [(1, 2000)]
    assert desk.ledger.skipped["backlog"] == 1
    assert desk.balanced()


@pytest.mark.parametrize("reason", ["error", "unroutable", "removed", "quarantined"])
def test_a_run_that_can_never_be_sent_is_skipped_with_its_reason(reason: str):
    desk = Desk()
    desk.offer((1, 1000), (2, 1000))
    token, *_ = desk.take(2)
    assert list(desk.backlog.skip([token], reason).singly()) == [PendingRun(1, 1000)]
    assert desk.ledger.skipped[reason] == 1
    assert desk.balanced()


def test_an_outcome_that_comes_twice_is_counted_apart():
    desk = Desk()
    desk.offer((1, 1000))
    taken = desk.take(1)
    desk.backlog.confirm(taken)
    desk.backlog.confirm(taken)
    desk.backlog.requeue(taken)
    assert (desk.backlog.strays, desk.ledger.sent, desk.backlog.waiting) == (2, 1, 0)
    assert desk.balanced()


def test_reoffered_runs_stand_outside_the_sum():
    desk = Desk()
    desk.offer((1, 1000), (2, 1000), offer=Offer.REOFFERED)
    desk.offer((3, 2000), offer=Offer.MISFIRE)
    taken = desk.take(3)
    assert [pair.reoffered for pair in taken.values()] == [True, True, False]
    assert desk.backlog.pending == 1
    one, two, three = taken
    desk.backlog.skip([one], "error")
    desk.backlog.confirm([two, three])
    assert (desk.ledger.sent, desk.ledger.reoffered, desk.ledger.skipped.total()) == (1, 1, 0)
    assert desk.balanced()


def test_a_relived_fire_time_keeps_the_number_of_its_clock_step():
    desk = Desk()
    desk.offer((1, 1000), step=3)
    (pair,) = desk.take(1).values()
    assert (pair.step, pair.reoffered) == (3, False)


def test_the_oldest_run_is_found_without_looking_at_what_has_not_changed(monkeypatch: pytest.MonkeyPatch):
    looked_at = 0

    def counting(fires_ms: Int64s) -> int:
        nonlocal looked_at
        looked_at += len(fires_ms)
        return int(fires_ms.min())

    monkeypatch.setattr(backlog, "least", counting)
    desk = Desk()
    for chunk in range(50):
        desk.offer(*((10_000 * chunk + n, 1_000 * chunk + n % 7) for n in range(2_000)))
    taken = desk.take(10)
    assert desk.backlog.oldest_fire_ms() == 0
    looked_at = 0
    assert desk.backlog.oldest_fire_ms() == 0
    assert looked_at == 10, "those in flight"
    desk.offer((5, 3))
    desk.backlog.confirm(list(taken))
    assert desk.backlog.oldest_fire_ms() == min(run.fire_ms for run in waiting(desk))
    assert looked_at < 3_000


def waiting(desk: Desk) -> list[PendingRun]:
    """Return the runs that can be taken."""
    return list(desk.take(desk.backlog.waiting).values())


def test_drop_lets_the_waiting_runs_of_a_job_go():
    desk = Desk()
    desk.offer((1, 1000), (2, 1000))
    desk.backlog.squeeze()
    desk.offer((1, 2000), (3, 2000))
    assert desk.backlog.drop(np.array([1]), "removed") == 2
    assert job_fires(desk.take(9)) == [(2, 1000), (3, 2000)]
    assert desk.ledger.skipped["removed"] == 2
    assert desk.balanced()


def test_shutdown_skips_what_is_left_and_reports_it():
    desk = Desk()
    desk.offer((1, 1000), (2, 2000), (3, 3000))
    desk.take(1)
    assert desk.backlog.shutdown() == (3, 1000, 3000)
    assert desk.ledger.skipped["shutdown"] == 3
    assert (desk.backlog.pending, desk.backlog.oldest_fire_ms()) == (0, None)
    assert desk.balanced()
    assert desk.backlog.shutdown() == (0, None, None)


def test_an_outage_of_any_length_needs_memory_for_its_jobs_only():
    desk = Desk(limit=50_000)
    ids = np.arange(20_000, dtype=np.int64) + 1_000
    nothing = np.zeros(len(ids), np.uint32)

    def minute(number: int) -> None:
        desk.ledger.expect(len(ids))
        desk.backlog.offer(DueBatch(0, nothing, ids, np.full(len(ids), number * 60_000, np.int64), nothing))
        desk.backlog.squeeze()

    minute(0)
    minute(1)  # the first skips make numpy import more of itself
    tracemalloc.start()
    try:
        for number in range(2, 200):
            minute(number)
        kept, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert desk.backlog.waiting == len(ids)
    assert kept < 40 * len(ids)
    assert desk.balanced()


def test_a_lease_is_split_at_positions_and_the_rest_keeps_its_token():
    desk = Desk()
    desk.offer(*((job_id, 1000) for job_id in range(10)))
    lease = desk.backlog.take(10)
    last, odd = desk.backlog.leases.split(lease.token, [9, 8], np.array([1, 3]))
    assert (last.runs.ids.tolist(), odd.runs.ids.tolist()) == ([9, 8], [1, 3])
    assert desk.backlog.leases.runs_of(lease.token).ids.tolist() == [0, 2, 4, 5, 6, 7]
    desk.backlog.skip([odd.token], "removed")
    assert desk.backlog.confirm([lease.token, last.token]).ids.tolist() == [0, 2, 4, 5, 6, 7, 9, 8]
    assert (desk.ledger.sent, desk.ledger.skipped["removed"], desk.backlog.pending) == (8, 2, 0)
    assert desk.balanced()


def test_a_lease_without_any_run_left_has_ended():
    desk = Desk()
    desk.offer((1, 1000), (2, 1000))
    lease = desk.backlog.take(2)
    (part,) = desk.backlog.leases.split(lease.token, [0, 1])
    assert len(desk.backlog.leases.runs_of(lease.token).ids) == 0
    desk.backlog.confirm([part.token])
    assert (desk.backlog.strays, desk.backlog.in_flight, desk.ledger.sent) == (0, 0, 2)


def test_runs_that_are_sent_alone_are_taken_in_halves_and_count_as_in_flight():
    desk = Desk()
    desk.offer(*((job_id, 1000) for job_id in range(5)))
    desk.backlog.leases.set_alone(desk.backlog.take(5).token)
    assert (desk.backlog.in_flight, desk.backlog.waiting, desk.backlog.oldest_fire_ms()) == (5, 0, 1000)
    assert [desk.backlog.leases.begin_alone().runs.ids.tolist() for _ in range(2)] == [[0, 1, 2], [3, 4]]
    assert not desk.backlog.leases.alone
    assert desk.backlog.in_flight == 5


def test_a_run_is_outdated_until_it_is_taken_again():
    desk = Desk()
    desk.offer((1, 1000), (2, 1000), (3, 1000))
    one, (single,) = desk.backlog.take(2), desk.take(1)
    desk.backlog.leases.outdate(np.array([2, 3, 9]))
    assert [run.outdated for run in desk.backlog.leases.runs_of(one.token).singly()] == [False, True]
    assert [run.outdated for run in desk.backlog.leases.runs_of(single).singly()] == [True]
    desk.backlog.requeue([one.token, single])
    assert not any(run.outdated for run in desk.take(3).values())


class Drill(RuleBasedStateMachine):
    """Random offers, outages, failures, drops and ends; the account, the order and the bound hold after each."""

    LIMIT = 30

    @initialize()
    def begin(self) -> None:
        self.desk = Desk(limit=self.LIMIT)
        self.now_ms = 0
        self.taken_first: dict[int, list[int]] = defaultdict(list)
        self.handed_out: set[tuple[int, int]] = set()
        self.flying: dict[int, PendingRun] = {}

    @rule(ids=st.lists(st.integers(0, 12), max_size=12, unique=True), jump=st.integers(1, 3))
    def offer(self, ids: list[int], jump: int) -> None:
        self.now_ms += jump * 1000
        half = len(ids) // 2
        self.desk.offer(*[(job_id, self.now_ms - 500) for job_id in ids[:half]])
        self.desk.offer(*[(job_id, self.now_ms) for job_id in ids])
        assert self.desk.backlog.waiting <= 2 * self.LIMIT

    @rule(ids=st.lists(st.integers(20, 25), max_size=5, unique=True))
    def offer_again(self, ids: list[int]) -> None:
        self.now_ms += 1000
        self.desk.offer(*[(job_id, self.now_ms) for job_id in ids], offer=Offer.REOFFERED)

    @rule(runs=st.integers(0, 15))
    def take(self, runs: int) -> None:
        before = self.desk.backlog.waiting
        taken = self.desk.take(runs)
        assert len(taken) <= runs
        if before <= self.LIMIT:
            assert len(taken) == min(runs, before)
        for pair in taken.values():
            run = (pair.job_id, pair.fire_ms)
            if run not in self.handed_out:
                self.handed_out.add(run)
                self.taken_first[pair.job_id].append(pair.fire_ms)
        assert not self.flying.keys() & taken.keys()
        self.flying.update(taken)

    @rule(data=st.data(), outcome=st.sampled_from(["confirm", "requeue", "defer", "error", "removed"]))
    def settle(self, data: st.DataObject, outcome: str) -> None:
        if not self.flying:
            return
        tokens = data.draw(st.lists(st.sampled_from(sorted(self.flying)), unique=True))
        if outcome == "confirm":
            self.desk.backlog.confirm(tokens)
        elif outcome == "requeue":
            self.desk.backlog.requeue(tokens)
        elif outcome == "defer":
            self.desk.backlog.defer(tokens, self.now_ms / 1000)
        else:
            self.desk.backlog.skip(tokens, outcome)
        for token in tokens:
            del self.flying[token]

    @rule()
    def retry(self) -> None:
        self.desk.backlog.requeue_deferred(self.now_ms / 1000)

    @rule(data=st.data())
    def outdate(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.integers(0, 12), max_size=3))
        self.desk.backlog.leases.outdate(np.array(ids, np.int64))

    @rule()
    def outage(self) -> None:
        self.desk.backlog.squeeze()
        assert self.desk.backlog.waiting <= self.LIMIT

    @rule(ids=st.lists(st.integers(0, 12), max_size=3))
    def drop(self, ids: list[int]) -> None:
        self.desk.backlog.drop(np.array(ids, np.int64), "removed")

    @rule(shard=st.integers(0, 3))
    def give_away(self, shard: int) -> None:
        """Take out the runs of one of four shards; those in flight stay."""
        oldest_ms = np.full(4, NEVER_MS)
        self.desk.backlog.oldest_by_shard(oldest_ms)
        gone = self.desk.backlog.take_out(np.arange(4) == shard)
        assert (gone.ids & 3 == shard).all()
        left = [run.fire_ms for run in self.flying.values() if run.job_id & 3 == shard]
        assert min([*left, *gone.fire_ms.tolist()], default=NEVER_MS) == oldest_ms[shard]
        after_ms = np.full(4, NEVER_MS)
        self.desk.backlog.oldest_by_shard(after_ms)
        assert after_ms[shard] == min(left, default=NEVER_MS)
        assert (np.delete(after_ms, shard) == np.delete(oldest_ms, shard)).all()

    @rule()
    def shut_down(self) -> None:
        self.desk.backlog.shutdown()
        self.flying.clear()

    @invariant()
    def the_account_balances(self) -> None:
        assert self.desk.balanced()
        assert self.desk.backlog.strays == 0
        assert self.desk.backlog.in_flight == len(self.flying) + len(self.desk.backlog._deferred)

    @invariant()
    def the_runs_of_a_job_are_handed_out_in_order(self) -> None:
        for fires in self.taken_first.values():
            assert fires == sorted(set(fires))


Drill.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestDrill = Drill.TestCase
