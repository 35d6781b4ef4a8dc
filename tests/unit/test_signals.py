"""What a signal must not do: lengthen a wait, leave something locked, end a beat half, or be lost.

All signals here are raised at a chosen instruction, so that no test depends on when the system delivers one.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager, suppress
from queue import Empty
from typing import TYPE_CHECKING, Any

import pytest
from support.pauses import pause

from celery_wheelbeat.beat.end_signals import DROPPED_FOR_S, EndSignals
from celery_wheelbeat.runtime.mailbox import Mailbox, Wake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 60.0


@contextmanager
def handled(number: signal.Signals, handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Install ``handler`` while the block lasts."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def outlasting_handler() -> Iterator[None]:
    """Deliver a signal in 10 ms whose handler returns 80 ms from now, after the deadline of a wait of 40 ms."""
    until_s = time.monotonic() + 0.08
    with handled(signal.SIGALRM, lambda *_: pause(until_s - time.monotonic(), "the handler works")):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        yield


def test_a_handler_that_outlasts_a_wait_does_not_make_it_endless() -> None:
    wake = Wake()
    rescue = threading.Timer(PATIENCE_S, wake.ring)
    rescue.start()
    with outlasting_handler():
        assert wake.wait(0.04) is False, "it took the rescue to end the wait"
    rescue.cancel()


def test_a_handler_that_outlasts_a_mailboxs_wait_does_not_make_it_endless() -> None:
    mailbox: Mailbox[str] = Mailbox()
    rescue = threading.Timer(PATIENCE_S, mailbox.put, ["rescue"])
    rescue.start()
    with outlasting_handler(), pytest.raises(Empty):
        mailbox.get(0.04)
    rescue.cancel()


def test_a_ring_of_the_handler_that_interrupts_the_wait_ends_it() -> None:
    wake = Wake()
    with handled(signal.SIGALRM, lambda *_: wake.ring()):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert wake.wait(PATIENCE_S) is True
    assert wake.wait(0) is False


def test_rings_count_once() -> None:
    wake = Wake()
    for _ in range(3):
        wake.ring()
    assert [wake.wait(0), wake.wait(0), wake.wait(-1)] == [True, False, False]


def test_values_come_in_order_and_a_stale_ring_is_no_value() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for value in range(3):
        mailbox.put(value)
    assert (len(mailbox), mailbox.empty()) == (3, False)
    assert [mailbox.get() for _ in range(3)] == [0, 1, 2]
    assert mailbox.empty()
    for timeout_s in (0, 0.01):
        with pytest.raises(Empty):
            mailbox.get(timeout_s)


def test_a_value_ends_the_wait_of_another_thread() -> None:
    mailbox: Mailbox[int] = Mailbox()
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(mailbox.get(PATIENCE_S)))
    thread.start()
    mailbox.put(7)
    thread.join(PATIENCE_S)
    assert found == [7]


def test_a_closed_mailbox_ends_the_wait_and_hands_out_what_it_holds() -> None:
    mailbox: Mailbox[int] = Mailbox()
    empty = threading.Event()

    def wait() -> None:
        with suppress(Empty):
            mailbox.get(3_600.0)
        empty.set()

    threading.Thread(target=wait, daemon=True).start()
    mailbox.close()
    assert empty.wait(PATIENCE_S)
    mailbox.put(7)
    assert mailbox.get(PATIENCE_S) == 7
    with pytest.raises(Empty):
        mailbox.get(3_600.0)


class Ended(Exception):
    """Raised by the handlers below, as ``SystemExit`` by Celery's."""


class Process:
    """A process of Celery: its handler calls ``close``, then raises."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.now_s = 0.0
        self.signals = EndSignals(lambda: self.now_s)
        self.meanwhile: Callable[[], object] = lambda: None
        self.raises = True

    def handler(self, *_: Any) -> None:
        self.calls.append("in")
        self.meanwhile()
        self.calls.append("out")
        if self.raises:
            raise Ended


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    with handled(signal.SIGTERM, process.handler), handled(signal.SIGINT, process.handler):
        process.signals.install()
        yield process


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def test_the_first_signal_is_passed_on_and_remembered(process: Process) -> None:
    with pytest.raises(Ended):
        terminate()
    assert process.signals.taken
    assert process.calls == ["in", "out"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_further_ones_are_dropped_while_the_first_is_handled_and_after_it(
    process: Process, number: signal.Signals
) -> None:
    process.meanwhile = lambda: signal.raise_signal(number)
    with pytest.raises(Ended):
        terminate()
    process.signals.hold()
    signal.raise_signal(number)
    process.signals.release()
    signal.raise_signal(number)
    assert process.calls == ["in", "out"]


def test_a_process_that_hangs_at_its_end_can_be_ended_by_another_signal(process: Process) -> None:
    with pytest.raises(Ended):
        terminate()
    process.now_s += DROPPED_FOR_S + 1
    with pytest.raises(SystemExit):
        terminate()


def test_a_handler_that_does_not_raise_does_not_end_the_beat(process: Process) -> None:
    process.raises = False
    terminate()
    terminate()
    assert not process.signals.taken
    assert process.calls == ["in", "out"] * 2


def test_a_handler_that_restores_the_default_action_does_not_expose_the_stop_to_it(process: Process) -> None:
    """As in the process of ``worker -B``."""
    process.meanwhile = lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with pytest.raises(Ended):
        terminate()
    terminate()
    assert process.calls == ["in", "out"]


def test_a_signal_during_a_stop_that_none_has_asked_for_is_delivered_after_it(process: Process) -> None:
    process.signals.hold()
    terminate()
    assert process.calls == []
    with pytest.raises(Ended):
        process.signals.release()
    assert process.calls == ["in", "out"]


def test_after_a_stop_that_none_has_asked_for_the_handlers_are_those_from_before(process: Process) -> None:
    process.signals.hold()
    process.signals.release()
    assert signal.getsignal(signal.SIGTERM) == process.handler


def test_two_beats_of_one_process_may_end_in_either_order(process: Process) -> None:
    second = EndSignals()
    second.install()
    process.signals.hold()
    process.signals.release()
    with pytest.raises(Ended):
        terminate()
    assert second.taken


def test_a_signal_without_a_handler_keeps_its_default_action() -> None:
    with handled(signal.SIGTERM, signal.SIG_DFL):  # type: ignore[arg-type]
        EndSignals().install()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_another_thread_has_no_handlers() -> None:
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=EndSignals().install)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
