"""The RabbitMQ connection of the fast lane: finished frames, publisher confirms, returns, refusals.

At least once: a message without ``basic.ack`` when the connection is lost is ``UNCERTAIN``. A message counts as sent
only with an ack and without a ``basic.return``. Declarations and the recording of messages use a second channel, so a
refused declaration does not close the publishing channel.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.dispatch import FailureKind
from celery_wheelbeat.dispatch.broker import close_connection
from celery_wheelbeat.dispatch.fast_lane.amqp_refusals import Returned, Returns, refusal_of
from celery_wheelbeat.dispatch.fast_lane.batches import NONCE_LENGTH, Failure, Outcome
from celery_wheelbeat.dispatch.fast_lane.socket_writes import write_in_turns
from celery_wheelbeat.dispatch.messages.amqp_envelope import AmqpEnvelope
from celery_wheelbeat.dispatch.messages.attempt import watched
from celery_wheelbeat.dispatch.messages.recording import record_amqp
from celery_wheelbeat.errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from celery_wheelbeat.dispatch.fast_lane.batches import Batch
    from celery_wheelbeat.dispatch.messages.envelope import Answer, Envelope, SampleMessage
    from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments, EnvelopeMaker
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.dispatch.messages.recording import Recording
    from celery_wheelbeat.dispatch.messages.task_body import TaskBody
    from celery_wheelbeat.runtime.clock import Clock

logger = logging.getLogger("celery.beat")

_WAITING, _SETTLED = 0, 1
_NOW_S = 0.001
"""Shortest time-out; py-amqp treats 0 as no time-out."""
_FRAMES_MAX = 32
"""Most frames read before the sender looks for further batches; reading for longer would let the window run dry."""
HEARTBEAT_S = 15.0
"""Longest heartbeat interval; after two intervals without a byte the connection is lost."""
STALLED_S = 10.0
"""A connection that accepts no byte for this long, without ``connection.blocked``, is lost."""
_REFUSALS = ("PreconditionFailed:", "ContentTooLarge:", "NotFound:", "AccessRefused:")
"""Errors with which a broker closes the channel because of one message."""
_EXCHANGE = re.compile(r"(?:NotFound|AccessRefused): .*exchange '([^']*)' in vhost")
"""Refusals that apply to every message to that exchange."""
QUEUES_REMEMBERED = 10_000
"""Most queues that can be declared again after a deletion; the oldest are forgotten first."""
_DEFAULT_EXCHANGE = "amq.default"
"""RabbitMQ's name, in its errors, for the exchange without a name."""


class _OnTheWay:
    """A written batch, delivery tags ``first`` … ``last``, with the state of each message."""

    def __init__(self, batch: Batch, first: int) -> None:
        self.batch = batch
        self.first = first
        self.last = first + batch.size - 1
        self.open = batch.size
        self.failures: list[Failure] = []
        self._state = bytearray(batch.size)
        self._low = 0
        """Every position below is settled; keeps repeated ``multiple`` acks linear."""

    def settle(self, first: int, last: int) -> None:
        """Settle delivery tags ``first`` … ``last``."""
        start, stop = self._span(first, last)
        if start < stop:
            self.open -= self._state.count(_WAITING, start, stop)
            self._state[start:stop] = bytes((_SETTLED,)) * (stop - start)
            if start == self._low:
                self._low = stop

    def fail(self, first: int, last: int) -> list[int]:
        """Settle delivery tags ``first`` … ``last``; returns the positions that were open."""
        start, stop = self._span(first, last)
        positions = [position for position in range(start, stop) if self._state[position] == _WAITING]
        self.settle(first, last)
        return positions

    def rest(self) -> list[int]:
        """Return the open positions."""
        return [position for position, state in enumerate(self._state) if state == _WAITING]

    def _span(self, first: int, last: int) -> tuple[int, int]:
        return max(first - self.first, self._low), min(last, self.last) - self.first + 1

    def losses(self, reason: str) -> list[Failure]:
        """Return the failures of the open messages after the loss of the connection.

        They depend on ``reason``: UNROUTABLE for a refused exchange, POISON for a refused message, else UNCERTAIN.
        """
        rest = self.rest()
        refused = _EXCHANGE.match(reason)
        if refused is None:
            kind = FailureKind.POISON if reason.startswith(_REFUSALS) else FailureKind.UNCERTAIN
            return [Failure(rest, kind, reason)] if rest else []
        exchanges = [
            parcel.key.decode() or _DEFAULT_EXCHANGE for parcel in self.batch.parcels for _ in range(parcel.size)
        ]
        parts = (
            ([at for at in rest if exchanges[at] == refused[1]], FailureKind.UNROUTABLE),
            ([at for at in rest if exchanges[at] != refused[1]], FailureKind.UNCERTAIN),
        )
        return [Failure(positions, kind, reason) for positions, kind in parts if positions]


class AmqpWire:
    """See ``batches.Wire``."""

    def __init__(
        self,
        open_connection: Callable[[], Any],
        make_producer: Callable[[Any], Any],
        make_maker: Callable[[AmqpWire], EnvelopeMaker],
        clock: Clock,
        *,
        heartbeat_s: float,
    ) -> None:
        """``make_maker(recorder)`` builds the maker of envelopes on this connection.

        ``heartbeat_s``: the user's setting; 0 (none) and values above ``HEARTBEAT_S`` become ``HEARTBEAT_S``.
        """
        self.blocked = ""
        self.on_wait: Callable[[], None] = lambda: None
        self._heartbeat_s = min(heartbeat_s or HEARTBEAT_S, HEARTBEAT_S)
        self.is_asked = True
        self.producer: Any = None
        self._open_connection = open_connection
        self._make_producer = make_producer
        self._make_maker = make_maker
        self._clock = clock
        self._kombu: Any = None
        self._amqp: Any = None
        self._channel: Any = None
        self._recording_channel: Any = None
        self._maker: EnvelopeMaker | None = None
        self._next_tag = 1
        self._sent: deque[_OnTheWay] = deque()
        """Written batches in order; after a lost connection, those of that one until ``settle``."""
        self._beat_s = 0.0
        self._heard = 0
        self._heard_s = 0.0
        """Monotonic time of the last byte from the broker."""
        self._returns = Returns(self._declare_again)
        self._forms: dict[str, tuple[Form, Sequence[Arguments]]] = {}
        """Queue reached through the default exchange → a form sent to it, to declare the queue again."""

    def connect(self) -> None:
        """See ``Wire``."""
        self.blocked = ""
        self._kombu = self._open_connection()
        self._kombu.heartbeat = self._heartbeat_s
        self._kombu.connect()
        self._amqp = self._kombu.connection
        self._amqp.on_blocked, self._amqp.on_unblocked = self._on_blocked, self._on_unblocked
        self._channel = self._amqp.channel()
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        self._next_tag = 1
        self._open_recording_channel()
        self._maker = self._make_maker(self)
        self._heard, self._heard_s = self._amqp.bytes_recv, self._clock.monotonic_s()

    def close(self, *, broken: bool) -> None:
        """See ``Wire``."""
        kombu, self._kombu, self._amqp = self._kombu, None, None
        if kombu is not None:
            close_connection(kombu, broken=broken)

    def send(self, batch: Batch) -> None:
        """See ``Wire``; blocks for the length of a broker alarm, and reads incoming frames meanwhile."""
        on_the_way = _OnTheWay(batch, self._next_tag)
        self._sent.append(on_the_way)
        self._next_tag += batch.size
        for _, size, data in batch.parcels:
            write_in_turns(self._amqp.transport.sock, data, self._clock, self._wait)
            self._amqp.bytes_sent += size  # py-amqp decides by this counter whether a heartbeat is due

    def receive(self, batches: Collection[Batch], timeout_s: float) -> Sequence[Outcome]:
        """See ``Wire``."""
        del batches  # their states are in ``_sent``
        self._keep_alive()
        with suppress(TimeoutError):
            self._amqp.drain_events(timeout=timeout_s or _NOW_S)
            for _ in range(_FRAMES_MAX):
                if not self._sent or not self._sent[0].open:
                    break
                self._amqp.drain_events(timeout=timeout_s or _NOW_S)
        self._listen()
        self._returns.judge()
        return self._settled()

    def settle(self, batches: Sequence[Batch], reason: str) -> Sequence[Outcome]:
        """See ``Wire``. If the broker closed the channel, a message or an exchange caused it."""
        at_ms = self._clock.wall_ms()
        self._returns.judge()
        lost = {one.batch.token: one for one in self._sent}
        self._sent.clear()
        outcomes = []
        for batch in batches:
            one = lost.get(batch.token)
            if one is None:
                failures = [Failure(range(batch.size), FailureKind.NOT_SENT, reason)]
            else:
                failures = [*one.failures, *one.losses(reason)]
            outcomes.append(Outcome(batch.token, at_ms, tuple(failures)))
        return outcomes

    def make(self, form: Form, candidates: Sequence[Arguments]) -> Answer:
        """See ``Wire``."""
        assert self._maker is not None  # noqa: S101 - for the type checker: only asked while connected
        if not self._recording_channel.is_open:
            self._open_recording_channel()
        made = self._maker.make(form, candidates)
        if isinstance(made, AmqpEnvelope) and made.routing_key and not made.exchange:
            if len(self._forms) >= QUEUES_REMEMBERED:
                del self._forms[next(iter(self._forms))]
            self._forms[made.routing_key] = (form, candidates[:1])
        return made

    def declare(self, queue: str) -> str:
        """See ``Wire``."""
        assert self._maker is not None  # noqa: S101 - for the type checker: only asked while connected
        if not self._recording_channel.is_open:
            self._open_recording_channel()
        return self._maker.declare(queue)

    def compare(self, envelope: Envelope, form: Form, arguments: Arguments) -> str:
        """See ``Wire``."""
        assert self._maker is not None  # noqa: S101 - for the type checker: only asked while connected
        return self._maker.differs(envelope, form, arguments)

    # The ``Recorder`` of the envelope maker.

    def record(self, publish: Callable[[], Any], *, anywhere: bool = False) -> Recording:
        """See ``envelope_maker.Recorder``."""
        del anywhere  # nothing is routed here
        return record_amqp(self._recording_channel, publish, channel_id=self._channel.channel_id)

    def envelope(self, recording: Recording, sample: SampleMessage, body: TaskBody) -> Envelope:
        """See ``envelope_maker.Recorder``."""
        return AmqpEnvelope(recording, sample, body, frame_max=self._amqp.frame_max)

    def try_out(self, recording: Recording) -> str:
        """See ``envelope_maker.Recorder``."""
        if not recording.exchange and "user_id" not in recording.properties:
            return ""  # the queue was just declared, and only ``user_id`` depends on the connection
        return refusal_of(recording, self._open_connection)

    # The connection.

    def _wait(self, stalled_s: float) -> None:
        """Called while a write makes no progress; reads frames, since ``connection.blocked`` may give the reason."""
        self.on_wait()
        with suppress(TimeoutError):
            self._amqp.drain_events(timeout=_NOW_S)
        self._listen()
        if not self.blocked and stalled_s > STALLED_S:
            raise TimeoutError(f"no byte was taken for {STALLED_S:g} s")

    def _listen(self) -> None:
        """Raise ``TimeoutError`` if nothing, not even a heartbeat, has come for two heartbeat intervals."""
        now_s = self._clock.monotonic_s()
        if self._amqp.bytes_recv != self._heard:
            self._heard, self._heard_s = self._amqp.bytes_recv, now_s
        elif self._amqp.heartbeat and now_s - self._heard_s > 2 * self._amqp.heartbeat:
            raise TimeoutError(f"nothing was heard for {2 * self._amqp.heartbeat:g} s")

    def _on_blocked(self, reason: str) -> None:
        self.blocked = reason
        logger.error("beat: RabbitMQ takes no messages (memory or disk alarm); waiting until it does")

    def _on_unblocked(self) -> None:
        self.blocked = ""
        logger.info("beat: RabbitMQ takes messages again")

    def _open_recording_channel(self) -> None:
        self._recording_channel = self._kombu.channel()
        self.producer = watched(self._make_producer(self._recording_channel))

    def _keep_alive(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._amqp.heartbeat and now_s - self._beat_s >= self._amqp.heartbeat / 4:
            self._beat_s = now_s
            self._amqp.heartbeat_tick()

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for one in self._sent:
            if one.first > tag:
                break
            if multiple or tag <= one.last:
                one.settle(1 if multiple else tag, tag)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        for one in takewhile(lambda one: one.first <= tag, self._sent):
            positions = one.fail(1 if multiple else tag, tag)
            if positions:
                one.failures.append(Failure(positions, FailureKind.REFUSED, "basic.nack: the queue takes no more"))

    def _on_return(self, exc: Exception, exchange: str, routing_key: str, message: Any) -> None:
        """Record a returned message. Its ack comes later and then settles nothing."""
        headers = message.headers or {}
        nonce = str(headers.get("wheelbeat_nonce")).encode()
        for one in self._sent:
            at = one.batch.nonces.find(nonce)
            if at >= 0 and at % NONCE_LENGTH == 0:
                tag = one.first + at // NONCE_LENGTH
                run = (headers.get("id"), headers.get("wheelbeat_fire_ms"))
                queue = "" if exchange else routing_key
                self._returns.note(Returned(one.fail(tag, tag), run, queue, reason_of(exc)), one.failures)

    def _declare_again(self, queue: str) -> bool:
        """Let Celery declare ``queue`` again, as for its first message; returns whether it exists now."""
        if self._kombu is None:
            return False
        self._kombu.declared_entities.clear()
        answer = self.make(*self._forms[queue]) if queue in self._forms else self.declare(queue)
        if answer and not isinstance(answer, AmqpEnvelope):
            logger.error("beat: The queue %s is gone and cannot be declared again: %s", queue, answer)
            return False
        logger.warning("beat: The queue %s was gone; it has been declared again", queue)
        return True

    def _settled(self) -> list[Outcome]:
        outcomes = []
        at_ms = self._clock.wall_ms()
        while self._sent and not self._sent[0].open:
            one = self._sent.popleft()
            outcomes.append(Outcome(one.batch.token, at_ms, tuple(one.failures)))
        return outcomes
