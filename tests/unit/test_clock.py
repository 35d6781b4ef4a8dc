"""ClockGuard: what a stall, a suspended machine and a stepped clock are taken for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheelbeat.runtime.clock import ClockGuard, Motion, Reading, SystemClock

NOON_MS = 1_700_000_000_000


class Desk:
    """A guard and the two clocks that it looks at."""

    def __init__(self, **options: int) -> None:
        self.guard = ClockGuard(**options)
        self.wall_ms = NOON_MS
        self.monotonic_s = 50.0
        self.look()

    def look(self, *, wall_s: float = 0.0, monotonic_s: float = 0.0) -> Reading:
        self.wall_ms += round(wall_s * 1000)
        self.monotonic_s += monotonic_s
        return self.guard.read(self.wall_ms, self.monotonic_s)


def test_second_after_second_is_steady():
    desk = Desk()
    for _ in range(3):
        reading = desk.look(wall_s=1.01, monotonic_s=1.0)
        assert reading == Reading(Motion.STEADY, desk.wall_ms, 0, 0, None)


def test_a_stopped_process_was_stalled_by_what_the_monotonic_clock_says():
    reading = Desk().look(wall_s=30, monotonic_s=30)
    assert (reading.motion, reading.gap_ms, reading.skip_reason) == (Motion.STALLED, 30_000, "stall")
    assert reading.mark_limit_ms is None


def test_a_suspended_machine_looks_like_a_step_forward():
    reading = Desk().look(wall_s=8 * 3600, monotonic_s=0.4)
    assert (reading.motion, reading.skip_reason) == (Motion.FORWARD, "clock")
    assert reading.gap_ms == 8 * 3_600_000 - 400


def test_a_step_forward_holds_the_mark_back_for_a_minute():
    desk = Desk()
    stepped = desk.look(wall_s=3601, monotonic_s=1)
    assert stepped.now_ms == NOON_MS + 3_601_000
    assert stepped.mark_limit_ms == NOON_MS + 1_000
    assert desk.look(wall_s=59, monotonic_s=59).mark_limit_ms == NOON_MS + 60_000
    assert desk.look(wall_s=1, monotonic_s=1).mark_limit_ms is None


def test_a_second_step_forward_starts_the_minute_again_from_the_first_base():
    desk = Desk()
    desk.look(wall_s=100, monotonic_s=1)
    desk.look(wall_s=30, monotonic_s=30)
    desk.look(wall_s=100, monotonic_s=1)
    assert desk.look(wall_s=40, monotonic_s=40).mark_limit_ms == NOON_MS + 72_000
    assert desk.look(wall_s=20, monotonic_s=20).mark_limit_ms is None


def test_a_step_forward_that_is_taken_back_never_moved_the_mark():
    desk = Desk()
    desk.look(wall_s=3600, monotonic_s=0)
    back = desk.look(wall_s=-3600 + 10, monotonic_s=10)
    assert (back.motion, back.now_ms, back.steps) == (Motion.BACK, NOON_MS + 10_000, 1)
    assert back.mark_limit_ms == NOON_MS + 10_000, "the time that was right all along"
    assert desk.look(wall_s=1, monotonic_s=1).mark_limit_ms is None


def test_a_small_step_forward_does_not_hold_the_mark():
    reading = Desk().look(wall_s=4, monotonic_s=1)
    assert (reading.motion, reading.gap_ms, reading.mark_limit_ms) == (Motion.FORWARD, 3_000, None)


def test_up_to_five_seconds_behind_is_waited_for():
    desk = Desk()
    reading = desk.look(wall_s=-5, monotonic_s=0)
    assert (reading.motion, reading.now_ms, reading.gap_ms, reading.steps) == (Motion.WAIT, NOON_MS, 5_000, 0)
    assert desk.look(wall_s=4, monotonic_s=4).now_ms == NOON_MS
    caught_up = desk.look(wall_s=1.5, monotonic_s=1.5)
    assert (caught_up.motion, caught_up.now_ms) == (Motion.STEADY, NOON_MS + 500)


def test_small_steps_back_add_up():
    desk = Desk()
    assert desk.look(wall_s=-4).motion is Motion.WAIT
    reading = desk.look(wall_s=-4)
    assert (reading.motion, reading.gap_ms, reading.now_ms) == (Motion.BACK, 8_000, NOON_MS - 8_000)


def test_steps_back_are_numbered_on_from_the_stored_number():
    desk = Desk(steps=4)
    assert desk.look(wall_s=-60, monotonic_s=1).steps == 5
    assert desk.look(wall_s=1, monotonic_s=1) == Reading(Motion.STEADY, NOON_MS - 59_000, 0, 5, None)
    assert desk.look(wall_s=-3600, monotonic_s=1).steps == 6


def test_a_clock_set_back_during_a_longer_pause_has_not_gone_back():
    reading = Desk().look(wall_s=2, monotonic_s=10)
    assert (reading.motion, reading.now_ms, reading.steps) == (Motion.STALLED, NOON_MS + 2_000, 0)


@given(st.lists(st.tuples(st.integers(-20_000, 20_000), st.integers(0, 5_000)), max_size=30))
def test_time_goes_back_only_where_it_says_so(moves: list[tuple[int, int]]):
    guard = ClockGuard()
    wall_ms, monotonic_s = NOON_MS, 0.0
    before = guard.read(wall_ms, monotonic_s)
    for wall_move_ms, elapsed_ms in moves:
        wall_ms += wall_move_ms
        monotonic_s += elapsed_ms / 1000
        reading = guard.read(wall_ms, monotonic_s)
        assert (reading.now_ms < before.now_ms) == (reading.motion is Motion.BACK)
        assert reading.steps - before.steps == (reading.motion is Motion.BACK)
        assert reading.now_ms - wall_ms <= 5_000
        assert reading.mark_limit_ms is None or reading.mark_limit_ms <= reading.now_ms + 60_000
        before = reading


def test_the_system_clock_counts_milliseconds():
    clock = SystemClock()
    assert clock.wall_ms() == pytest.approx(SystemClock().wall_ms(), abs=60_000)
    assert isinstance(clock.wall_ms(), int)
    assert clock.monotonic_s() <= clock.monotonic_s()


def test_a_step_forward_that_is_taken_back_in_part_still_waits():
    desk = Desk()
    desk.look(wall_s=3600, monotonic_s=0)
    back = desk.look(wall_s=-1800, monotonic_s=10)
    assert (back.motion, back.mark_limit_ms) == (Motion.BACK, NOON_MS + 10_000)
    assert desk.look(wall_s=1, monotonic_s=1).mark_limit_ms == NOON_MS + 11_000
    assert desk.look(wall_s=60, monotonic_s=60).mark_limit_ms is None
