"""Publisher of the celery lane: one thread that sends runs through Celery's own ``apply_entry``.

Invariant: every submitted run has exactly one outcome, ``Confirmed`` or ``Failed``, or none after ``close``. The
publisher never blocks its caller, never retries inside Celery, and never holds more runs than the window.
"""

from __future__ import annotations

import logging
from queue import Empty
from typing import TYPE_CHECKING, Any

import amqp.exceptions

from celery_wheelbeat.dispatch import Confirmed, Failed, FailureKind, PublisherHealth, Run
from celery_wheelbeat.dispatch.broker import close_connection, is_amqp
from celery_wheelbeat.dispatch.celery_lane.amqp_guard import AmqpGuard
from celery_wheelbeat.dispatch.celery_lane.run_sender import AGAIN, BATCH_MAX, RunSender
from celery_wheelbeat.dispatch.messages.attempt import watched
from celery_wheelbeat.dispatch.reconnection import TURN_S, Reconnection
from celery_wheelbeat.errors import reason_of
from celery_wheelbeat.runtime.mailbox import Mailbox
from celery_wheelbeat.runtime.owned_thread import OwnedThread, ThreadBody

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_wheelbeat.dispatch.celery_lane.run_sender import CeleryLaneCallbacks
    from celery_wheelbeat.dispatch.failures import Diagnosis

logger = logging.getLogger("celery.beat")


class CeleryPublisher:
    """Publisher for the destination ``broker``; see ``dispatch.Publisher`` for the interface."""

    destination = "broker"

    def __init__(self, callbacks: CeleryLaneCallbacks, *, window: int) -> None:
        self._callbacks = callbacks
        self._window = window
        self._inbox: Mailbox[Sequence[Run]] = Mailbox()
        self._outbox: Mailbox[list[Confirmed | Failed]] = Mailbox()
        self._in_flight = 0
        """Submitted runs without a polled outcome; scheduling thread."""
        self._connection: Any = None
        self._producer: Any = None
        self._connected = False
        self._in_hand: dict[int, Run] = {}
        """Runs that the thread has taken and not settled."""
        self._alarm = False
        """Whether RabbitMQ has stopped reading (memory or disk alarm)."""
        self._reconnection = Reconnection("Connection error", callbacks.clock)
        body = ThreadBody(
            self._turn, self._failed, end=self._end, may_end=self._inbox.empty, interrupt=self._inbox.close
        )
        self._thread = OwnedThread("wheelbeat-celery-lane", callbacks.clock, body)
        self._guard = AmqpGuard(callbacks.open_connection, callbacks.clock)
        self._sender = RunSender(callbacks, self._thread.stamp)

    # The scheduling thread's side.

    def start(self) -> None:
        """See ``Publisher``."""
        self._thread.start()

    @property
    def ended_by(self) -> BaseException | None:
        """See ``Publisher``."""
        return self._sender.ended_by or self._thread.ended_by

    def capacity(self) -> int:
        """See ``Publisher``."""
        may = self._connected and self._callbacks.may_send()
        return max(0, self._window - self._in_flight) if may else 0

    def submit(self, runs: Sequence[Run]) -> None:
        """See ``Publisher``."""
        self._in_flight += len(runs)
        self._inbox.put(runs)

    def poll(self) -> Sequence[Confirmed | Failed]:
        """See ``Publisher``."""
        outcomes: list[Confirmed | Failed] = []
        while not self._outbox.empty():
            outcomes += self._outbox.get()
        self._in_flight -= len(outcomes)
        return outcomes

    def health(self) -> PublisherHealth:
        """See ``Publisher``."""
        return PublisherHealth(self._connected, self._in_flight, self._thread.stamp_s)

    def close(self, timeout_s: float) -> None:
        """See ``Publisher``."""
        self._thread.close(timeout_s)

    # The lane's own thread.

    def _turn(self) -> float:
        if self._connected or self._connect():
            try:
                runs = self._inbox.get(TURN_S)
            except Empty:
                return 0.0
            self._send(runs)
        return 0.0

    def _failed(self, error: Exception) -> float:
        logger.error("beat: An unexpected error in the celery lane; it reconnects", exc_info=error)
        culprit = self._sender.at_hand
        kinds = dict.fromkeys(self._in_hand, FailureKind.UNCERTAIN) | {culprit: FailureKind.ERROR}
        self._settle([Failed(token, kinds[token], reason_of(error)) for token in self._in_hand])
        self._disconnect()
        return self._wait(self._reconnection.failed(reason_of(error)))

    def _end(self) -> None:
        if self._connected:
            close_connection(self._connection, broken=False)
        self._disconnect()
        self._callbacks.wake()

    def _connect(self) -> bool:
        try:
            if self._connection is None:
                self._connection = self._callbacks.open_connection()
                if is_amqp(self._connection):
                    self._connection.transport_options.update(on_blocked=self._alarmed, on_unblocked=self._calmed)
            self._connection.connect()
            self._producer = watched(self._callbacks.make_producer(self._connection))
            if is_amqp(self._connection):
                self._guard.watch(self._producer.channel)
            self._connected = self._producer.channel is not None
        except Exception as exc:
            self._disconnect()
            self._wait(self._reconnection.failed(reason_of(exc)))
            return False
        if self._reconnection.is_over():
            logger.info("beat: Connected to %s again", self._connection.as_uri())
        self._callbacks.wake()
        return True

    def _wait(self, wait_s: float) -> float:
        return self._reconnection.wait(wait_s, self._thread, self._inbox, self._give_up)

    def _give_up(self, runs: Sequence[Run]) -> None:
        self._settle([Failed(run.token, FailureKind.NOT_SENT, "not connected") for run in runs])

    def _disconnect(self) -> None:
        """Drop the connection on our side only; the broker may not be reading."""
        self._connected = False
        self._producer = None
        if self._connection is not None:
            close_connection(self._connection, broken=True)
        self._hand_back()

    def _hand_back(self) -> None:
        while not self._inbox.empty():
            self._give_up(self._inbox.get())

    def _settle(self, outcomes: list[Confirmed | Failed]) -> None:
        if outcomes:
            for outcome in outcomes:
                self._in_hand.pop(outcome.token, None)
            self._outbox.put(outcomes)
            self._callbacks.wake()

    def _send(self, runs: Sequence[Run]) -> None:
        self._in_hand = {run.token: run for run in runs}
        with self._callbacks.quiet(len(runs)):
            for first in range(0, len(runs), BATCH_MAX):
                self._send_chunk(runs[first : first + BATCH_MAX])
        if self._sender.ended_by is not None:
            raise self._sender.ended_by

    def _send_chunk(self, runs: Sequence[Run]) -> None:
        if not self._connected or self._thread.is_late or self._sender.ended_by is not None:
            self._give_up(runs)
            return
        outcomes, broken = self._sender.send(runs, self._producer, self._connection)
        self._connected = broken is None
        self._settle(outcomes)
        if broken is None:
            self._reconnection.proven()
        else:
            self._leave_connection(broken)

    def _alarmed(self, reason: str) -> None:
        if not self._alarm:  # RabbitMQ reports again when a disk alarm follows a memory alarm
            self._alarm = True
            raise amqp.exceptions.Blocked(reason)

    def _calmed(self) -> None:
        self._alarm = False

    def _outlasts_alarm(self) -> bool:
        """Wait on a connection from which RabbitMQ has stopped reading; returns whether it can be used again.

        RabbitMQ goes on reading when its alarm is over; a new connection would only add copies.
        """
        logger.error("beat: RabbitMQ takes no messages (memory or disk alarm); waiting until it does")
        self._connected = False
        while self._alarm and not self._thread.is_stopping:
            self._thread.stamp()
            self._hand_back()
            try:
                self._connection.drain_events(timeout=TURN_S)
            except TimeoutError:
                continue
            except (*self._connection.connection_errors, *self._connection.channel_errors):
                self._alarm = False
                return False
        self._connected = not self._alarm
        if self._connected:
            logger.info("beat: RabbitMQ takes messages again")
            self._callbacks.wake()
        return self._connected

    def _leave_connection(self, broken: Diagnosis) -> None:
        """Drop a connection in an unknown state: a broker closes the channel when it refuses."""
        if self._alarm and self._outlasts_alarm():
            return
        self._disconnect()
        if broken.kind in AGAIN and self._sender.ended_by is None:
            self._wait(self._reconnection.failed(broken.reason))
