"""Publisher of the fast lane: one thread writes batches to one connection and reports their outcomes.

Invariant: every submitted batch has exactly one ``Outcome``, or none after ``close``; at most ``window`` batches are in
flight. The sender never renders a batch, never decides what is sent, and never blocks its caller.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from queue import Empty
from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.dispatch import FailureKind, PublisherHealth
from celery_wheelbeat.dispatch.fast_lane.batches import Batch, Comparison, Failure, FormVerdict, Outcome
from celery_wheelbeat.dispatch.publisher_thread import Backoff
from celery_wheelbeat.errors import reason_of
from celery_wheelbeat.runtime.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from celery_wheelbeat.dispatch.fast_lane.batches import Wire
    from celery_wheelbeat.dispatch.messages.envelope import Envelope
    from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.runtime.clock import Clock

    News = Outcome | FormVerdict | Comparison

logger = logging.getLogger("celery.beat")

_IDLE_S = 0.5
"""Longest single wait of the thread; bounds the age of its stamp."""
_REPLY_S = 0.05
"""Longest wait for outcomes before the inbox is read again."""
_DOWN_LOG_EVERY_S = 60.0
_OF_MESSAGES = (FailureKind.POISON, FailureKind.UNROUTABLE)
"""Failures caused by messages, not by the connection, even if the broker closes the channel."""


class _Question(NamedTuple):
    form: Form
    candidates: Sequence[Arguments]
    asked_in: int = 0
    envelope: Envelope | None = None
    """Envelope to compare; None: make one."""


class FastPublisher:
    """The publisher. ``wire`` belongs to its thread; the public methods are for the scheduling thread."""

    def __init__(self, name: str, wire: Wire, clock: Clock, wake: Callable[[], None], *, window: int = 2) -> None:
        """``window``: most batches in flight; ``wake`` is called from the thread after each outcome or answer."""
        self.epoch = 0
        """Number of the connection, 0 before the first; envelopes of another connection are invalid."""
        self._wire = wire
        self._clock = clock
        self._wake = wake
        self.window = window
        self._inbox: Mailbox[Batch | _Question | None] = Mailbox()
        self._outbox: Mailbox[News] = Mailbox()
        self._unsettled: dict[int, Batch] = {}
        """Token → batch without an outcome; scheduling thread."""
        self._on_wire: dict[int, Batch] = {}
        """Token → written batch without an outcome, in order; sender thread."""
        self._questions: deque[_Question] = deque()
        """Unanswered questions, after all batches; sender thread."""
        self._connected = False
        self.ended_by: BaseException | None = None
        """See ``Publisher``: a serializer or a logger may be user code."""
        self.trouble = ""
        """Why there is no connection at the moment; empty if there is one."""
        self._lost = ""
        """Why the last connection ended; passed on when its batches are settled."""
        self._down_since_s: float | None = None
        self._down_logged_s = 0.0
        self._stop_at_s: float | None = None
        self._stamp_s = clock.monotonic_s()
        self._backoff = Backoff()
        wire.on_wait = self._keep_going
        self._thread = threading.Thread(target=self._loop, name=f"wheelbeat-{name}", daemon=True)

    # The scheduling thread's side.

    def start(self) -> None:
        """Start the thread; in the process that sends, so after any fork."""
        self._thread.start()

    def capacity(self) -> int:
        """Return how many batches ``submit`` accepts now; 0 while the destination is down."""
        return max(0, self.window - len(self._unsettled)) if self._is_open() else 0

    def submit(self, batch: Batch) -> None:
        """Take over ``batch``; never blocks."""
        self._unsettled[batch.token] = batch
        self._inbox.put(batch)

    def ask(self, form: Form, candidates: Sequence[Arguments], asked_in: int = 0) -> None:
        """Ask for the envelope of ``form``; ``poll`` returns a ``FormVerdict``, unless the connection is lost before.

        ``candidates``: arguments of some of its jobs; ``asked_in`` is returned with the answer.
        """
        self._inbox.put(_Question(form, candidates, asked_in))

    def compare(self, envelope: Envelope, form: Form, arguments: Arguments) -> None:
        """Compare ``envelope`` with Celery's current rendering; ``poll`` returns a ``Comparison``."""
        self._inbox.put(_Question(form, [arguments], envelope=envelope))

    def poll(self) -> Sequence[News]:
        """Return outcomes and answers since the last call."""
        news: list[News] = []
        while not self._outbox.empty():
            news.append(self._outbox.get())
        for one in news:
            if isinstance(one, Outcome):
                self._unsettled.pop(one.token, None)
        return news

    def health(self) -> PublisherHealth:
        """Report for supervision; ``in_flight`` counts messages."""
        in_flight = sum(batch.size for batch in self._unsettled.values())
        return PublisherHealth(self._is_open(), in_flight, self._stamp_s)

    @property
    def idle(self) -> bool:
        """Whether no batch is in flight."""
        return not self._unsettled

    def stop(self, timeout_s: float) -> None:
        """Begin to stop: batches not settled within ``timeout_s`` get no outcome."""
        if self._stop_at_s is None:
            self._stop_at_s = self._clock.monotonic_s() + timeout_s
            self._inbox.put(None)

    def close(self, timeout_s: float) -> None:
        """Stop within ``timeout_s``; one more ``poll`` returns the outcomes up to now, other batches have none."""
        self.stop(timeout_s)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _is_open(self) -> bool:
        return self._connected and not self._wire.blocked

    # The sender's own thread.

    def _loop(self) -> None:
        while not self._is_over():
            self._stamp_s = self._clock.monotonic_s()
            try:
                if self._connected or self._connect():
                    self._turn()
            except Exception as error:
                self._lose(reason_of(error))
            except BaseException as error:  # the scheduling thread raises it again
                self._connected, self.ended_by = False, error
        self._wire.close(broken=not self._connected)
        self._connected = False
        self._wake()

    def _is_over(self) -> bool:
        if self.ended_by is not None:
            return True
        if self._stop_at_s is None:
            return False
        done = self._inbox.empty() and not self._on_wire  # open questions need no answer now
        return done or self._clock.monotonic_s() >= self._stop_at_s

    def _keep_going(self) -> None:
        self._stamp_s = self._clock.monotonic_s()
        if self._stop_at_s is not None and self._stamp_s >= self._stop_at_s:
            raise TimeoutError("the beat stops")

    def _turn(self) -> None:
        """Write submitted batches up to the window, answer one question, then wait for orders or outcomes."""
        while len(self._on_wire) < self.window:
            try:
                order = self._inbox.get(0 if self._on_wire or self._questions else _IDLE_S)
            except Empty:
                break
            if order is None:
                break
            if isinstance(order, _Question):
                self._questions.append(order)
            elif order.epoch != self.epoch:
                self._give_up([order], FailureKind.NOT_SENT, "rendered for a connection that is gone")
            else:
                self._on_wire[order.token] = order
                self._wire.send(order)
        if self._questions:
            self._think_about(self._questions.popleft())
        self._report(self._wire.receive(_REPLY_S if self._on_wire and not self._questions else 0))

    def _think_about(self, question: _Question) -> None:
        """Answer a question; takes some milliseconds, during which nothing is written."""
        if question.envelope is None:
            made = self._wire.make(question.form, question.candidates)
            self._answer(FormVerdict(question.form, self.epoch, made, question.asked_in))
        else:
            difference = self._wire.compare(question.envelope, question.form, question.candidates[0])
            self._answer(Comparison(question.form, self.epoch, difference))

    def _report(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._on_wire.pop(outcome.token, None)
            self._answer(outcome)
            if all(failure.kind in _OF_MESSAGES for failure in outcome.failures):
                self._backoff.reset()

    def _answer(self, news: News) -> None:
        self._outbox.put(news)
        self._wake()

    def _connect(self) -> bool:
        try:
            self._wire.connect()
            if self._on_wire:
                settled = self._wire.settle(list(self._on_wire.values()), self._lost)
                self._report(settled)
        except Exception as error:
            self._wire.close(broken=True)
            wait_s = self._backoff.next_s()
            self._log_down(reason_of(error), wait_s)
            self._wait(wait_s)
            return False
        self.epoch += 1
        self._connected = True
        self.trouble = ""
        if self._down_since_s is not None:
            logger.info("beat: The fast lane is connected again")
            self._down_since_s = None
        self._wake()
        return True

    def _lose(self, reason: str) -> None:
        self._connected = False
        self._lost = reason
        self._questions.clear()  # ``Answers`` asks again on a new connection
        self._wire.close(broken=True)
        wait_s = self._backoff.next_s()
        self._log_down(reason, wait_s)
        self._wait(wait_s)

    def _wait(self, wait_s: float) -> None:
        """Wait; fail batches submitted meanwhile, because only the backlog knows which runs to keep."""
        until_s = self._clock.monotonic_s() + wait_s
        while (left_s := until_s - self._clock.monotonic_s()) > 0 and self._stop_at_s is None:
            self._stamp_s = self._clock.monotonic_s()
            try:
                order = self._inbox.get(min(left_s, _IDLE_S))
            except Empty:
                continue
            if isinstance(order, Batch):
                self._give_up([order], FailureKind.NOT_SENT, self._lost or "not connected")

    def _give_up(self, batches: Iterable[Batch], kind: FailureKind, reason: str) -> None:
        at_ms = self._clock.wall_ms()
        for batch in batches:
            self._answer(Outcome(batch.token, at_ms, (Failure(range(batch.size), kind, reason),)))

    def _log_down(self, reason: str, wait_s: float) -> None:
        """Log each new reason at once, and the same reason once a minute."""
        now_s = self._clock.monotonic_s()
        if reason != self.trouble or now_s - self._down_logged_s >= _DOWN_LOG_EVERY_S:
            logger.error("beat: The fast lane has no connection: %s. Trying again in %.2f seconds...", reason, wait_s)
            self._down_logged_s = now_s
        self.trouble = reason
        if self._down_since_s is None:
            self._down_since_s = now_s
