"""Envelopes of AMQP 0-9-1: method frame, content header and body frames of one ``basic.publish``.

The content header has three lengths before everything that varies; they are cached as the *opening* of each job. A body
is split at the connection's ``frame_max``, so an envelope belongs to one connection.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import amqp.exceptions
import numpy as np
from amqp.serialization import dumps as dump_arguments

from celery_wheelbeat.dispatch.messages.byte_ranges import ByteRanges
from celery_wheelbeat.dispatch.messages.envelope import Envelope, SampleMessage, Stamps, marks_of
from celery_wheelbeat.dispatch.messages.expiry import left_ms, texts_of_numbers
from celery_wheelbeat.dispatch.messages.flat_texts import big_endian
from celery_wheelbeat.dispatch.messages.part_cache import PartColumns
from celery_wheelbeat.dispatch.messages.patterns import NOTHING, PRIORITY, QUEUE, ROUTING_KEY, SHORT_TEXT_MAX, Own
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
    Unsendable,
    cut,
    fire_octets,
)
from celery_wheelbeat.dispatch.messages.tracing import marks_of_observers
from celery_wheelbeat.errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.dispatch.messages.flat_texts import FlatTexts
    from celery_wheelbeat.dispatch.messages.recording import Recording
    from celery_wheelbeat.dispatch.messages.run_ids import Octets
    from celery_wheelbeat.dispatch.messages.task_body import Encoded, TaskBody
    from celery_wheelbeat.dispatch.messages.template import Column, Messages
    from celery_wheelbeat.schedules.kinds import Int64s

_METHOD, _HEADER, _BODY = 1, 2, 3
_END = b"\xce"
_FRAME_EXTRA = 8
_INNER = b"\x07headersF"
"""Start of a nested table ``headers``, in which some tracing tools repeat the headers."""
_ROUTING_KEY_AT = 7 + 4 + 2 + 1
"""Bytes before the routing key of ``basic.publish``, besides the exchange: frame head, method, reserved, length."""
_TABLE_LENGTH = 4
_TIME_TO_LIVE_MAX = 20
"""Bound on the bytes of the property ``expiration``."""
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _DELIVERY_MODE, _PRIORITY = (1 << bit for bit in range(15, 10, -1))
_IN_PROPERTIES = TextHole(PRIORITY, Site.PROPERTIES)


_TEXT_LENGTH = 4
_ARGS_REPR, _KWARGS_REPR = b"\x08argsreprS", b"\x0akwargsreprS"
_PARTS = tuple(TextHole(f"part {number}") for number in range(9))


class _Method(NamedTuple):
    """A method frame with a job-specific routing key."""

    option: str
    """Option with the key: a plain queue, or the routing key."""
    head: bytes
    """Type and channel."""
    before: bytes
    """The payload up to the routing key."""
    behind: bytes
    """The rest of the frame."""

    def of(self, routing_key: bytes) -> bytes:
        """Return the frame of a job. ``routing_key``: with its length."""
        size = len(self.before) + len(routing_key) + len(self.behind) - 1
        return b"%b%b%b%b%b" % (self.head, size.to_bytes(4, "big"), self.before, routing_key, self.behind)


class AmqpEnvelope(Envelope):
    """Envelope for one AMQP connection with the given ``frame_max``."""

    def __init__(self, recording: Recording, sample: SampleMessage, body: TaskBody, *, frame_max: int) -> None:
        super().__init__(recording, body, sample.own)
        wire = recording.wire
        header = _frame_end(wire, 0, _METHOD)
        body_at = _frame_end(wire, header, _HEADER)
        table = _table_at(wire, header + 7)
        self._channel = wire[1:3]
        self._chunk = frame_max - _FRAME_EXTRA
        self._before_table = wire[header + 7 + 12 : table]
        self._method = self._own_method(wire, header, sample.own)
        opening = wire[header + 3 : table + 4]
        (table_length,) = struct.unpack_from(">I", wire, table)
        own_values = self._find_own_values(wire[:body_at], header, table + 4 + table_length, sample.own)
        if self.dated:
            time_to_live = self.write_text(str(recording.properties["expiration"]), Site.PROPERTIES)
            own_values.append(MarkedValue(Hole.EXPIRATION, time_to_live, 1, table + 4 + table_length, body_at))
        self.opening_width = TEXT_LENGTH_BYTES * len(self.texts) + LIFETIME_BYTES * self.has_expiries + len(opening)
        reprs, name = _repr_text(body.of(sample.args, sample.kwargs)), self._find_own(recording, sample)
        marks = [
            *marks_of(recording, sample),
            *marks_of_observers(recording.headers, self.write_time),
            MarkedValue(Hole.FIRE, b"\x11wheelbeat_fire_msL" + sample.fire_ms.to_bytes(8, "big", signed=True), None),
            MarkedValue(Hole.REPRS, reprs),
            MarkedValue(Hole.NAME, name, None),
            MarkedValue(Hole.OPENING, opening),
            MarkedValue(Hole.BODY, wire[body_at:]),
            *own_values,
        ]
        inner = wire.find(_INNER)
        names = wire.count(name)
        if names > 1 and inner >= 0:
            (self._inner_fixed,) = struct.unpack_from(">I", wire, inner + len(_INNER))
            self._inner_fixed -= len(name)
            marks.append(MarkedValue(Hole.INNER, wire[inner : inner + len(_INNER) + 4]))
        self.skeleton = cut(wire, marks)
        if wire[body_at:] != self._body_frames(recording.body):
            raise Uncut("its body is not framed as expected")
        self._names = names
        self._times = [self.skeleton.holes.count(hole) for hole in self.texts]
        in_table_length, beside_length = self._lengths(self._own_values(sample.own))
        varying = len(reprs) + names * len(name) + in_table_length
        (header_length,) = struct.unpack_from(">I", wire, header + 3)
        self._header_fixed = header_length - varying - beside_length - (len(time_to_live) if self.dated else 0)
        self._table_fixed = table_length - varying

    def pieces(self, encoded: Encoded, name: str, own: Own = NOTHING) -> Pieces:
        """See ``Envelope``."""
        body, reprs, name_text = encoded.body, _repr_text(encoded), self._own_text(name, own)
        values = self._own_values(own) if self.texts else []
        in_table_length, beside_length = self._lengths(values) if values else (0, 0)
        varying = len(reprs) + self._names * len(name_text) + in_table_length
        header_length = self._header_fixed + varying + beside_length
        if header_length + _TIME_TO_LIVE_MAX * self.dated > self._chunk:
            raise Unsendable(
                f"its headers and properties have {header_length:,} bytes: RabbitMQ takes no more than"
                f" {self._chunk:,} and ends the connection with more"
            )
        opening = b"%b%b%b" % (
            struct.pack(">IHHQ", header_length, 60, 0, len(body)),
            self._before_table,
            struct.pack(">I", self._table_fixed + varying),
        )
        pieces = Pieces(opening, self._body_frames(body), reprs, name_text)
        return self._with_own(pieces, values, own) if values or self.has_expiries else pieces

    def _find_own_values(self, wire: bytes, header: int, properties: int, own: Own) -> list[MarkedValue]:
        """Find the job-specific values of a recorded message. ``properties``: offset of those behind the headers."""
        names = [name for name in own.texts if name not in (QUEUE, ROUTING_KEY)]
        marks = [
            *self._find_texts(wire, own, names),
            *self._find_time_limits(own),
            *self._find_texts(wire, own, names, Site.PROPERTIES, properties),
        ]
        if PRIORITY in own.options:
            (flags,) = struct.unpack_from(">H", wire, header + 7 + 12)
            at = properties + (flags & _DELIVERY_MODE > 0)
            if not flags & _PRIORITY:
                raise Uncut("it has no priority")
            marks.append(MarkedValue(_IN_PROPERTIES, self.write_priority(own.options[PRIORITY]), 1, at, at + 1))
        if self._method is not None:
            in_method = TextHole(self._method.option, Site.METHOD)
            marks.append(MarkedValue(in_method, wire[:header], 1, 0, header))
        self.texts = tuple(mark.hole for mark in marks if isinstance(mark.hole, TextHole))
        return marks

    def _written(self, hole: TextHole, own: Own, texts: Mapping[str, str]) -> bytes:
        written = super()._written(hole, own, texts)
        return self._method.of(written) if hole.site is Site.METHOD and self._method is not None else written

    def _lengths(self, values: Sequence[bytes]) -> tuple[int, int]:
        """Return the bytes that job-specific values take in the table of headers, and behind it."""
        lengths = dict.fromkeys(Site, 0)
        for hole, value, times in zip(self.texts, values, self._times, strict=True):
            lengths[hole.site] += times * len(value)
        return lengths[Site.HEADERS], lengths[Site.PROPERTIES]

    def columns(self, flat: FlatTexts, name: str) -> PartColumns | None:
        """See ``Envelope``."""
        if self.texts or self.timed or self.names_key:
            return None
        name_text, tail = self._own_text(name, NOTHING), self.body.tail
        args, kwargs = flat.args_reprs, flat.kwargs_reprs
        reprs_length = args.length + kwargs.length + len(_ARGS_REPR + _KWARGS_REPR) + 2 * _TEXT_LENGTH
        varying = reprs_length + self._names * len(name_text)
        body = flat.json.length + len(tail)
        if max(int(body.max()), self._header_fixed + int(varying.max())) > self._chunk:
            return None
        constants = (
            b"",
            struct.pack(">HH", 60, 0),
            self._before_table,
            bytes((_BODY,)) + self._channel,
            b"",
            tail + _END + _ARGS_REPR,
            b"",
            _KWARGS_REPR,
            b"",
            name_text,
        )
        columns = (
            big_endian(self._header_fixed + varying, 4),
            big_endian(body, 8),
            big_endian(self._table_fixed + varying, 4),
            big_endian(body, 4),
            flat.json,
            big_endian(args.length, _TEXT_LENGTH),
            args,
            big_endian(kwargs.length, _TEXT_LENGTH),
            kwargs,
        )
        parts = Skeleton(constants, _PARTS).render(dict(zip(_PARTS, columns, strict=True)))
        body_length = body + _FRAME_EXTRA
        name_length = np.full(len(body), len(name_text), np.int64)
        begin = np.subtract(parts.ends, self.opening_width + body_length + reprs_length + name_length, dtype=np.int64)
        return PartColumns(parts.octets, begin, self.opening_width, body_length, reprs_length, name_length)

    def fires(self, fire_ms: Int64s) -> Octets:
        """See ``Envelope``."""
        return fire_octets(fire_ms, b"\x11wheelbeat_fire_msL")

    @staticmethod
    def write_name(name: str) -> bytes:
        """See ``Envelope``."""
        return b"\x12periodic_task_name" + _long_text(name)

    @staticmethod
    def write_headers(headers: Mapping[str, Any]) -> bytes:
        """See ``Envelope``."""
        try:
            written: bytes = dump_arguments("F", (headers,))[_TABLE_LENGTH:]
        except (amqp.exceptions.FrameSyntaxError, struct.error, UnicodeError) as error:
            raise Unsendable(f"its headers cannot be written in AMQP: {reason_of(error)}") from error
        return written

    @staticmethod
    def write_text(text: str, site: Site) -> bytes:
        """See ``Envelope``."""
        if site is Site.HEADERS:
            return _long_text(text)
        octets = text.encode("utf-8", "surrogatepass")
        if len(octets) > SHORT_TEXT_MAX:
            raise Unsendable(
                f"a property of its message has {len(octets)} bytes; in AMQP it has {SHORT_TEXT_MAX} bytes at most"
            )
        return bytes((len(octets),)) + octets

    @staticmethod
    def write_priority(priority: int) -> bytes:
        """See ``Envelope``."""
        return bytes((priority,))

    @staticmethod
    def write_time(seconds: float) -> bytes:
        """See ``Envelope``."""
        return struct.pack(">cd", b"d", seconds)

    def render(self, pieces: Mapping[Hole | TextHole, Column], stamps: Stamps) -> Messages:
        """See ``Envelope``."""
        instants, opening = pieces.get(Hole.LIFETIME), pieces[Hole.OPENING]
        if self.dated and isinstance(instants, np.ndarray) and isinstance(opening, np.ndarray):
            written = texts_of_numbers(
                left_ms(stamps.now, instants), lambda value: self.write_text(str(value), Site.PROPERTIES)
            )
            sizes = opening[:, :4].copy().view(">u4") + written.length[:, None]
            sized = np.hstack((sizes.astype(">u4").view(np.uint8), opening[:, 4:]))
            pieces = {**pieces, Hole.EXPIRATION: written, Hole.OPENING: sized}
        names = pieces[Hole.NAME]
        if Hole.INNER in self.skeleton.holes and isinstance(names, ByteRanges):
            lengths = (names.length + self._inner_fixed).astype(">u4").view(np.uint8).reshape(-1, 4)
            inner = np.broadcast_to(np.frombuffer(_INNER, np.uint8), (len(lengths), len(_INNER)))
            pieces = {**pieces, Hole.INNER: np.hstack((inner, lengths))}
        return super().render(pieces, stamps)

    def _own_method(self, wire: bytes, header: int, own: Own) -> _Method | None:
        """Return the method frame as a template for the routing key; None if the key is not job-specific."""
        at = _ROUTING_KEY_AT + len(self.exchange.encode())
        for option in (QUEUE, ROUTING_KEY):
            key = self.write_text(str(own.options.get(option, "")), Site.METHOD)
            if len(key) > 1 and wire[at : at + len(key)] == key:
                self.routing_key = ""
                return _Method(option, wire[:3], wire[7:at], wire[at + len(key) : header])
        return None

    def _body_frames(self, body: bytes) -> bytes:
        chunks = [body[start : start + self._chunk] for start in range(0, len(body), self._chunk)]
        return b"".join(
            b"%b%b%b%b%b" % (bytes((_BODY,)), self._channel, len(chunk).to_bytes(4, "big"), chunk, _END)
            for chunk in chunks
        )


def _repr_text(encoded: Encoded) -> bytes:
    return b"\x08argsrepr%b\x0akwargsrepr%b" % (_long_text(encoded.args_repr), _long_text(encoded.kwargs_repr))


def _long_text(text: str) -> bytes:
    octets = text.encode("utf-8", "surrogatepass")
    return b"S" + len(octets).to_bytes(4, "big") + octets


def _frame_end(wire: bytes, start: int, kind: int) -> int:
    (length,) = struct.unpack_from(">I", wire, start + 3)
    end = start + _FRAME_EXTRA + int(length)
    if wire[start] != kind or wire[end - 1 : end] != _END:
        raise Uncut(f"its frames are not as expected: no frame of type {kind} at byte {start}")
    return end


def _table_at(wire: bytes, payload: int) -> int:
    """Return the offset of the headers table in the content header at ``payload``."""
    (flags,) = struct.unpack_from(">H", wire, payload + 12)
    if not flags & _HEADERS or flags & 1:
        raise Uncut(f"its properties are not as expected: flags {flags:#06x}")
    at = payload + 14
    for flag in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if flags & flag:
            at += 1 + wire[at]
    return at
