"""The fair queue: nothing is lost, the runs of a job stay in order, and no job waits for the backlog of another."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.steps import lines

from celery_wheelbeat.dispatch.pending import PendingRun, PendingRuns
from celery_wheelbeat.dispatch.queues import fair_queue
from celery_wheelbeat.dispatch.queues.fair_queue import SMALL, FairQueue


def runs_of(*runs: tuple[int, int]) -> PendingRuns:
    return PendingRuns.of([PendingRun(job_id, fire_ms) for job_id, fire_ms in runs])


def pairs(runs: PendingRuns) -> list[tuple[int, int]]:
    return [(run.job_id, run.fire_ms) for run in runs.singly()]


def test_a_job_with_one_run_does_not_wait_for_the_many_of_others():
    queue = FairQueue()
    queue.append(runs_of(*[(job_id, fire) for fire in range(500) for job_id in (1, 2)]))
    assert len(queue.take(10).ids) == 10
    queue.append(runs_of((3, 1_000)))
    assert (3, 1_000) in pairs(queue.take(3))


def test_within_a_round_the_oldest_run_is_first():
    queue = FairQueue()
    queue.append(runs_of((1, 10), (2, 20), (1, 30), (3, 40), (2, 50), (1, 60)))
    assert pairs(queue.take(5)) == [(1, 10), (2, 20), (3, 40), (1, 30), (2, 50)]


def test_a_queue_that_is_emptied_gives_no_job_a_disadvantage():
    queue = FairQueue()
    queue.append(runs_of(*[(1, fire) for fire in range(50)]))
    queue.take(40)
    queue.take(10)
    queue.append(runs_of((1, 100), (2, 101), (2, 102)))
    assert pairs(queue.take(2)) == [(1, 100), (2, 101)]


def test_a_job_whose_runs_were_removed_begins_in_the_current_round():
    queue = FairQueue()
    queue.append(runs_of(*[(job_id, fire) for fire in range(50) for job_id in (1, 2)]))
    queue.take(4)
    assert Counter(queue.remove(np.array([1])).ids.tolist()) == {1: 48}
    queue.append(runs_of((1, 100)))
    assert (1, 100) in pairs(queue.take(2))
    assert queue.count == 47


def test_a_take_costs_no_more_steps_when_ten_times_as_many_runs_wait():
    def cost(runs: int) -> int:
        queue = FairQueue()
        queue.append(PendingRuns(np.arange(runs) % 97, np.arange(runs), np.zeros(runs, np.int32)))

        def serve() -> None:
            for number in range(5):
                queue.append(PendingRuns(np.arange(100), np.full(100, runs + number), np.zeros(100, np.int32)))
                queue.take(runs // 10)

        return lines(serve)

    assert cost(100 * SMALL) <= 1.1 * cost(10 * SMALL)


def test_waiting_runs_are_kept_in_few_blocks():
    queue = FairQueue()
    for number in range(300):
        queue.append(PendingRuns(np.arange(50) % 40, np.full(50, number), np.zeros(50, np.int32)))
        queue.take(10)
    assert queue.count == 300 * 40
    assert sum(1 for _ in queue.chunks()) < 12


class Turns(RuleBasedStateMachine):
    """Random additions and takes; ``heavy`` jobs have many runs."""

    AT_ONCE = fair_queue.AT_ONCE
    OTHERS_FIRST = 2
    """Most runs of another job that are taken while the oldest run of a job waits."""

    def teardown(self) -> None:
        fair_queue.AT_ONCE = Turns.AT_ONCE

    @initialize()
    def begin(self) -> None:
        fair_queue.AT_ONCE = self.AT_ONCE
        self.queue = FairQueue()
        self.now_ms = 0
        self.waiting: dict[int, list[int]] = defaultdict(list)
        self.returned = 0
        """Runs that were given back and come first."""
        self.passed: dict[int, Counter[int]] = {}
        """Per job, the runs of each other job that were taken while its oldest run waited."""

    @rule(ids=st.lists(st.integers(0, 9), max_size=6), heavy=st.integers(0, 9), many=st.integers(0, 40))
    def add(self, ids: list[int], heavy: int, many: int) -> None:
        added = []
        for job_id in [*ids, *[heavy] * many]:
            self.now_ms += 1
            added.append((job_id, self.now_ms))
            self.waiting[job_id].append(self.now_ms)
            self.passed.setdefault(job_id, Counter())
        self.queue.append(runs_of(*added))

    @rule(runs=st.integers(0, 30))
    def take(self, runs: int) -> None:
        runs = min(runs, self.queue.count)
        whole = runs == self.queue.count
        taken = pairs(self.queue.take(runs))
        assert len(taken) == runs
        again, self.returned = min(runs, self.returned), max(0, self.returned - runs)
        for number, (job_id, fire_ms) in enumerate(taken):
            assert self.waiting[job_id].pop(0) == fire_ms, "lost, twice, or out of order"
            for other, passed in self.passed.items():
                if other != job_id and number >= again:
                    passed[job_id] += 1
                    assert whole or passed[job_id] <= self.OTHERS_FIRST, "a job waited for the backlog of another"
            if self.waiting[job_id]:
                self.passed[job_id] = Counter()
            else:
                del self.passed[job_id]

    @rule(ids=st.lists(st.integers(0, 9), max_size=3, unique=True))
    def remove(self, ids: list[int]) -> None:
        gone = pairs(self.queue.remove(np.array(ids, np.int64)))
        self.returned = len(self.queue._returned.ids)
        assert sorted(gone) == sorted((job_id, fire) for job_id in ids for fire in self.waiting.pop(job_id, []))
        for job_id in ids:
            self.passed.pop(job_id, None)

    @rule()
    def start_again(self) -> None:
        """All runs leave and return, as in a squeeze that keeps them."""
        runs, self.returned = self.queue.clear(), 0
        assert self.queue.count == 0
        self.queue.append(runs)
        self.passed = {job_id: Counter() for job_id in self.passed}

    @rule(runs=st.integers(1, 10))
    def give_back(self, runs: int) -> None:
        """Runs that were taken and not sent are the next ones."""
        returned = self.queue.take(min(max(runs, self.returned), self.queue.count))
        self.queue.prepend(returned)
        again = self.queue.take(len(returned.ids))
        assert sorted(pairs(again)) == sorted(pairs(returned))
        self.queue.prepend(again)
        self.returned = len(again.ids)
        self.passed = {job_id: Counter() for job_id in self.passed}

    @invariant()
    def the_count_is_right(self) -> None:
        waits = sorted((job_id, fire) for job_id, fires in self.waiting.items() for fire in fires)
        assert sorted(run for chunk in self.queue.chunks() for run in pairs(chunk)) == waits
        assert self.queue.count == len(waits)


Turns.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestTurns = Turns.TestCase


class ShortTurns(Turns):
    """So many runs wait that they do not all get their rounds at once."""

    AT_ONCE = 7
    OTHERS_FIRST = 1_000_000


ShortTurns.TestCase.settings = Turns.TestCase.settings
TestShortTurns = ShortTurns.TestCase
