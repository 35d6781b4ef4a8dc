"""Poll lane: grids without drift, and foreign schedules that raise, lie and dawdle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheelbeat.jobs import NEVER_MS, Asked
from celery_wheelbeat.poll_lane import IDLE_MS, RETRY_MS, STALE_MAX, GridSchedule, PollLane
from celery_wheelbeat.schedules import Bounded, Interval

if TYPE_CHECKING:
    from collections.abc import Callable

START_MS = 1_700_000_001_000
"""A multiple of every interval below."""


class Scripted:
    """A schedule that answers with what a function says, and remembers when it was asked."""

    def __init__(self, answer: Callable[[int], Asked]) -> None:
        self.answer = answer
        self.asked: list[int] = []

    def ask(self, now_ms: int) -> Asked:
        self.asked.append(now_ms)
        return self.answer(now_ms)


def lane(**options: float) -> PollLane:
    return PollLane(lambda: 0.0, **options)


def grid(interval_ms: int, **options: int) -> GridSchedule:
    return GridSchedule(Bounded(Interval(interval_ms / 1000), **options), START_MS)


@given(
    interval_ms=st.integers(1, 5_000),
    offset_ms=st.integers(0, 4_999),
    turns_ms=st.lists(st.integers(1, 3_000), min_size=1, max_size=20),
)
def test_a_grid_is_replayed_whole_whenever_the_lane_is_asked(interval_ms: int, offset_ms: int, turns_ms: list[int]):
    beside = lane(steps=10**9)
    beside.put(5, grid(interval_ms, offset_ms=offset_ms), ask_ms=START_MS)
    now_ms, fires = START_MS, []
    for turn_ms in turns_ms:
        now_ms += turn_ms
        turn = beside.advance(now_ms)
        assert not turn.behind
        fires += [fire_ms for _, fire_ms in turn.due]
    expected = [ms for ms in range(START_MS + 1, now_ms + 1) if (ms - offset_ms) % interval_ms == 0]
    assert fires == expected
    assert beside.next_ask_ms() > now_ms


def test_several_jobs_are_due_in_the_order_of_their_fire_times():
    beside = lane()
    beside.put(1, grid(300), ask_ms=START_MS)
    beside.put(2, grid(700), ask_ms=START_MS)
    due = beside.advance(START_MS + 3_000).due
    assert [fire_ms for _, fire_ms in due] == sorted(fire_ms for _, fire_ms in due)
    assert sum(job_id == 1 for job_id, _ in due) == 10
    assert sum(job_id == 2 for job_id, _ in due) == 4


def test_a_schedule_with_an_end_is_not_asked_again():
    beside = lane()
    beside.put(1, grid(300, end_ms=START_MS + 1_000), ask_ms=START_MS)
    assert len(beside.advance(START_MS + 60_000).due) == 3
    assert beside.next_ask_ms() == NEVER_MS
    assert 1 in beside
    assert beside.remove(1)
    assert not beside.remove(1)


def test_an_exception_touches_only_its_own_job():
    def broken(now_ms: int) -> Asked:
        raise OSError("no horizon")

    bad = Scripted(broken)
    beside = lane()
    beside.put(1, bad, ask_ms=START_MS)
    beside.put(2, grid(300), ask_ms=START_MS)
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
    beside = PollLane(lambda: next(seconds) * 0.001, budget_s=0.002)
    for job_id in range(6):
        beside.put(job_id, grid(300), ask_ms=START_MS + 300)
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
    beside.put(1, grid(1), ask_ms=START_MS)
    turn = beside.advance(START_MS + 1_000_000)
    assert len(turn.due) == 100
    assert turn.behind
    assert beside.next_ask_ms() == START_MS + 101


def test_edits_leave_no_more_behind_than_a_bound():
    beside = lane()
    for edit in range(10 * STALE_MAX):
        beside.put(edit % 3, Scripted(lambda now_ms: Asked(now_ms, NEVER_MS)), ask_ms=START_MS + 86_400_000 - edit)
        assert len(beside._heap) <= 2 * 3 + STALE_MAX
    due = beside.advance(START_MS + 86_400_000).due
    assert sorted(job_id for job_id, _ in due) == [0, 1, 2]
