"""Who is gone: silent on every roll that can be read, by the monotonic clock of the observer."""

from __future__ import annotations

import math

import pytest

from celery_wheelbeat.membership.attendance import Attendance, HeardLine, Look
from celery_wheelbeat.membership.line import BeatLine, Standing

ME = BeatLine("me", order=1)


class Reader:
    """An observer with a heartbeat of 1 s, and looks at rolls at any instant."""

    def __init__(self) -> None:
        self.attendance = Attendance(1.0)

    def look(self, now_s: float, *heard: HeardLine, roll: str = "database", me: BeatLine = ME) -> None:
        self.attendance.note(Look(roll, me, heard, 1, 0, now_s - 0.001, now_s))

    def gone(self, now_s: float) -> set[str]:
        return set(self.attendance.roster(now_s).gone)

    def live(self, now_s: float) -> set[str]:
        return set(self.attendance.roster(now_s).live)


def peer(counter: int, age_s: float | None = 0.0, name: str = "peer", **fields: object) -> HeardLine:
    return HeardLine(BeatLine(name, number=counter, **fields), counter, age_s)


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_a_beat_that_writes_is_live(reader: Reader) -> None:
    for second in range(20):
        reader.look(second, peer(second))
        assert reader.live(second + 0.9) == {"peer"}


def test_a_beat_is_gone_three_heartbeats_after_its_counter_stood_still(reader: Reader) -> None:
    reader.look(0, peer(1))
    for second in (1, 2):
        reader.look(second, peer(1, second))
    assert reader.gone(2.9) == set()
    reader.look(3, peer(1, 3.0))
    assert reader.gone(3.0) == {"peer"}
    reader.look(4, peer(2))
    assert reader.live(4) == {"peer"}, "it came back"


def test_the_store_refines_when_a_line_was_written(reader: Reader) -> None:
    """Found 0.8 s after it was written, so 2.2 s later its time is up."""
    reader.look(0, peer(1, 0))
    reader.look(1, peer(2, 0.8))
    for second in (2, 3):
        reader.look(second, peer(2, second - 0.2))
    assert reader.gone(3.15) == set()
    assert reader.gone(3.21) == {"peer"}


@pytest.mark.parametrize("age_s", [20.0, -20.0, 1e9])
def test_a_step_of_the_stores_clock_makes_nobody_gone(reader: Reader, age_s: float) -> None:
    for second in range(10):
        reader.look(second, peer(second, 0.0 if second < 5 else age_s))
        assert reader.live(second + 0.9) == {"peer"}


def test_a_beat_that_left_is_gone_at_once(reader: Reader) -> None:
    reader.look(0, peer(1, standing=Standing.READY))
    reader.look(1, peer(2, standing=Standing.LEFT))
    assert reader.gone(1) == {"peer"}


def test_an_old_line_found_at_the_start_is_gone_at_once(reader: Reader) -> None:
    reader.look(0, peer(1, 4.1), peer(1, 3.9, name="late"))
    assert reader.gone(0) == {"peer"}
    assert reader.gone(2.9) == set(), "the last look is too long ago"
    for second in (1, 2, 3):
        reader.look(second, peer(1, 4.1 + second), peer(1, 3.9 + second, name="late"))
    assert reader.gone(3) == {"peer", "late"}


def test_without_a_clock_of_the_store_a_beat_gets_its_time_from_the_first_look(reader: Reader) -> None:
    for second in range(3):
        reader.look(second, peer(1, None))
        assert reader.gone(second) == set()
    reader.look(3, peer(1, None))
    assert reader.gone(3) == {"peer"}


def test_heard_on_one_roll_is_enough(reader: Reader) -> None:
    for second in range(10):
        reader.look(second, peer(1, second))
        reader.look(second, peer(second), roll="redis")
    assert reader.live(9) == {"peer"}
    assert reader.attendance.roster(9).live["peer"].number == 9, "the newest line counts"


def test_silent_on_the_only_roll_that_can_be_read_is_gone(reader: Reader) -> None:
    """The other roll is down: a counter that does not change there is not counted."""
    reader.look(0, peer(1))
    reader.look(0, peer(1), roll="redis")
    for second in range(1, 4):
        reader.look(second, peer(1, second))
    assert reader.gone(3) == {"peer"}


def test_while_no_roll_can_be_read_nobody_is_gone_and_afterwards_silence_begins_again(reader: Reader) -> None:
    reader.look(0, peer(1))
    assert reader.live(100) == {"peer"}
    assert reader.attendance.roster(100).shown == {}
    reader.look(100, peer(1, 100))
    reader.look(101, peer(1, 101))
    reader.look(102, peer(1, 102))
    assert reader.gone(102.9) == set()
    reader.look(103, peer(1, 103))
    assert reader.gone(103) == {"peer"}


def test_a_roll_that_lost_everything_makes_nobody_gone_at_once(reader: Reader) -> None:
    reader.look(0, peer(1))
    reader.look(1)
    assert reader.live(1) == {"peer"}
    reader.look(2, peer(1))
    reader.look(2.5, peer(2))
    assert reader.live(3) == {"peer"}


def test_what_the_rolls_show_of_me(reader: Reader) -> None:
    announced = BeatLine("me", order=1, own=frozenset({1}))
    reader.look(0, me=announced)
    reader.look(0.5, roll="redis")
    assert reader.attendance.roster(1.55).shown == {"database": announced, "redis": ME}
    assert reader.attendance.roster(1.65).shown == {"redis": ME}, "that roll was read 1.6 heartbeats ago"
    assert reader.attendance.last_look_s == 0.5
    assert reader.attendance.hears(3.5)
    assert not reader.attendance.hears(3.6)
    assert not Attendance(1.0).hears(0.0)
    assert Attendance(1.0).last_look_s == -math.inf


def test_the_next_look_comes_when_the_time_of_a_silent_beat_is_up(reader: Reader) -> None:
    reader.look(0, peer(1))
    assert reader.attendance.next_look_s(0, announced=False) == 1.0
    for second in (1, 2):
        reader.look(second, peer(1, second))
    assert reader.attendance.next_look_s(2.4, announced=False) == pytest.approx(0.605)
    assert reader.attendance.next_look_s(2.4, announced=True) == 0.2
    assert reader.attendance.next_look_s(2.999, announced=True) == 0.05


def test_looks_are_frequent_while_a_beat_leaves_and_not_after_it_is_gone(reader: Reader) -> None:
    reader.look(0, peer(1, standing=Standing.LEAVING))
    assert reader.attendance.next_look_s(0, announced=False) == 0.2
    for second in (1, 2, 3):
        reader.look(second, peer(1, second, standing=Standing.LEAVING))
    assert reader.attendance.next_look_s(3, announced=False) == 1.0, "it died while it left"


def test_a_line_is_kept_until_others_have_its_marks(reader: Reader) -> None:
    marks = {"broker": {1: 50}}
    dead = peer(1, 100, standing=Standing.LEFT, own=frozenset({1}), marks=marks)
    reader.look(0, dead)
    reader.attendance.roster(0)
    me = BeatLine("me", own=frozenset({1}), marks=marks)
    assert reader.attendance.forgettable(me, 59) == set()
    assert reader.attendance.forgettable(me, 60) == {"peer"}
    assert reader.attendance.forgettable(ME, 60) == set()


def test_a_forgotten_line_is_dropped_when_no_roll_has_it(reader: Reader) -> None:
    dead = peer(1, 100, standing=Standing.LEFT)
    reader.look(0, dead)
    reader.look(0, dead, roll="redis")
    reader.attendance.roster(0)
    reader.look(60)
    assert reader.attendance.forgettable(ME, 60) == {"peer"}
    reader.look(60, roll="redis")
    assert reader.attendance.forgettable(ME, 60) == set()
    assert reader.gone(60) == set()
