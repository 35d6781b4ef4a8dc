"""Slots, far windows and the marks that keep a row from firing twice."""

from __future__ import annotations

import numpy as np
from support.engine.definitions import entry_count

from celery_wheelbeat.engine.wheel import Wheel


def rows(*numbers: int) -> np.ndarray:
    """Row numbers."""
    return np.array(numbers, np.uint32)


def far_rows(wheel: Wheel) -> dict[int, list[int]]:
    """What each far window holds."""
    return {window: np.frombuffer(held, np.uint32).tolist() for window, held in wheel.far.items()}


def ticks(*numbers: int) -> np.ndarray:
    """Tick numbers."""
    return np.array(numbers, np.int64)


def test_rows_come_out_in_their_tick():
    wheel = Wheel(cursor=0, window_ticks=60)
    wheel.arm(rows(1, 2, 3, 4), ticks(5, 7, 5, 6))
    wheel.arm(rows(9), ticks(5))
    assert sorted(wheel.pop(5).tolist()) == [1, 3, 9]
    assert wheel.pop(5).tolist() == []
    assert wheel.pop(6).tolist() == [4]
    assert wheel.pop(7).tolist() == [2]
    assert entry_count(wheel) == 0


def test_what_lies_behind_the_edge_waits_in_its_window():
    wheel = Wheel(cursor=30, window_ticks=60)
    assert wheel.edge == 60
    wheel.arm(rows(1, 2, 3), ticks(59, 60, 119))
    wheel.arm(rows(4), ticks(120))
    assert set(wheel.slots) == {59}
    assert far_rows(wheel) == {
        1: [2, 3],
        2: [4],
    }
    assert sorted(wheel.pop_window().tolist()) == [2, 3]
    assert wheel.edge == 120
    assert wheel.pop_window().tolist() == [4]
    assert wheel.pop_window().tolist() == []


def test_a_row_that_left_and_came_back_comes_out_once():
    wheel = Wheel(cursor=0, window_ticks=60)
    wheel.arm(rows(1), ticks(10))
    wheel.moved_away(ticks(10))
    wheel.arm(rows(1), ticks(20))
    wheel.moved_away(ticks(20))
    wheel.arm(rows(1), ticks(10))
    assert wheel.pop(10).tolist() == [1]
    assert wheel.pop(20).tolist() == [1], "stale: the caller of pop must look at the row"


def test_the_same_in_a_far_window():
    wheel = Wheel(cursor=0, window_ticks=60)
    wheel.arm(rows(1), ticks(100))
    wheel.moved_away(ticks(100))
    wheel.arm(rows(1), ticks(10))
    wheel.moved_away(ticks(10))
    wheel.arm(rows(1), ticks(101))
    assert wheel.pop_window().tolist() == [1]


def test_a_slot_and_a_window_of_the_same_number_are_marked_apart():
    wheel = Wheel(cursor=0, window_ticks=60)
    wheel.arm(rows(1, 2), ticks(2, 150))
    wheel.moved_away(ticks(150))
    assert wheel.dirty_far == {2}
    assert wheel.dirty_slots == set()


def test_marks_are_not_kept_for_empty_places():
    wheel = Wheel(cursor=0, window_ticks=60)
    wheel.moved_away(ticks(3, 70, 10**9))
    assert not wheel.dirty_slots
    assert not wheel.dirty_far


def test_far_future_and_wide_spans_are_filed():
    wheel = Wheel(cursor=1_700_000_000, window_ticks=3_600)
    year_9999 = 253_402_300_799
    wheel.arm(rows(1, 2, 3), ticks(1_700_000_001, year_9999, year_9999 - 1))
    assert wheel.pop(1_700_000_001).tolist() == [1]
    assert far_rows(wheel) == {year_9999 // 3_600: [2, 3]}


def test_many_rows_cost_one_array_per_slot():
    wheel = Wheel(cursor=0, window_ticks=3_600)
    count = 100_000
    wheel.arm(np.arange(count, dtype=np.uint32), np.arange(count, dtype=np.int64) % 60 + 1)
    assert len(wheel.slots) == 60
    assert entry_count(wheel) == count
    assert (wheel.pop(7) % 60 == 6).all()
