"""The sender of a fast lane, with a wire that is not one."""

from __future__ import annotations

import threading

from celery_wheelbeat.dispatch.fast_lane.publisher import FastPublisher
from celery_wheelbeat.runtime.clock import SystemClock

PATIENCE_S = 20.0


class EndingWire:
    """Its connection runs user code that ends the process."""

    blocked = False

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.closed: list[bool] = []

    def connect(self) -> None:
        raise self.error

    def close(self, *, broken: bool) -> None:
        self.closed.append(broken)


def test_what_would_end_the_thread_is_left_for_the_scheduling_thread() -> None:
    wire, woken = EndingWire(SystemExit(3)), threading.Event()
    sender = FastPublisher("test", wire, SystemClock(), woken.set)  # type: ignore[arg-type]
    sender.start()
    assert woken.wait(PATIENCE_S)
    assert sender.ended_by is wire.error
    assert sender.capacity() == 0
    assert wire.closed == [True]
    sender.close(PATIENCE_S)
