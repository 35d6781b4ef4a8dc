"""Envelopes of the Redis transport: one element of a variadic LPUSH, in the Redis protocol.

The value is JSON text that starts with the body; all varying values are text in it. The protocol puts its length in
front, so the length is cached with the body of each job. Job-specific routing keys and priorities lead to lists.
"""

from __future__ import annotations

from binascii import b2a_base64
from json.encoder import encode_basestring_ascii
from operator import mul
from typing import TYPE_CHECKING, Any

import numpy as np
from kombu.utils import json as kombu_json

from celery_wheelbeat.dispatch.messages.byte_ranges import ByteRanges
from celery_wheelbeat.dispatch.messages.envelope import Envelope, SampleMessage, Stamps, marks_of
from celery_wheelbeat.dispatch.messages.expiry import left_ms, texts_of_numbers
from celery_wheelbeat.dispatch.messages.flat_texts import in_base64
from celery_wheelbeat.dispatch.messages.part_cache import PartColumns
from celery_wheelbeat.dispatch.messages.patterns import NOTHING, PRIORITY, QUEUE, Own
from celery_wheelbeat.dispatch.messages.recording import ANYWHERE
from celery_wheelbeat.dispatch.messages.template import (
    LIFETIME_BYTES,
    TEXT_LENGTH_BYTES,
    Hole,
    MarkedValue,
    Pieces,
    Site,
    Skeleton,
    TextHole,
    Uncut,
    cut,
    fire_texts,
)
from celery_wheelbeat.dispatch.messages.tracing import QUEUED_AT_WIDTH, STARTED_AT_WIDTH, marks_of_observers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from celery_wheelbeat.dispatch.messages.flat_texts import FlatTexts
    from celery_wheelbeat.dispatch.messages.recording import Recording
    from celery_wheelbeat.dispatch.messages.run_ids import Octets
    from celery_wheelbeat.dispatch.messages.task_body import Encoded, TaskBody
    from celery_wheelbeat.dispatch.messages.template import Column, Messages
    from celery_wheelbeat.schedules.kinds import Int64s

_PROPERTIES = b'"properties": {'
_to_json: Callable[[Any], str] = kombu_json.dumps
_ARGS_REPR, _KWARGS_REPR = b'"argsrepr": "', b'", "kwargsrepr": "'
_PARTS = (TextHole("head"), TextHole("body"), TextHole("args"), TextHole("kwargs"))
_WIDTHS: Mapping[Hole | TextHole, int] = {
    Hole.ID: 36,
    Hole.TAG: 36,
    Hole.NONCE: 32,
    Hole.TRACE: 32,
    Hole.SPAN: 16,
    Hole.OTHER_TRACE: 32,
    Hole.OTHER_SPAN: 16,
    Hole.CHANCE: 8,
    Hole.QUEUED_AT: QUEUED_AT_WIDTH,
    Hole.STARTED_AT: STARTED_AT_WIDTH,
}


class RedisLists:
    """The lists that job-specific queues, priorities, and routing keys of one exchange, lead to.

    Bindings are those at the time of ``of``.
    """

    def __init__(
        self,
        find: Callable[[Own], Collection[str]],
        list_of: Callable[[str, int], bytes],
        expiring: Collection[str],
        priority: int,
        bindings: Callable[[], object],
    ) -> None:
        """``find``: options → queues; ``list_of``: (queue, priority) → key of the list.

        ``priority``: of jobs without their own. ``bindings`` reads the bindings of the exchange.
        """
        self._find = find
        self._list_of = list_of
        self._expiring = expiring
        self._priority = priority
        self._bindings = bindings
        self._found = bindings()

    @classmethod
    def of(cls, channel: Any, recording: Recording, own: Own) -> RedisLists:
        """Read the bindings of an exchange from Redis, as kombu does for each message. Raises ``Uncut``."""
        exchange, dead_letter, queue = recording.exchange, channel.deadletter_queue, recording.queue

        def list_of(queue: str, priority: int) -> bytes:
            level = channel._get_message_priority({"properties": {"priority": priority}}, reverse=False)
            return f"{channel.global_keyprefix}{channel._q_for_pri(queue, level)}".encode()

        def find_only(_own: Own) -> set[str]:
            return {queue}

        def find_own(own: Own) -> set[str]:
            return {own.options[QUEUE]}

        def find(own: Own) -> set[str]:
            return {queue for queue in kind.lookup(table, exchange, own.routing_key, None) if queue} - {dead_letter}

        def bindings() -> object:
            return channel.typeof(exchange).type, set(channel.get_table(exchange))

        expiring = frozenset(getattr(channel, "_expires", None) or ())
        priority = recording.properties["priority"]
        if queue != ANYWHERE:
            find_one = find_own if queue == own.options.get(QUEUE) else find_only
            return cls(find_one, list_of, expiring, priority, lambda: None)
        kind, table = channel.typeof(exchange), channel.get_table(exchange)
        if kind.type not in ("direct", "topic"):
            raise Uncut(f"the exchange {exchange!r} is a {kind.type}")
        return cls(find, list_of, expiring, priority, bindings)

    def are_outdated(self) -> bool:
        """Read the bindings again; return whether they have changed. For the thread that made the envelope."""
        return self._bindings() != self._found

    def key_of(self, own: Own) -> bytes | str:
        """See ``envelope.Places``."""
        queues = self._find(own)
        if len(queues) != 1:
            return f"its routing key leads to {'several lists' if queues else 'no list'}"
        (queue,) = queues
        if queue in self._expiring:
            return f"the queue {queue!r} expires, which takes further commands"
        return self.key_in(queue, own)

    def key_in(self, queue: str, own: Own) -> bytes:
        """Return the key of the list of ``queue`` for a job."""
        return self._list_of(queue, own.options.get(PRIORITY, self._priority))


class RedisEnvelope(Envelope):
    """Envelope for Redis lists. ``base64``: whether the channel's ``body_encoding`` is base64."""

    def __init__(
        self,
        recording: Recording,
        sample: SampleMessage,
        body: TaskBody,
        *,
        base64: bool,
        places: RedisLists | None = None,
    ) -> None:
        super().__init__(recording, body, sample.own)
        self.places = places
        if recording.queue in (ANYWHERE, sample.own.options.get(QUEUE)):
            self.routing_key = ""
        self._base64 = base64
        marks = [
            *marks_of(recording, sample),
            *marks_of_observers(recording.headers, self.write_time),
            MarkedValue(Hole.TAG, recording.delivery_tag.encode()),
            MarkedValue(Hole.FIRE, b'"wheelbeat_fire_ms": %d' % sample.fire_ms, None),
            MarkedValue(Hole.BODY, self._body_text(recording.body)),
            MarkedValue(Hole.REPRS, _repr_text(body.of(sample.args, sample.kwargs))),
            MarkedValue(Hole.NAME, self._find_own(recording, sample), None),
            *self._find_own_values(recording.wire, recording.properties, sample.own),
        ]
        self.opening_width = TEXT_LENGTH_BYTES * len(self.texts) + LIFETIME_BYTES * self.has_expiries
        found = cut(recording.wire, marks)
        if found.holes[0] is not Hole.BODY:
            raise Uncut("it does not begin with the body")
        self._lead = found.constants[0]
        widths: dict[Hole | TextHole, int] = {**_WIDTHS, Hole.FIRE: len(b'"wheelbeat_fire_ms": %d' % sample.fire_ms)}
        if Hole.EXPIRES in found.holes:
            widths[Hole.EXPIRES] = len(recording.headers["expires"])
        self._names = found.holes.count(Hole.NAME)
        self._times = [found.holes.count(hole) for hole in self.texts]
        self._fixed_length = found.constant_length + sum(widths.get(hole, 0) for hole in found.holes)
        constants, holes = (b"", *found.constants[1:-1], found.constants[-1] + b"\r\n"), found.holes
        if self.dated:
            constants, holes = (b"", *constants), (Hole.LENGTH, *holes)
        self.skeleton = Skeleton(constants, holes)

    def pieces(self, encoded: Encoded, name: str, own: Own = NOTHING) -> Pieces:
        """See ``Envelope``."""
        body, reprs = self._body_text(encoded.body), _repr_text(encoded)
        name_text = self._own_text(name, own)
        length = self._fixed_length + len(body) + len(reprs) + self._names * len(name_text)
        values = self._own_values(own) if self.texts else []
        if values:
            length += sum(map(mul, map(len, values), self._times))
        written_length = b"" if self.dated else b"$%d\r\n" % length
        pieces = Pieces(b"", b"%b%b%b" % (written_length, self._lead, body), reprs, name_text)
        return self._with_own(pieces, values, own) if self.opening_width else pieces

    def render(self, pieces: Mapping[Hole | TextHole, Column], stamps: Stamps) -> Messages:
        """See ``Envelope``."""
        instants = pieces.get(Hole.LIFETIME)
        if self.dated and isinstance(instants, np.ndarray):
            written = texts_of_numbers(left_ms(stamps.now, instants), lambda value: b'"expiration": "%d"' % value)
            pieces = {**pieces, Hole.EXPIRATION: written}
            length = np.full(len(instants), self._fixed_length - len(self._lead))
            for filling in (pieces[hole] for hole in self.skeleton.holes if hole in pieces):
                length += filling.length if isinstance(filling, ByteRanges) else 0
            pieces[Hole.LENGTH] = texts_of_numbers(length, lambda value: b"$%d\r\n" % value)
        return super().render(pieces, stamps)

    def _find_own_values(self, wire: bytes, properties: Mapping[str, Any], own: Own) -> list[MarkedValue]:
        marks = [*self._find_texts(wire, own, own.texts), *self._find_time_limits(own)]
        if PRIORITY in own.options:
            marks.append(self._mark(TextHole(PRIORITY), own, wire.rfind(_PROPERTIES)))
        if self.dated:
            written = b'"expiration": "%b"' % str(properties["expiration"]).encode()
            marks.append(MarkedValue(Hole.EXPIRATION, written, 1, wire.rfind(_PROPERTIES)))
        self.texts = tuple(mark.hole for mark in marks if isinstance(mark.hole, TextHole))
        return marks

    def columns(self, flat: FlatTexts, name: str) -> PartColumns | None:
        """See ``Envelope``."""
        if not self._base64 or self.opening_width or self.names_key:
            return None
        bodies = in_base64(flat.json, self.body.tail)
        name_text = self._own_text(name, NOTHING)
        args, kwargs = flat.args_reprs, flat.kwargs_reprs
        reprs_length = args.length + kwargs.length + len(_ARGS_REPR + _KWARGS_REPR + b'"')
        length = self._fixed_length + bodies.length + len(b'""') + reprs_length + self._names * len(name_text)
        distinct, inverse = np.unique(length, return_inverse=True)
        heads = ByteRanges.of([b'$%d\r\n%b"' % (one, self._lead) for one in distinct.tolist()])
        head = ByteRanges(heads.buffer, heads.start[inverse], heads.length[inverse])
        constants = (b"", b"", b'"' + _ARGS_REPR, _KWARGS_REPR, b'"' + name_text)
        parts = Skeleton(constants, _PARTS).render(dict(zip(_PARTS, (head, bodies, args, kwargs), strict=True)))
        body_length = head.length + bodies.length + len(b'"')
        name_length = np.full(len(length), len(name_text), np.int64)
        begin = np.subtract(parts.ends, body_length + reprs_length + name_length, dtype=np.int64)
        return PartColumns(parts.octets, begin, 0, body_length, reprs_length, name_length)

    def fires(self, fire_ms: Int64s) -> Octets:
        """See ``Envelope``."""
        return fire_texts(fire_ms, b'"wheelbeat_fire_ms": ')

    @staticmethod
    def write_name(name: str) -> bytes:
        """See ``Envelope``."""
        return b'"periodic_task_name": ' + _text(name)

    @staticmethod
    def write_headers(headers: Mapping[str, Any]) -> bytes:
        """See ``Envelope``."""
        return _to_json(headers)[1:-1].encode()

    @staticmethod
    def write_text(text: str, site: Site) -> bytes:
        """See ``Envelope``."""
        del site
        return _text(text)

    @staticmethod
    def write_priority(priority: int) -> bytes:
        """See ``Envelope``."""
        return b'"priority": %d' % priority

    @staticmethod
    def write_time(seconds: float) -> bytes:
        """See ``Envelope``."""
        return repr(seconds).encode()

    def unframed(self, message: bytes) -> bytes:
        """See ``Envelope``; raises ``Uncut`` if the length in front is wrong."""
        length, _, value = message[1:-2].partition(b"\r\n")
        # a recorded enqueuing time has a variable number of digits, a rendered one always six decimals
        if int(length) != len(value) and Hole.QUEUED_AT not in self.skeleton.holes:
            raise Uncut(f"its length is {len(value)} bytes, computed were {int(length)}")
        return value

    def _body_text(self, body: bytes) -> bytes:
        return b'"%b"' % b2a_base64(body, newline=False) if self._base64 else _text(body.decode())


def _repr_text(encoded: Encoded) -> bytes:
    return b'"argsrepr": %b, "kwargsrepr": %b' % (_text(encoded.args_repr), _text(encoded.kwargs_repr))


def _text(value: str) -> bytes:
    return encode_basestring_ascii(value).encode()  # as json.dumps encodes text
