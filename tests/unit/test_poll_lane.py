"""Poll lane: foreign schedules that raise, lie and dawdle, and none of them at the expense of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheelbeat.engine.poll_lane import IDLE_MS, RETRY_MS, STALE_MAX, PolledJobs
from celery_wheelbeat.schedules.kinds import NEVER_MS, Asked

if TYPE_CHECKING:
    from collections.abc import Callable

START_MS = 1_700_000_001_000


class Scripted:
    """A schedule that answers with what a function says, and remembers when it was asked."""

    def __init__(self, answer: Callable[[int], Asked]) -> None:
        self.answer = answer
        self.asked: list[int] = []

    def ask(self, now_ms: int) -> Asked:
        self.asked.append(now_ms)
        return self.answer(now_ms)


def lane(**options: float) -> PolledJobs:
    return PolledJobs(lambda: 0.0, **options)


class Steady:
    """A schedule that answers with every multiple of its interval after ``START_MS``, in order."""

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        self.next_ms = START_MS + interval_ms

    def ask(self, now_ms: int) -> Asked:
        if self.next_ms > now_ms:
            return Asked(None, self.next_ms)
        fire_ms, self.next_ms = self.next_ms, self.next_ms + self.interval_ms
        return Asked(fire_ms, self.next_ms)


@given(
    intervals_ms=st.lists(st.integers(1, 5_000), min_size=1, max_size=6),
    turns_ms=st.lists(st.integers(1, 3_000), min_size=1, max_size=20),
    steps=st.sampled_from([1, 3, 10**9]),
)
def test_every_fire_time_is_handed_out_once_whatever_a_turn_has_room_for(
    intervals_ms: list[int], turns_ms: list[int], steps: int
):
    beside = lane(steps=steps)
    for job_id, interval_ms in enumerate(intervals_ms):
        beside.put(job_id, Steady(interval_ms), ask_ms=START_MS)
    now_ms, runs = START_MS, []
    for turn_ms in turns_ms:
        now_ms += turn_ms
        runs += beside.advance(now_ms).due
    while beside.next_ask_ms() <= now_ms:
        runs += beside.advance(now_ms).due
    expected = [
        (job_id, fire_ms)
        for job_id, interval_ms in enumerate(intervals_ms)
        for fire_ms in range(START_MS + interval_ms, now_ms + 1, interval_ms)
    ]
    assert sorted(runs) == sorted(expected)
    assert beside.next_ask_ms() > now_ms


def test_several_jobs_are_due_in_the_order_of_their_fire_times():
    beside = lane()
    beside.put(1, Steady(300), ask_ms=START_MS)
    beside.put(2, Steady(700), ask_ms=START_MS)
    due = beside.advance(START_MS + 3_000).due
    assert [fire_ms for _, fire_ms in due] == sorted(fire_ms for _, fire_ms in due)
    assert sum(job_id == 1 for job_id, _ in due) == 10
    assert sum(job_id == 2 for job_id, _ in due) == 4


@pytest.mark.parametrize("steps", [1, 5, 22])
def test_a_job_waits_no_longer_than_one_round_of_those_that_are_behind(steps: int):
    beside = lane(steps=steps)
    for job_id in range(21):
        beside.put(job_id, Steady(1), ask_ms=START_MS)
    beside.put(100, Steady(1_500), ask_ms=START_MS + 1_500)
    now_ms = START_MS
    while now_ms < START_MS + 60_000:
        now_ms += 1_500
        questions, found = 0, False
        while not found:
            turn = beside.advance(now_ms)
            assert turn.behind
            questions += steps
            found = (100, now_ms) in turn.due
        assert questions <= 21 + steps, "21 others, then its turn"


def test_a_schedule_that_ends_is_not_asked_again():
    beside = lane()
    beside.put(1, Scripted(lambda now_ms: Asked(now_ms, NEVER_MS)), ask_ms=START_MS)
    assert len(beside.advance(START_MS + 60_000).due) == 1
    assert beside.next_ask_ms() == NEVER_MS
    assert 1 in beside
    assert beside.remove(1)
    assert not beside.remove(1)


def test_the_mark_stays_before_whatever_was_not_asked():
    beside = lane(steps=1)
    beside.put(1, Steady(10), ask_ms=START_MS + 10)
    beside.put(2, Steady(7), ask_ms=START_MS + 7)
    beside.put(3, Steady(9_000), ask_ms=START_MS + 9_000)
    assert beside.next_ask_ms() == START_MS + 7
    beside.advance(START_MS + 1_000)
    assert beside.next_ask_ms() == START_MS + 10
    beside.advance(START_MS + 1_000)
    assert beside.next_ask_ms() == START_MS + 14
    beside.remove(2)
    assert beside.next_ask_ms() == START_MS + 20
    beside.put(1, Steady(10), ask_ms=START_MS + 5_000)
    assert beside.next_ask_ms() == START_MS + 5_000


def test_an_exception_touches_only_its_own_job():
    def broken(now_ms: int) -> Asked:
        raise OSError("no horizon")

    bad = Scripted(broken)
    beside = lane()
    beside.put(1, bad, ask_ms=START_MS)
    beside.put(2, Steady(300), ask_ms=START_MS)
    turn = beside.advance(START_MS + 700)
    assert [(failure.job_id, str(failure.error)) for failure in turn.failures] == [(1, "no horizon")]
    assert len(turn.due) == 2
    assert beside.advance(START_MS + 1_000).failures == []
    assert len(beside.advance(START_MS + 700 + RETRY_MS).failures) == 1


@pytest.mark.parametrize("answer", [None, "soon", (1, 2, 3), (None, "later"), ("now", 3)])
def test_an_answer_that_is_none_is_an_exception_like_any_other(answer: object):
    beside = lane()
    beside.put(1, Scripted(lambda _now_ms: answer), ask_ms=START_MS)  # type: ignore[arg-type,return-value]
    turn = beside.advance(START_MS)
    assert turn.due == []
    assert isinstance(turn.failures[0].error, (TypeError, ValueError))


def test_a_schedule_that_is_always_due_gets_one_run_per_fire_time():
    greedy = Scripted(lambda now_ms: Asked(now_ms // 1000 * 1000, now_ms))
    beside = lane()
    beside.put(1, greedy, ask_ms=START_MS)
    fires = [beside.advance(START_MS + 100 * turn).due for turn in range(25)]
    assert [due for turn in fires for due in turn] == [(1, START_MS), (1, START_MS + 1_000), (1, START_MS + 2_000)]
    assert len(greedy.asked) <= 2 * 25


def test_a_schedule_that_is_never_due_but_in_a_hurry_is_asked_once_a_second():
    hasty = Scripted(lambda now_ms: Asked(None, now_ms))
    beside = lane()
    beside.put(1, hasty, ask_ms=START_MS)
    for turn in range(31):
        beside.advance(START_MS + 100 * turn)
    assert hasty.asked == [START_MS, START_MS + IDLE_MS, START_MS + 2 * IDLE_MS, START_MS + 3 * IDLE_MS]


def test_a_run_is_never_early_and_never_older_than_the_one_before():
    fires = iter([START_MS, START_MS + 5_000, START_MS - 60_000, START_MS + 900])
    beside = lane()
    beside.put(1, Scripted(lambda now_ms: Asked(next(fires), now_ms + 1)), ask_ms=START_MS)
    due = [beside.advance(START_MS + turn * 1_000).due for turn in range(4)]
    assert due == [[(1, START_MS)], [], [], [(1, START_MS + 900)]]


def test_a_replaced_schedule_is_asked_in_place_of_the_old_one():
    old, new = (Scripted(lambda now_ms: Asked(now_ms, now_ms + 1_000)) for _ in range(2))
    beside = lane()
    beside.put(1, old, ask_ms=START_MS)
    beside.put(1, new, ask_ms=START_MS + 500)
    assert beside.next_ask_ms() == START_MS + 500
    beside.advance(START_MS + 3_000)
    assert (old.asked, new.asked) == ([], [START_MS + 3_000])
    assert len(beside) == 1


def test_the_budget_ends_a_turn_and_those_who_wait_come_first_in_the_next():
    seconds = iter(range(1_000))
    beside = PolledJobs(lambda: next(seconds) * 0.001, budget_s=0.002)
    for job_id in range(6):
        beside.put(job_id, Steady(300), ask_ms=START_MS + 300)
    asked = []
    for _ in range(3):
        turn = beside.advance(START_MS + 300)
        asked += [job_id for job_id, _ in turn.due]
        assert len(turn.due) == 2
    assert asked == [0, 1, 2, 3, 4, 5]
    assert not turn.behind
    assert beside.next_ask_ms() == START_MS + 600


def test_the_steps_of_one_turn_are_bounded():
    beside = lane(steps=100)
    beside.put(1, Steady(1), ask_ms=START_MS)
    turn = beside.advance(START_MS + 1_000_000)
    assert len(turn.due) == 100
    assert turn.behind
    assert beside.next_ask_ms() == START_MS + 101


def test_edits_leave_no_more_behind_than_a_bound():
    beside = lane()
    for edit in range(10 * STALE_MAX):
        beside.put(edit % 3, Scripted(lambda now_ms: Asked(now_ms, NEVER_MS)), ask_ms=START_MS + 86_400_000 - edit)
        assert len(beside._ahead) <= 2 * 3 + STALE_MAX
    due = beside.advance(START_MS + 86_400_000).due
    assert sorted(job_id for job_id, _ in due) == [0, 1, 2]
