"""Publisher of the celery lane: one thread that sends runs through Celery's own ``apply_entry``.

Invariant: every submitted run has exactly one outcome, ``Confirmed`` or ``Failed``, or is returned by ``close``. The
publisher never blocks its caller, never retries inside Celery, and never holds more runs than the window.
"""

from __future__ import annotations

import logging
import threading
from contextvars import copy_context
from queue import Empty
from typing import TYPE_CHECKING, Any

import amqp.exceptions

from celery_wheelbeat.dispatch import Confirmed, Failed, FailureKind, PublisherHealth, Run
from celery_wheelbeat.dispatch.broker import close_connection, is_amqp
from celery_wheelbeat.dispatch.celery_lane.run_sender import AGAIN, BATCH_MAX, RunSender
from celery_wheelbeat.dispatch.messages.attempt import watched
from celery_wheelbeat.dispatch.publisher_thread import Backoff
from celery_wheelbeat.errors import reason_of
from celery_wheelbeat.runtime.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_wheelbeat.dispatch.celery_lane.run_sender import LaneEdges
    from celery_wheelbeat.dispatch.failures import Diagnosis

logger = logging.getLogger("celery.beat")

_TURN_S = 0.5
"""Longest single wait of the thread; bounds the age of its stamp."""
_DOWN_LOG_EVERY_S = 60.0


class CeleryPublisher:
    """Publisher for the destination ``broker``; see ``dispatch.Publisher`` for the interface."""

    destination = "broker"

    def __init__(self, edges: LaneEdges, *, window: int) -> None:
        self._edges = edges
        self._window = window
        self._inbox: Mailbox[Sequence[Run]] = Mailbox()
        self._outbox: Mailbox[list[Confirmed | Failed]] = Mailbox()
        self._unconfirmed: dict[int, Run] = {}
        self._connection: Any = None
        self._producer: Any = None
        self._connected = False
        self._in_hand: dict[int, Run] = {}
        """Runs that the thread has taken and not settled."""
        self._last_outcomes: list[Confirmed | Failed] = []
        self._down_since_s: float | None = None
        self._down_logged_s = 0.0
        self._alarm = False
        """Whether RabbitMQ has stopped reading (memory or disk alarm)."""
        self._stamp_s = edges.clock.monotonic_s()
        self._stop_at_s: float | None = None
        self._backoff = Backoff()
        self._sender = RunSender(edges, self._stamp)
        self._thread: threading.Thread | None = None

    # The scheduling thread's side.

    def start(self) -> None:
        """Start the thread; in the process that sends, so after any fork.

        User code in the thread sees the context variables of the caller.
        """
        context = copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._loop,), name="wheelbeat-celery-lane", daemon=True
        )
        self._thread.start()

    @property
    def ended_by(self) -> BaseException | None:
        """See ``Publisher``."""
        return self._sender.ended_by

    def capacity(self) -> int:
        """See ``Publisher``."""
        return max(0, self._window - len(self._unconfirmed)) if self._connected else 0

    def submit(self, runs: Sequence[Run]) -> None:
        """See ``Publisher``."""
        self._unconfirmed.update((run.token, run) for run in runs)
        self._inbox.put(runs)

    def poll(self) -> Sequence[Confirmed | Failed]:
        """See ``Publisher``."""
        outcomes, self._last_outcomes = self._last_outcomes, []
        while not self._outbox.empty():
            outcomes += self._outbox.get()
        for outcome in outcomes:
            self._unconfirmed.pop(outcome.token, None)
        return outcomes

    def health(self) -> PublisherHealth:
        """See ``Publisher``."""
        return PublisherHealth(self._connected, len(self._unconfirmed), self._stamp_s)

    def close(self, timeout_s: float) -> Sequence[Run]:
        """See ``Publisher``; one more ``poll`` returns the outcomes up to now."""
        self._stop_at_s = self._edges.clock.monotonic_s() + timeout_s
        self._inbox.put(())
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout_s)
        self._last_outcomes = list(self.poll())
        return list(self._unconfirmed.values())

    # The lane's own thread.

    def _loop(self) -> None:
        while not self._is_over():
            self._stamp()
            try:
                if self._connected or self._connect():
                    self._send(self._inbox.get(_TURN_S))
            except Empty:
                continue
            except Exception as exc:
                logger.exception("beat: The celery lane stumbled; its connection is opened anew")
                culprit = self._sender.at_hand
                kinds = dict.fromkeys(self._in_hand, FailureKind.UNCERTAIN) | {culprit: FailureKind.ERROR}
                self._settle([Failed(token, kinds[token], reason_of(exc)) for token in self._in_hand])
                self._disconnect()
                self._hand_back_until(self._edges.clock.monotonic_s() + self._backoff.next_s())
            except BaseException as exc:  # the scheduling thread raises it again
                self._sender.ended_by = exc
        if self._connected:
            close_connection(self._connection, broken=False)
        self._disconnect()
        self._edges.wake()

    def _is_over(self) -> bool:
        if self.ended_by is not None:
            return True
        return self._stop_at_s is not None and (self._inbox.empty() or self._is_late())

    def _is_ending(self) -> bool:
        return self._stop_at_s is not None or self.ended_by is not None

    def _is_late(self) -> bool:
        return self._stop_at_s is not None and self._edges.clock.monotonic_s() >= self._stop_at_s

    def _stamp(self) -> None:
        self._stamp_s = self._edges.clock.monotonic_s()

    def _connect(self) -> bool:
        try:
            if self._connection is None:
                self._connection = self._edges.open_connection()
                if is_amqp(self._connection):
                    self._connection.transport_options.update(on_blocked=self._alarmed, on_unblocked=self._calmed)
            self._connection.connect()
            self._producer = watched(self._edges.make_producer(self._connection))
            self._connected = self._producer.channel is not None
        except Exception as exc:
            wait_s = self._backoff.next_s()
            self._report_down(reason_of(exc), wait_s)
            self._disconnect()
            self._hand_back_until(self._edges.clock.monotonic_s() + wait_s)
            return False
        if self._down_since_s is not None:
            logger.info("beat: Connected to %s again", self._connection.as_uri())
            self._down_since_s = None
        self._edges.wake()
        return True

    def _report_down(self, reason: str, wait_s: float) -> None:
        now_s = self._edges.clock.monotonic_s()
        if self._down_since_s is None or now_s - self._down_logged_s >= _DOWN_LOG_EVERY_S:
            logger.error("beat: Connection error: %s. Trying again in %.2f seconds...", reason, wait_s)
            self._down_logged_s = now_s
        if self._down_since_s is None:
            self._down_since_s = now_s

    def _hand_back_until(self, until_s: float) -> None:
        """Fail runs submitted while the broker is away: only the backlog knows which of them to keep."""
        while (left_s := until_s - self._edges.clock.monotonic_s()) > 0 and not self._is_ending():
            self._stamp()
            try:
                runs = self._inbox.get(min(left_s, _TURN_S))
            except Empty:
                continue
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
            runs = self._inbox.get()
            self._settle([Failed(run.token, FailureKind.NOT_SENT, "not connected") for run in runs])

    def _settle(self, outcomes: list[Confirmed | Failed]) -> None:
        if outcomes:
            for outcome in outcomes:
                self._in_hand.pop(outcome.token, None)
            self._outbox.put(outcomes)
            self._edges.wake()

    def _send(self, runs: Sequence[Run]) -> None:
        self._in_hand = {run.token: run for run in runs}
        with self._edges.quiet(len(runs)):
            for first in range(0, len(runs), BATCH_MAX):
                self._send_chunk(runs[first : first + BATCH_MAX])

    def _send_chunk(self, runs: Sequence[Run]) -> None:
        if not self._connected or self._is_late() or self.ended_by is not None:
            self._settle([Failed(run.token, FailureKind.NOT_SENT, "not connected") for run in runs])
            return
        outcomes, broken = self._sender.send(runs, self._producer, self._connection)
        self._connected = broken is None
        self._settle(outcomes)
        if broken is None:
            self._backoff.reset()
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
        while self._alarm and self._stop_at_s is None:
            self._stamp()
            self._hand_back()
            try:
                self._connection.drain_events(timeout=_TURN_S)
            except TimeoutError:
                continue
            except (*self._connection.connection_errors, *self._connection.channel_errors):
                self._alarm = False
                return False
        self._connected = not self._alarm
        if self._connected:
            logger.info("beat: RabbitMQ takes messages again")
            self._edges.wake()
        return self._connected

    def _leave_connection(self, broken: Diagnosis) -> None:
        """Drop a connection in an unknown state: a broker closes the channel when it refuses."""
        if self._alarm and self._outlasts_alarm():
            return
        self._disconnect()
        if broken.kind in AGAIN:
            wait_s = self._backoff.next_s()
            self._report_down(broken.reason, wait_s)
            self._hand_back_until(self._edges.clock.monotonic_s() + wait_s)
