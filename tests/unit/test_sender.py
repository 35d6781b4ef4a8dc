"""The publisher of the fast lane, on a wire without a broker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from celery_wheelbeat.dispatch import FailureKind
from celery_wheelbeat.dispatch.fast_lane.batches import NONCE_LENGTH, Batch, Outcome
from celery_wheelbeat.dispatch.fast_lane.publisher import FastPublisher
from celery_wheelbeat.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Collection

PATIENCE_S = 60.0


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


class LosingWire(EndingWire):
    """Loses its connection after the first batch, and does not get another one."""

    def __init__(self) -> None:
        super().__init__(ConnectionError("refused"))
        self.attempts = 0
        self.lost = threading.Event()

    def connect(self) -> None:
        self.attempts += 1
        if self.attempts > 1:
            self.lost.set()
            raise self.error

    def send(self, batch: Batch) -> None:
        raise ConnectionError("reset")

    def receive(self, _batches: Collection[Batch], _timeout_s: float) -> list[Outcome]:
        return []


def a_batch(token: int, epoch: int) -> Batch:
    return Batch(token, (), b"0" * NONCE_LENGTH, epoch)


def test_a_stop_without_a_connection_tries_again_at_the_pace_of_the_backoff_and_gives_up_what_waits() -> None:
    """A batch that was written may still be settled on a new connection, up to the deadline of the stop."""
    wire, connected = LosingWire(), threading.Event()
    publisher = FastPublisher("test", wire, SystemClock(), connected.set)  # type: ignore[arg-type]
    publisher.start()
    assert connected.wait(PATIENCE_S)
    publisher.submit(a_batch(1, publisher.epoch))
    assert wire.lost.wait(PATIENCE_S)
    publisher.stop(0.5)
    publisher.submit(a_batch(2, publisher.epoch))
    publisher.close(PATIENCE_S)
    assert not publisher._thread.is_alive
    assert [one.token for one in publisher.poll() if isinstance(one, Outcome)] == [2]
    assert 2 <= wire.attempts <= 20, "thousands if it did not rest between them"


class OpenWire(LosingWire):
    """A wire that connects and notes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []

    def connect(self) -> None:
        self.blocked = ""

    def send(self, batch: Batch) -> None:
        self.written.append(batch.token)


def test_a_batch_is_handed_back_unsent_if_the_process_may_not_send_at_the_moment_of_the_write() -> None:
    """The process was paused between the order and the socket: a look at the other beats comes first."""
    wire, connected, may = OpenWire(), threading.Event(), [True]
    publisher = FastPublisher("test", wire, SystemClock(), connected.set, may_send=lambda: may[0])  # type: ignore[arg-type]
    publisher.start()
    assert connected.wait(PATIENCE_S)
    assert publisher.capacity() > 0
    may[0] = False
    assert publisher.capacity() == 0
    connected.clear()
    publisher.submit(a_batch(1, publisher.epoch))
    assert connected.wait(PATIENCE_S)
    (outcome,) = publisher.poll()
    assert isinstance(outcome, Outcome)
    assert [failure.kind for failure in outcome.failures] == [FailureKind.NOT_SENT]
    assert wire.written == []
    publisher.close(PATIENCE_S)
