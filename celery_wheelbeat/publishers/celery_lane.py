"""The celery lane: one thread that sends runs through Celery's own ``apply_entry``, and says what is confirmed.

The invariant: every run that was taken over comes back as one outcome, as ``Confirmed`` or ``Failed``, or is returned
by ``close``. It never blocks its caller, never retries inside Celery, and never holds more than the window.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import amqp.exceptions

from celery_wheelbeat.publishers import Confirmed, Failed, FailureKind, PublisherHealth, Run
from celery_wheelbeat.publishers.attempt import Attempt
from celery_wheelbeat.publishers.backoff import Backoff
from celery_wheelbeat.publishers.broker import REPLY_TIMEOUT_S, is_amqp
from celery_wheelbeat.publishers.failures import BatchFailed, diagnose, is_state, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_wheelbeat.clock import Clock

logger = logging.getLogger("celery.beat")

BATCH_MAX = 500
"""Runs of one ``producer.batch()``."""
_TURN_S = 0.5
"""Longest wait of the thread for anything, so that its stamp stays fresh."""
_DOWN_LOG_EVERY_S = 60.0
_AGAIN = (FailureKind.NOT_SENT, FailureKind.UNCERTAIN)
_HARMLESS = (FailureKind.ERROR, FailureKind.REFUSED)
"""Failures that say nothing about the connection."""


@dataclass(frozen=True, slots=True)
class LaneEdges:
    """What the lane reaches the outside with."""

    apply_entry: Callable[..., Any]
    """``Scheduler.apply_entry``, called with one entry and ``producer=``."""
    open_connection: Callable[[], Any]
    """Return a new kombu ``Connection``, not connected."""
    make_producer: Callable[[Any], Any]
    """Return a kombu ``Producer`` on a connection."""
    wake: Callable[[], None]
    """Tell the scheduling thread that there are outcomes; called from the lane's thread."""
    clock: Clock
    quiet: Callable[[int], Any]
    """Context manager around the sending of n runs: limits the lines in the log."""
    options: Mapping[str, Any]
    """Options of ``apply_async`` for every message, where the user has not set them."""
    may_batch: Callable[[], bool] = lambda: True
    """False while somebody observes single publishes (a signal, an event), whose moment a batch would blur."""


class CeleryLane:
    """Publisher for the destination ``broker``; see ``publishers.Publisher`` for the interface."""

    destination = "broker"

    def __init__(self, edges: LaneEdges, *, window: int) -> None:
        self._edges = edges
        self._window = window
        self._inbox: SimpleQueue[Sequence[Run]] = SimpleQueue()
        self._outbox: SimpleQueue[list[Confirmed | Failed]] = SimpleQueue()
        self._unconfirmed: dict[int, Run] = {}
        self._connection: Any = None
        self._producer: Any = None
        self._connected = False
        self._one_by_one = 0
        """Runs still to be sent singly, so that a batch's failure finds its culprit."""
        self._last_outcomes: list[Confirmed | Failed] = []
        self._down_since_s: float | None = None
        self._down_logged_s = 0.0
        self._alarm = False
        """RabbitMQ has stopped reading."""
        self._stamp_s = edges.clock.monotonic_s()
        self._stop_at_s: float | None = None
        self._backoff = Backoff()
        self._thread = threading.Thread(target=self._loop, name="wheelbeat-celery-lane", daemon=True)

    # The scheduling thread's side.

    def start(self) -> None:
        """Start the thread; in the process that sends, so after any fork."""
        self._thread.start()

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
        """See ``Publisher``; the outcomes up to here stay for a last ``poll``."""
        self._stop_at_s = self._edges.clock.monotonic_s() + timeout_s
        self._inbox.put(())
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._last_outcomes = list(self.poll())
        return list(self._unconfirmed.values())

    # The lane's own thread.

    def _loop(self) -> None:
        while not self._is_over():
            self._stamp()
            try:
                if self._connected or self._connect():
                    self._send(self._inbox.get(timeout=_TURN_S))
            except Empty:
                continue
            except Exception:
                logger.exception("beat: The celery lane stumbled; its connection is opened anew")
                self._disconnect()
        if self._connected:
            self._connection.release()
        self._disconnect()

    def _is_over(self) -> bool:
        return self._stop_at_s is not None and (self._inbox.empty() or self._is_late())

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
            self._producer = self._edges.make_producer(self._connection)
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
        """Return whatever is submitted while the broker is away: only the backlog knows which runs to keep."""
        while (left_s := until_s - self._edges.clock.monotonic_s()) > 0 and self._stop_at_s is None:
            self._stamp()
            try:
                runs = self._inbox.get(timeout=min(left_s, _TURN_S))
            except Empty:
                continue
            self._settle([Failed(run.token, FailureKind.NOT_SENT, "not connected") for run in runs])

    def _disconnect(self) -> None:
        """Drop the connection without a word to the broker, which may not be listening."""
        self._connected = False
        self._producer = None
        if self._connection is not None:
            try:
                self._connection.collect(socket_timeout=REPLY_TIMEOUT_S)
            except (*self._connection.connection_errors, *self._connection.channel_errors) as exc:
                logger.debug("beat: Closing the broken connection failed: %r", exc)
        self._hand_back()

    def _hand_back(self) -> None:
        while not self._inbox.empty():
            runs = self._inbox.get()
            self._settle([Failed(run.token, FailureKind.NOT_SENT, "not connected") for run in runs])

    def _settle(self, outcomes: list[Confirmed | Failed]) -> None:
        if outcomes:
            self._outbox.put(outcomes)
            self._edges.wake()

    def _send(self, runs: Sequence[Run]) -> None:
        with self._edges.quiet(len(runs)):
            for first in range(0, len(runs), BATCH_MAX):
                self._send_chunk(runs[first : first + BATCH_MAX])

    def _send_chunk(self, runs: Sequence[Run]) -> None:
        if not self._connected or self._is_late():
            self._settle([Failed(run.token, FailureKind.NOT_SENT, "not connected") for run in runs])
            return
        outcomes, broken = self._send_batch(runs) if self._may_batch() else self._send_each(runs)
        self._connected = broken is None
        self._settle(outcomes)
        if broken is None:
            self._backoff.reset()
        else:
            self._leave_connection(broken)

    def _alarmed(self, reason: str) -> None:
        if not self._alarm:  # RabbitMQ says so again when memory and disk alarm follow each other
            self._alarm = True
            raise amqp.exceptions.Blocked(reason)

    def _calmed(self) -> None:
        self._alarm = False

    def _outlasts_alarm(self) -> bool:
        """Keep a connection that RabbitMQ has stopped reading from: it reads on when its alarm is over, and a new one
        would only add copies. Returns whether the connection can be used again.
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

    def _may_batch(self) -> bool:
        if self._one_by_one > 0:
            return False
        return getattr(self._producer, "supports_batch_publish", False) and self._edges.may_batch()

    def _send_batch(self, runs: Sequence[Run]) -> tuple[list[Confirmed | Failed], Failed | None]:
        """Send ``runs`` as one batch. Nothing is confirmed before it is through; of a failed one nothing is known."""
        failed: dict[int, Failed] = {}
        try:
            with self._producer.batch(BATCH_MAX):
                for run in runs:
                    failure = self._attempt(run)
                    if failure is not None:
                        failed[run.token] = _refuse_to_go_on(failure)
        except Exception as exc:
            self._one_by_one = len(runs)
            _, reason = diagnose(exc, self._connection)
            lost = [Failed(run.token, FailureKind.UNCERTAIN, reason) for run in runs]
            return [failed.get(failure.token, failure) for failure in lost], lost[0]
        confirmed_ms = self._edges.clock.wall_ms()
        return [failed.get(run.token) or Confirmed(run.token, confirmed_ms) for run in runs], None

    def _send_each(self, runs: Sequence[Run]) -> tuple[list[Confirmed | Failed], Failed | None]:
        """Send ``runs`` singly, up to the first failure that leaves the connection in doubt or concerns all of them."""
        outcomes: list[Confirmed | Failed] = []
        for position, run in enumerate(runs):
            self._one_by_one = max(0, self._one_by_one - 1)
            failure = self._attempt(run)
            outcomes.append(failure or Confirmed(run.token, self._edges.clock.wall_ms()))
            if failure is not None and is_state(failure.reason):  # Celery logs each attempt with a traceback
                return outcomes + [failure._replace(token=rest.token) for rest in runs[position + 1 :]], None
            if failure is not None and failure.kind not in _HARMLESS:
                outcomes += [Failed(rest.token, FailureKind.NOT_SENT, "not reached") for rest in runs[position + 1 :]]
                return outcomes, failure
        return outcomes, None

    def _attempt(self, run: Run) -> Failed | None:
        self._stamp()
        attempt = Attempt(run, self._edges.options)
        with attempt.open():
            try:
                self._edges.apply_entry(run.entry, producer=self._producer)
            except Exception as exc:  # an override may raise where Celery's own only logs
                attempt.errors.append(exc)
        if attempt.errors:
            found = [diagnose(exc, self._connection) for exc in attempt.errors]
            return Failed(run.token, *next((pair for pair in found if pair[0] in _AGAIN), found[0]))
        if not attempt.accepted:
            return Failed(run.token, FailureKind.ERROR, "apply_entry sent no message")
        return None

    def _leave_connection(self, broken: Failed) -> None:
        """Drop a connection whose state is unknown: a broker closes the channel with its refusal."""
        if self._alarm and self._outlasts_alarm():
            return
        self._disconnect()
        if broken.kind in _AGAIN:
            wait_s = self._backoff.next_s()
            self._report_down(broken.reason, wait_s)
            self._hand_back_until(self._edges.clock.monotonic_s() + wait_s)


def _refuse_to_go_on(failure: Failed) -> Failed:
    """Raise out of a batch whose connection is in doubt; what concerns one run alone passes."""
    if failure.kind in _AGAIN:
        raise BatchFailed(failure.reason)
    return failure
