"""One thread with one owner: its loop, its stop, and what ends it."""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING

import pytest

from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.runtime.owned_thread import OwnedThread, ThreadBody

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 60.0
LONG_S = 3_600.0


class StoppedClock(SystemClock):
    """Time is what the test sets."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


def owned(body: ThreadBody, clock: SystemClock | None = None) -> OwnedThread:
    return OwnedThread("wheelbeat-test", clock or SystemClock(), body)


def raises(error: BaseException) -> Callable[..., float]:
    def raise_it(*_: object) -> float:
        raise error

    return raise_it


def test_the_body_begins_turns_and_ends_in_the_thread_and_sees_the_variables_of_the_caller() -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")
    tenant.set("eu")
    calls: list[str] = []
    turned = threading.Event()

    def note(what: str) -> None:
        calls.append(f"{what} {threading.current_thread().name} {tenant.get()}")

    def turn() -> float:
        if not turned.is_set():
            note("turn")
            turned.set()
        return 0.0

    thread = owned(ThreadBody(turn, begin=lambda: note("begin"), end=lambda: note("end")))
    thread.start()
    assert turned.wait(PATIENCE_S)
    thread.close(PATIENCE_S)
    assert not thread.is_alive
    assert calls == [f"{what} wheelbeat-test eu" for what in ("begin", "turn", "end")]


def test_a_stop_ends_a_rest_and_a_wait_of_the_body() -> None:
    resting, waiting = threading.Event(), threading.Event()

    def turn() -> float:
        resting.set()
        return LONG_S

    thread = owned(ThreadBody(turn, interrupt=waiting.set))
    thread.start()
    assert resting.wait(PATIENCE_S)
    thread.close(PATIENCE_S)
    assert not thread.is_alive
    assert waiting.is_set()


def test_a_thread_that_was_never_started_can_be_stopped() -> None:
    thread = owned(ThreadBody(raises(AssertionError())))
    thread.close(PATIENCE_S)
    assert not thread.is_alive


def test_what_is_left_is_done_after_a_stop_up_to_the_deadline() -> None:
    clock, left, stopped = StoppedClock(), [3, 2, 1], threading.Event()

    def turn() -> float:
        assert stopped.wait(PATIENCE_S)
        left.pop()
        if len(left) == 1:
            clock.now_s = 6.0
        return 0.001

    thread = owned(ThreadBody(turn, may_end=lambda: not left, interrupt=stopped.set), clock)
    thread.start()
    thread.stop(5.0)
    thread.stop(LONG_S)  # the first deadline counts
    thread.join(PATIENCE_S)
    assert not thread.is_alive
    assert left == [3], "it is late after two turns"


def test_an_exception_goes_to_the_body_and_the_loop_continues() -> None:
    errors = [ValueError("first"), KeyError("second")]
    seen: list[Exception] = []
    done = threading.Event()

    def turn() -> float:
        if errors:
            raise errors.pop(0)
        done.set()
        return LONG_S

    def failed(error: Exception) -> float:
        seen.append(error)
        return 0.0

    thread = owned(ThreadBody(turn, failed))
    thread.start()
    assert done.wait(PATIENCE_S)
    thread.close(PATIENCE_S)
    assert [type(error) for error in seen] == [ValueError, KeyError]
    assert thread.ended_by is None


@pytest.mark.parametrize("where", ["begin", "turn", "failed", "end"])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("nothing handles it")], ids=repr)
def test_an_exception_that_nothing_handles_ends_the_thread_and_is_kept(
    where: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    ended = threading.Event()

    def end() -> None:
        ended.set()
        if where == "end":
            raise error

    begin = raises(error) if where == "begin" else lambda: 0.0
    turn = {"turn": raises(error), "failed": raises(OSError("handled")), "end": raises(SystemExit())}.get(where)
    failed = raises(error)
    thread = owned(ThreadBody(turn or (lambda: 0.0), failed, begin=begin, end=end))  # type: ignore[arg-type]
    thread.start()
    thread.join(PATIENCE_S)
    assert ended.is_set()
    assert not thread.is_alive
    if where != "end":
        assert thread.ended_by is error
    assert f"thread wheelbeat-test has ended: {error!r}" in caplog.text


def test_each_turn_is_stamped() -> None:
    clock, turns = StoppedClock(), threading.Semaphore(0)
    again = threading.Event()

    def turn() -> float:
        turns.release()
        assert again.wait(PATIENCE_S)
        return 0.0

    thread = owned(ThreadBody(turn), clock)
    thread.start()
    assert turns.acquire(timeout=PATIENCE_S)
    assert thread.stamp_s == 0.0
    clock.now_s = 7.0
    again.set()
    assert turns.acquire(timeout=PATIENCE_S)
    assert turns.acquire(timeout=PATIENCE_S)
    thread.close(PATIENCE_S)
    assert thread.stamp_s == 7.0
