"""The Redis connection of the fast lane: a batch is MULTI, one LPUSH per list, a marker, and EXEC.

The marker says that a batch was applied. After a lost connection, the old connection is found by its client name and
killed; then the marker shows which batches were applied. Where the server does not allow this, or has no transactions,
batches in flight are ``UNCERTAIN``. A run counts as sent only after the reply to EXEC, with every element checked.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.dispatch import FailureKind
from celery_wheelbeat.dispatch.broker import REPLY_TIMEOUT_S, close_connection
from celery_wheelbeat.dispatch.fast_lane.batches import Failure, Outcome
from celery_wheelbeat.dispatch.fast_lane.redis_protocol import (
    EXEC,
    MULTI,
    bulk,
    command,
    forbids,
    kind_of,
    response_error,
)
from celery_wheelbeat.dispatch.fast_lane.socket_writes import unacknowledged_bytes, write_in_turns
from celery_wheelbeat.dispatch.messages.attempt import watched
from celery_wheelbeat.dispatch.messages.patterns import PRIORITY, QUEUE
from celery_wheelbeat.dispatch.messages.recording import ANYWHERE, record_redis
from celery_wheelbeat.dispatch.messages.redis_envelope import RedisEnvelope, RedisLists
from celery_wheelbeat.dispatch.messages.template import Uncut
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

MARKER_TTL_S = 86_400
SLOTS = 128
"""Number of fields of the marker; more than the batches that ``wheelbeat_window`` allows in flight."""
_PARTS_MAX = 16
"""Up to this many parts are written one by one, without a copy; more are joined first."""
_NOBODY = 2**62
"""A client id that does not exist, to test whether CLIENT KILL is allowed."""
_PROBES = 8
"""Keys of the test transaction; in a cluster they lie in several slots, like the lists and the marker."""


class RedisWire:
    """See ``batches.Wire``."""

    def __init__(
        self,
        open_connection: Callable[[], Any],
        make_producer: Callable[[Any], Any],
        make_maker: Callable[[RedisWire], EnvelopeMaker],
        clock: Clock,
        *,
        namespace: Callable[[], str],
        destination: str,
        beat_id: str | None = None,
    ) -> None:
        """``beat_id``: part of the name of the connection, by which another beat can end it.

        ``make_maker(recorder)`` builds the maker of envelopes on this connection."""
        self.blocked = ""
        self.on_wait: Callable[[], None] = lambda: None
        self.provable = True
        """Whether markers show which batches were applied before a connection was lost."""
        self.is_asked = False
        self.producer: Any = None
        self._open_connection = open_connection
        self._make_producer = make_producer
        self._make_maker = make_maker
        self._clock = clock
        self._incarnation = beat_id or uuid.uuid4().hex
        self._name_marker: Callable[[], str] = lambda: f"wheelbeat:{namespace()}:seq:{self._incarnation}:{destination}"
        self._marked = self._unmarked = 0
        """Batches without a reply that were written with a marker, and those written after them without one."""
        self._warned = False
        self._marker = b""
        """Key of the marker; set with the first batch and never changed, since later connections read it."""
        self._sends = 0
        """Batches sent; chooses the marker's field. Tokens are not consecutive; batches in flight share no field."""
        self._client_name = f"wheelbeat-{self._incarnation}".encode()
        self._read_only = False
        self._kombu: Any = None
        self._channel: Any = None
        """kombu's channel, for recording and for the settings of its pool."""
        self._redis: Any = None
        self._maker: EnvelopeMaker | None = None
        self._progress_s = 0.0
        """Monotonic time of the last progress: a byte written or acknowledged, or a reply read."""
        self._unacknowledged = 0

    def connect(self) -> None:
        """See ``Wire``."""
        self._kombu = self._open_connection()
        self._kombu.connect()
        self._channel = self._kombu.default_channel
        self.producer = watched(self._make_producer(self._kombu))
        self._maker = self._make_maker(self)
        self._redis = self._channel.pool.make_connection()
        self._redis.connect()
        self._read_only = False
        self._prepare_proof()

    def close(self, *, broken: bool) -> None:
        """See ``Wire``."""
        if self._redis is not None:
            self._redis.disconnect()
        if self._kombu is not None:
            close_connection(self._kombu, broken=broken)
        self._redis = self._kombu = None

    def send(self, batch: Batch) -> None:
        """See ``Wire``."""
        if self._read_only:
            raise ConnectionError("the server only takes reads; asking again which one is the master")
        self._marker = self._marker or f"{self._channel.global_keyprefix}{self._name_marker()}".encode()
        parts: list[bytes | memoryview] = []
        lead, tail = (MULTI, self._mark(batch) + EXEC) if self.provable else (b"", b"")
        for key, size, data in batch.parcels:
            parts += [lead + b"*%d\r\n$5\r\nLPUSH\r\n%b" % (size + 2, bulk(key)), data]
            lead = b""
        parts.append(tail)
        self._marked += self.provable
        self._unmarked += not self.provable
        for part in parts if len(parts) <= _PARTS_MAX else [b"".join(parts)]:
            write_in_turns(self._redis._sock, part, self._clock, self._wait)
        self._progress_s = self._clock.monotonic_s()

    def receive(self, batches: Collection[Batch], timeout_s: float) -> Sequence[Outcome]:
        """See ``Wire``; a connection without progress for longer than the socket's time-out is lost."""
        if not batches:
            return []
        if not self._redis.can_read(timeout_s):
            self._look_for_progress()
            return []
        is_marked = self._marked > 0
        outcome = self._reply_to(next(iter(batches)), is_marked=is_marked)
        self._marked -= is_marked
        self._unmarked -= not is_marked
        self._progress_s = self._clock.monotonic_s()
        return [outcome]

    def settle(self, batches: Sequence[Batch], reason: str) -> Sequence[Outcome]:
        """See ``Wire``."""
        at_ms = self._clock.wall_ms()
        applied = self._applied() if self.provable else set()
        outcomes = []
        for position, batch in enumerate(batches):
            if batch.token in applied:
                outcomes.append(self._found_applied(batch, at_ms))
                continue
            proven = self.provable and not 0 <= position - self._marked < self._unmarked
            kind = FailureKind.NOT_SENT if proven else FailureKind.UNCERTAIN
            outcomes.append(Outcome(batch.token, at_ms, (Failure(range(batch.size), kind, reason),)))
        self._marked = self._unmarked = 0
        return outcomes

    def make(self, form: Form, candidates: Sequence[Arguments]) -> Answer:
        """See ``Wire``."""
        assert self._maker is not None  # noqa: S101 - for the type checker: only asked while connected
        return self._maker.make(form, candidates)

    def declare(self, queue: str) -> str:
        """See ``Wire``."""
        assert self._maker is not None  # noqa: S101 - for the type checker: only asked while connected
        return self._maker.declare(queue)

    def compare(self, envelope: Envelope, form: Form, arguments: Arguments) -> str:
        """See ``Wire``."""
        assert self._maker is not None  # noqa: S101 - for the type checker: only asked while connected
        return self._maker.differs(envelope, form, arguments)

    # The ``Recorder`` of the envelope maker.

    def record(self, publish: Callable[[], Any], *, anywhere: bool = False) -> Recording:
        """See ``envelope_maker.Recorder``."""
        return record_redis(self._channel, publish, anywhere=anywhere)

    def envelope(self, recording: Recording, sample: SampleMessage, body: TaskBody) -> Envelope:
        """See ``envelope_maker.Recorder``."""
        is_base64 = self._channel.body_encoding == "base64"
        named = recording.queue == ANYWHERE
        if named and recording.routing_key != sample.own.routing_key:
            raise Uncut("its routing key is not the one of its options")
        is_placed = named or PRIORITY in sample.own.options or QUEUE in sample.own.options
        places = RedisLists.of(self._channel, recording, sample.own) if is_placed else None
        return RedisEnvelope(recording, sample, body, base64=is_base64, places=places)

    def try_out(self, recording: Recording) -> str:
        """See ``envelope_maker.Recorder``: a list takes every message."""
        del recording
        return ""

    # The connection.

    def _wait(self, stalled_s: float) -> None:
        """Called while a write makes no progress; raises after the time-out of a reply."""
        self.on_wait()
        if stalled_s > self._patience_s():
            raise TimeoutError(f"no byte was taken for {self._patience_s():g} s")

    def _look_for_progress(self) -> None:
        """Called while no reply comes; bytes that the other host still acknowledges over a slow line are progress."""
        now_s = self._clock.monotonic_s()
        before, self._unacknowledged = self._unacknowledged, unacknowledged_bytes(self._redis._sock)
        if self._unacknowledged < before:
            self._progress_s = now_s
        elif now_s - self._progress_s > self._patience_s():
            raise TimeoutError(f"no reply within {self._patience_s():g} s")

    def _patience_s(self) -> float:
        return float(self._redis.socket_timeout or REPLY_TIMEOUT_S)

    def _ask(self, *words: bytes) -> Any:
        self._redis.send_packed_command([command(*words)], check_health=False)
        return self._redis.read_response()

    def _mark(self, batch: Batch) -> bytes:
        """Return the commands that mark ``batch`` as applied."""
        self._sends += 1
        slot = b"%d" % (self._sends % SLOTS)
        return command(b"HSET", self._marker, slot, b"%d" % batch.token) + command(
            b"EXPIRE", self._marker, b"%d" % MARKER_TTL_S
        )

    def _prepare_proof(self) -> None:
        """Kill earlier connections of this process and test transactions; log once if either is not possible.

        Tested on each connection: a server may refuse temporarily, as while a script runs too long.
        """
        self.provable = True
        try:
            self._end_former_selves()
            self._try_transaction()
        except response_error() as error:
            self._do_without_proof(reason_of(error))
            self._redis.disconnect()
            self._redis.connect()

    def _do_without_proof(self, reason: str) -> None:
        self.provable = False
        if not self._warned:
            self._warned = True
            logger.warning(
                "beat: Redis does not allow CLIENT SETNAME, LIST and KILL, or MULTI over several keys, or hashes here"
                " (%s): after a lost connection what was on its way (wheelbeat_window) may be sent twice, with the"
                " same ids",
                reason,
            )

    def _try_transaction(self) -> None:
        """Read several keys in one transaction, as a batch writes several lists and the marker."""
        self._ask(b"MULTI")
        for number in range(_PROBES):
            self._ask(b"HMGET", f"{self._channel.global_keyprefix}wheelbeat:seq:{number}".encode(), b"0")
        for reply in self._ask(b"EXEC"):
            if isinstance(reply, Exception):
                raise reply

    def _end_former_selves(self) -> None:
        self._ask(b"CLIENT", b"SETNAME", self._client_name)
        me = self._ask(b"CLIENT", b"ID")
        clients = self._ask(b"CLIENT", b"LIST")
        for line in (clients if isinstance(clients, bytes) else str(clients).encode()).splitlines():
            fields = dict(field.partition(b"=")[::2] for field in line.split(b" "))
            if fields.get(b"name") == self._client_name and int(fields[b"id"]) != me:
                try:
                    self._ask(b"CLIENT", b"KILL", b"ID", fields[b"id"])
                except response_error() as error:
                    if not str(error).startswith(("No such client", "ERR No such client")):
                        raise
        self._ask(b"CLIENT", b"KILL", b"ID", b"%d" % _NOBODY)

    def _applied(self) -> set[int]:
        if not self._marker:
            return set()
        values = self._ask(b"HMGET", self._marker, *(b"%d" % slot for slot in range(SLOTS)))
        return {int(value) for value in values if value is not None}

    def _found_applied(self, batch: Batch, at_ms: int) -> Outcome:
        """Return the outcome of an applied batch whose reply was lost; pushes to keys that are not lists failed."""
        failures = []
        start = 0
        for parcel in batch.parcels:
            kind = self._ask(b"TYPE", parcel.key)
            if kind not in (b"list", b"none"):
                positions = range(start, start + parcel.size)
                failures.append(Failure(positions, FailureKind.UNROUTABLE, f"{parcel.key!r} holds a {kind!r}"))
            start += parcel.size
        return Outcome(batch.token, at_ms, tuple(failures))

    def _reply_to(self, batch: Batch, *, is_marked: bool) -> Outcome:
        replies = self._replies(len(batch.parcels), is_marked=is_marked)
        at_ms = self._clock.wall_ms()
        failures = []
        start = 0
        for parcel, reply in zip(batch.parcels, replies, strict=True):
            if isinstance(reply, Exception):
                positions = range(start, start + parcel.size)
                failures.append(Failure(positions, kind_of(reply), reason_of(reply)))
                self._read_only = self._read_only or type(reply).__name__ == "ReadOnlyError"
            start += parcel.size
        return Outcome(batch.token, at_ms, tuple(failures))

    def _replies(self, pushes: int, *, is_marked: bool) -> list[Any]:
        """Read the result of each LPUSH: a length, or an exception."""
        if not is_marked:
            return [self._read() for _ in range(pushes)]
        begun, *queued = [self._read() for _ in range(1 + pushes + 2)]
        executed = self._read()
        if isinstance(executed, list):
            return executed[:pushes]
        first = next((reply for reply in (begun, *queued) if isinstance(reply, Exception)), executed)
        if forbids(first):
            self._do_without_proof(reason_of(first))  # then a forbidden list fails only its own runs
        return queued[:pushes] if begun is first else [first] * pushes  # without MULTI each was executed

    def _read(self) -> Any:
        try:
            return self._redis.read_response(disconnect_on_error=True)
        except response_error() as error:
            return error
