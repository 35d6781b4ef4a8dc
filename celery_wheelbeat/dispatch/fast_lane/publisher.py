"""Publisher of the fast lane: one thread writes batches to one connection and reports their outcomes.

Invariant: every submitted batch has exactly one ``Outcome``, or none after ``close``; at most ``window`` batches are in
flight. The publisher never renders a batch, never decides what is sent, and never blocks its caller.
"""

from __future__ import annotations

import logging
from collections import deque
from queue import Empty
from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.dispatch import PAUSED, FailureKind, PublisherHealth
from celery_wheelbeat.dispatch.fast_lane.batches import Batch, Comparison, Failure, FormVerdict, Outcome, QueueVerdict
from celery_wheelbeat.dispatch.reconnection import TURN_S, Reconnection
from celery_wheelbeat.errors import reason_of
from celery_wheelbeat.runtime.mailbox import Mailbox
from celery_wheelbeat.runtime.owned_thread import OwnedThread, ThreadBody

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from celery_wheelbeat.dispatch.fast_lane.batches import Wire
    from celery_wheelbeat.dispatch.fast_lane.envelope_registry import Declaring
    from celery_wheelbeat.dispatch.messages.envelope import Envelope
    from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.runtime.clock import Clock

    Report = Outcome | FormVerdict | QueueVerdict | Comparison

logger = logging.getLogger("celery.beat")

_REPLY_S = 0.05
"""Longest wait for outcomes before the inbox is read again."""
_OF_MESSAGES = (FailureKind.POISON, FailureKind.UNROUTABLE)
"""Failures caused by messages, not by the connection, even if the broker closes the channel."""


class _Question(NamedTuple):
    form: Form
    candidates: Sequence[Arguments]
    asked_in: int = 0
    envelope: Envelope | None = None
    """Envelope to compare; None: make one."""


class _Declaration(NamedTuple):
    question: Declaring
    queues: Sequence[str]


class FastPublisher:
    """The publisher. ``wire`` belongs to its thread; the public methods are for the scheduling thread."""

    def __init__(
        self,
        name: str,
        wire: Wire,
        clock: Clock,
        wake: Callable[[], None],
        *,
        window: int = 2,
        may_send: Callable[[], bool] | None = None,
    ) -> None:
        """``window``: most batches in flight; ``wake`` is called from the thread after each outcome or answer.

        ``may_send`` is asked before each write; False while it is not certain that this process may still send. None:
        no other beat sends, so nothing is asked.
        """
        self.epoch = 0
        """Number of the connection, 0 before the first; envelopes of another connection are invalid."""
        self._wire = wire
        self._clock = clock
        self._wake = wake
        self.window = window
        self._may_send = may_send or (lambda: True)
        self._inbox: Mailbox[Batch | _Question | _Declaration] = Mailbox()
        self._outbox: Mailbox[Report] = Mailbox()
        self._unsettled: dict[int, Batch] = {}
        """Token → batch without an outcome; scheduling thread."""
        self._on_wire: dict[int, Batch] = {}
        """Token → written batch without an outcome, in order; publisher thread."""
        self._questions: deque[_Question | _Declaration] = deque()
        """Unanswered questions, after all batches; publisher thread."""
        self._connected = False
        self._lost = ""
        """Why the last connection ended; passed on when its batches are settled."""
        self._reconnection = Reconnection("The fast lane has no connection", clock)
        wire.on_wait = self._keep_going
        body = ThreadBody(self._turn, self._failed, end=self._end, may_end=self._may_end, interrupt=self._inbox.close)
        self._thread = OwnedThread(f"wheelbeat-{name}", clock, body)

    # The scheduling thread's side.

    def start(self) -> None:
        """Start the thread; in the process that sends, so after any fork."""
        self._thread.start()

    @property
    def ended_by(self) -> BaseException | None:
        """See ``Publisher``: a serializer or a logger may be user code."""
        return self._thread.ended_by

    @property
    def trouble(self) -> str:
        """Why there is no connection at the moment; empty if there is one."""
        return self._reconnection.trouble

    def capacity(self) -> int:
        """Return how many batches ``submit`` accepts now; 0 while the destination is down."""
        return max(0, self.window - len(self._unsettled)) if self._is_open() and self._may_send() else 0

    def submit(self, batch: Batch) -> None:
        """Take over ``batch``; never blocks."""
        self._unsettled[batch.token] = batch
        self._inbox.put(batch)

    def ask(self, form: Form, candidates: Sequence[Arguments], asked_in: int = 0) -> None:
        """Ask for the envelope of ``form``; ``poll`` returns a ``FormVerdict``, unless the connection is lost before.

        ``candidates``: arguments of some of its jobs; ``asked_in`` is returned with the answer.
        """
        self._inbox.put(_Question(form, candidates, asked_in))

    def declare(self, question: Declaring, queues: Sequence[str]) -> None:
        """Declare ``queues``; ``poll`` returns a ``QueueVerdict``, unless the connection is lost before."""
        self._inbox.put(_Declaration(question, queues))

    def compare(self, envelope: Envelope, form: Form, arguments: Arguments) -> None:
        """Compare ``envelope`` with Celery's current rendering; ``poll`` returns a ``Comparison``."""
        self._inbox.put(_Question(form, [arguments], envelope=envelope))

    def poll(self) -> Sequence[Report]:
        """Return outcomes and answers since the last call."""
        reports: list[Report] = []
        while not self._outbox.empty():
            reports.append(self._outbox.get())
        for one in reports:
            if isinstance(one, Outcome):
                self._unsettled.pop(one.token, None)
        return reports

    def health(self) -> PublisherHealth:
        """Report for supervision; ``in_flight`` counts messages."""
        in_flight = sum(batch.size for batch in self._unsettled.values())
        return PublisherHealth(self._is_open(), in_flight, self._thread.stamp_s)

    @property
    def idle(self) -> bool:
        """Whether no batch is in flight."""
        return not self._unsettled

    def stop(self, timeout_s: float) -> None:
        """Begin to stop: batches not settled within ``timeout_s`` get no outcome."""
        self._thread.stop(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Stop within ``timeout_s``; one more ``poll`` returns the outcomes up to now, other batches have none."""
        self._thread.close(timeout_s)

    def _is_open(self) -> bool:
        return self._connected and not self._wire.blocked

    # The publisher's own thread.

    def _turn(self) -> float:
        rest_s = 0.0 if self._connected else self._connect()
        if self._connected:
            self._work()
        return rest_s

    def _end(self) -> None:
        self._wire.close(broken=not self._connected or self.ended_by is not None)
        self._connected = False
        self._wake()

    def _may_end(self) -> bool:
        return self._inbox.empty() and not self._on_wire  # open questions need no answer now

    def _keep_going(self) -> None:
        self._thread.stamp()
        if self._thread.is_late:
            raise TimeoutError("the beat stops")

    def _work(self) -> None:
        """Write submitted batches up to the window, answer one question, then wait for orders or outcomes."""
        while len(self._on_wire) < self.window:
            try:
                order = self._inbox.get(0 if self._on_wire or self._questions else TURN_S)
            except Empty:
                break
            if isinstance(order, (_Question, _Declaration)):
                self._questions.append(order)
            elif order.epoch != self.epoch:
                self._give_up([order], FailureKind.NOT_SENT, "rendered for a connection that is gone")
            elif not self._may_send():
                self._give_up([order], FailureKind.NOT_SENT, PAUSED)
            else:
                self._on_wire[order.token] = order
                self._wire.send(order)
        if self._questions:
            self._think_about(self._questions.popleft())
        timeout_s = _REPLY_S if self._on_wire and not self._questions else 0
        self._report(self._wire.receive(self._on_wire.values(), timeout_s))

    def _think_about(self, question: _Question | _Declaration) -> None:
        """Answer a question; takes some milliseconds, during which nothing is written."""
        if isinstance(question, _Declaration):
            reasons = {queue: self._wire.declare(queue) for queue in question.queues}
            self._answer(QueueVerdict(question.question, reasons))
        elif question.envelope is None:
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
                self._reconnection.proven()

    def _answer(self, report: Report) -> None:
        self._outbox.put(report)
        self._wake()

    def _connect(self) -> float:
        """Connect, or return the seconds to rest before the next attempt."""
        try:
            self._wire.connect()
            if self._on_wire:
                settled = self._wire.settle(list(self._on_wire.values()), self._lost)
                self._report(settled)
        except Exception as error:
            self._wire.close(broken=True)
            return self._wait(self._reconnection.failed(reason_of(error)))
        self.epoch += 1
        self._connected = True
        if self._reconnection.is_over():
            logger.info("beat: The fast lane is connected again")
        self._wake()
        return 0.0

    def _failed(self, error: Exception) -> float:
        self._connected = False
        self._lost = reason_of(error)
        self._questions.clear()  # ``Answers`` asks again on a new connection
        self._wire.close(broken=True)
        return self._wait(self._reconnection.failed(self._lost))

    def _wait(self, wait_s: float) -> float:
        return self._reconnection.wait(wait_s, self._thread, self._inbox, self._refuse)

    def _refuse(self, order: Batch | _Question | _Declaration) -> None:
        if isinstance(order, Batch):
            self._give_up([order], FailureKind.NOT_SENT, self._lost or "not connected")

    def _give_up(self, batches: Iterable[Batch], kind: FailureKind, reason: str) -> None:
        at_ms = self._clock.wall_ms()
        for batch in batches:
            self._answer(Outcome(batch.token, at_ms, (Failure(range(batch.size), kind, reason),)))
