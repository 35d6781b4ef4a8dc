"""The thread of a roll: it writes what the scheduling thread says and reports what others say, or that it cannot."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from services import wait_until
from support.membership.memory_roll import MemoryRoll, MemoryStore

from celery_wheelbeat.membership import keeper as keeper_module
from celery_wheelbeat.membership.attendance import Look, Unheard
from celery_wheelbeat.membership.keeper import Keeper
from celery_wheelbeat.membership.line import BeatLine, Standing
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.runtime.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE = BeatLine("me", number=1, standing=Standing.READY)
PATIENCE_S = 60.0
LONG_S = 3_600.0


class Bench:
    """A keeper on a roll in memory, and the mailbox of its owner."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.reaches = True
        self.reports: Mailbox[Look | Unheard] = Mailbox()
        self.woken = threading.Event()
        roll = MemoryRoll(self.store, "site", "me", lambda: self.reaches)
        self.keeper = Keeper("memory", roll, self.reports, self.woken.set, SystemClock())

    def start(self, heartbeat_s: float = LONG_S, line: BeatLine | None = LINE) -> None:
        self.keeper.start(heartbeat_s)
        if line is not None:
            self.keeper.say(line, LONG_S)

    def next(self) -> Any:
        return self.reports.get(PATIENCE_S)

    def other(self, text: str, name: str = "other") -> None:
        MemoryRoll(self.store, "site", name).beat(text)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.keeper.stop(None, PATIENCE_S)
    bench.keeper.join(PATIENCE_S)


def test_it_looks_as_soon_as_a_line_is_said_and_wakes_its_owner(bench: Bench) -> None:
    bench.other(BeatLine("other", number=7).to_text())
    bench.start()
    look = bench.next()
    assert (look.roll, look.written, look.order) == ("memory", LINE, 2)
    (heard,) = look.heard
    assert (heard.line, heard.counter) == (BeatLine("other", number=7), 1)
    assert 0 <= heard.age_s < PATIENCE_S
    assert look.began_s <= look.ended_s
    assert abs(look.offset_ms) < 1_000
    assert bench.woken.is_set()
    assert BeatLine.from_text(bench.store.rows["me"].text, "me") == LINE


def test_without_a_line_it_writes_nothing(bench: Bench) -> None:
    bench.start(0.01, line=None)
    stamp_s = bench.keeper.stamp_s
    wait_until(lambda: bench.keeper.stamp_s > stamp_s, "some turns of the thread", PATIENCE_S)
    assert bench.store.rows == {}


def test_it_looks_each_heartbeat_with_the_newest_line(bench: Bench) -> None:
    bench.start(0.01)
    bench.next()
    bench.keeper.say(replace(LINE, number=2), LONG_S)
    while bench.next().written.number == 1:
        pass
    assert bench.next().written.number == 2


def test_it_looks_sooner_if_it_is_wished(bench: Bench) -> None:
    bench.start()
    bench.next()
    bench.keeper.say(replace(LINE, number=2), 0.0)
    assert bench.next().written.number == 2
    bench.keeper.say(replace(LINE, number=3), 0.05)
    assert bench.next().written.number == 3


def test_a_store_that_is_down_is_reported_and_asked_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "celery.beat")
    bench.reaches = False
    bench.start(0.01)
    for _ in range(3):
        assert bench.next() == Unheard("memory", "roll in memory: out of reach")
    bench.reaches = True
    while isinstance(bench.next(), Unheard):
        pass
    wait_until(lambda: len(caplog.messages) >= 2, "the line of the recovery", PATIENCE_S)
    assert caplog.messages == [
        "beat: The roll memory cannot be read: roll in memory: out of reach",
        "beat: The roll memory is read again",
    ]


def test_an_unexpected_error_is_a_report_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryRoll, "beat", lambda *_: 1 / 0)
    bench.start(0.01)
    assert bench.next() == Unheard("memory", "ZeroDivisionError: division by zero")
    monkeypatch.undo()
    while isinstance(bench.next(), Unheard):
        pass


def test_a_line_that_cannot_be_read_is_left_out_with_one_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.other("[]")
    bench.other(BeatLine("good").to_text(), "good")
    bench.start(0.01)
    for _ in range(3):
        assert [heard.line.beat_id for heard in bench.next().heard] == ["good"]
    assert caplog.messages == [
        "beat: A line on the roll memory is left out: line of beat 'other' cannot be read: expected object, not []"
    ]


def test_marks_of_a_clock_that_is_ahead_are_lowered_to_the_time_of_the_store(bench: Bench) -> None:
    bench.store.now_ms = lambda: 1_000_000
    marks = {"broker": {0: 1_005_000, 1: 1_005_001, 2: 5}}
    bench.other(BeatLine("other", own=frozenset({0, 1, 2}), marks=marks, left=marks, odd={"x": 2_000_000}).to_text())
    bench.start()
    (heard,) = bench.next().heard
    lowered = {"broker": {0: 1_005_000, 1: 1_000_000, 2: 5}}
    assert (heard.line.marks, heard.line.left, heard.line.odd) == (lowered, lowered, {"x": 1_000_000})


def test_a_beat_whose_scheduling_thread_is_wedged_falls_silent(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "WEDGED_S", 0.05)
    bench.start(0.01)
    wait_until(lambda: bool(caplog.messages), "the line of the wedged thread", PATIENCE_S)
    counter = bench.store.rows["me"].counter
    stamp_s = bench.keeper.stamp_s
    wait_until(lambda: bench.keeper.stamp_s > stamp_s + 0.05, "more turns", PATIENCE_S)
    assert bench.store.rows["me"].counter == counter
    assert caplog.messages == ["beat: No tick for 0 s: this beat falls silent, and others take its shards"]
    bench.keeper.say(replace(LINE, number=2), LONG_S)
    while bench.next().written.number == 1:
        pass


def test_a_connection_is_ended_in_the_thread_without_a_look(bench: Bench) -> None:
    bench.start()
    bench.next()
    bench.keeper.fence("other")
    wait_until(lambda: bench.store.fenced == ["other"], "the connection to be ended", PATIENCE_S)
    assert bench.store.rows["me"].counter == 1


def test_lines_to_forget_do_not_pile_up_while_the_store_is_away(bench: Bench) -> None:
    """The scheduling thread asks with each decision, and each answer of a store that is away takes a second."""
    bench.other("x")
    bench.start()
    bench.next()
    bench.reaches = False
    for _ in range(100):
        bench.keeper.forget(["other"])
    bench.keeper.say(replace(LINE, number=2), 0.0)
    assert isinstance(bench.next(), Unheard)
    bench.reaches = True
    bench.keeper.say(replace(LINE, number=3), 0.0)
    assert isinstance(bench.next(), Look), "a look comes first"
    wait_until(lambda: "other" not in bench.store.rows, "the line to be forgotten", PATIENCE_S)


def test_an_order_that_fails_is_a_report(bench: Bench) -> None:
    bench.start()
    bench.next()
    bench.reaches = False
    bench.keeper.fence("other")
    assert isinstance(bench.next(), Unheard)


@pytest.mark.parametrize("reaches", [True, False])
def test_the_last_line_is_written_at_the_end_if_the_store_answers(bench: Bench, reaches: bool) -> None:
    bench.start()
    bench.next()
    bench.reaches = reaches
    bench.keeper.stop(replace(LINE, number=9, standing=Standing.LEFT), PATIENCE_S)
    bench.keeper.join(PATIENCE_S)
    written = BeatLine.from_text(bench.store.rows["me"].text, "me")
    assert written.standing is (Standing.LEFT if reaches else Standing.READY)
