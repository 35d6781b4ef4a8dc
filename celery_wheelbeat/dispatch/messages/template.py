"""Message templates: a message as constants and holes, from which many messages are rendered at once.

Pure. A template (``Skeleton``) is cut from a message that Celery made; filling the holes with the bytes that were cut
out restores the message. ``cut`` never guesses: a value that is not found as often as expected raises ``Uncut``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.dispatch.messages.byte_ranges import ByteRanges, column, pieces_at
from celery_wheelbeat.dispatch.messages.run_ids import repeated, rows_of, uuid_octets
from celery_wheelbeat.errors import WheelbeatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from celery_wheelbeat.dispatch.messages.run_ids import Octets
    from celery_wheelbeat.schedules.kinds import Int64s

    Column = ByteRanges | Octets | bytes
    """Filling of a hole: ranges of different lengths, rows of one width, or one value for all messages."""

FIRST_FIRE_MS = 10**12
LAST_FIRE_MS = 10**13 - 1
"""Fire times of 13 digits (2001 … 2286); others would change the length of a message."""


TEXT_LENGTH_BYTES = 4
LIFETIME_BYTES = 8


class Hole(Enum):
    """A value that differs from message to message."""

    ID = "id"
    NONCE = "nonce"
    TAG = "delivery tag"
    FIRE = "fire time"
    EXPIRES = "expiry"
    EXPIRATION = "time to live"
    LIFETIME = "job-specific expiry"
    """Not in a message: microseconds, from which ``EXPIRES`` or ``EXPIRATION`` is computed."""
    LENGTH = "length"
    """Length in front of a message, where it varies from run to run."""
    OPENING = "opening"
    """Lengths in front of a message; their width is fixed per skeleton."""
    BODY = "body"
    REPRS = "argument reprs"
    NAME = "name"
    INNER = "inner headers"
    """Length of a table that is nested in the headers."""
    TRACE = "trace id"
    SPAN = "span id"
    OTHER_TRACE = "trace id of a second observer"
    OTHER_SPAN = "span id of a second observer"
    CHANCE = "sampling chance"
    QUEUED_AT = "time of enqueuing"
    STARTED_AT = "time of start"


class Site(Enum):
    """Where a job-specific value is written in a message; only AMQP has more than one."""

    HEADERS = "headers"
    """AMQP: with four bytes of length."""
    PROPERTIES = "properties"
    """AMQP: behind the headers, with one byte of length."""
    METHOD = "method"
    """AMQP: the whole method frame, which contains the routing key."""


class TextHole(NamedTuple):
    """The hole of a job-specific value. One value may be written at two sites."""

    option: str
    site: Site = Site.HEADERS

    @property
    def value(self) -> str:
        """The name of the hole in error messages."""
        return f"option {self.option}"


class Uncut(WheelbeatError):
    """A message of Celery's that cannot become a skeleton; the text names the reason."""


class Unsendable(WheelbeatError):
    """A job-specific value fits into no message that a broker takes, whether Celery or the fast lane writes it."""


class MarkedValue(NamedTuple):
    """A value in a rendered message; each of its occurrences becomes a hole."""

    hole: Hole | TextHole
    value: bytes
    times: int | None = 1
    """Expected number of occurrences. None: any number, at least one."""
    start: int = 0
    """Where the search begins."""
    stop: int | None = None
    """Where the search ends; None: at the end of the message."""


class Pieces(NamedTuple):
    """The job-specific parts of a message; the same in every run until the job or the skeleton changes."""

    opening: bytes
    """Starts with the length of each text in ``name``, ``TEXT_LENGTH_BYTES`` little-endian bytes each; then come the
    ``LIFETIME_BYTES`` of a job-specific expiry."""
    body: bytes
    reprs: bytes
    name: bytes
    """The headers up to the name, and behind them the job-specific texts."""


@dataclass(frozen=True)
class Skeleton:
    """A message with holes: ``constants[0] holes[0] constants[1] … constants[-1]``."""

    constants: tuple[bytes, ...]
    holes: tuple[Hole | TextHole, ...]

    @property
    def constant_length(self) -> int:
        """Number of bytes outside the holes."""
        return sum(map(len, self.constants))

    def render(self, columns: Mapping[Hole | TextHole, Column]) -> Messages:
        """Return one message per element of the columns; at least one column is not ``bytes``."""
        count = next(_count(columns[hole]) for hole in self.holes if not isinstance(columns[hole], bytes))
        stretches: list[ByteRanges | Octets] = []
        side_by_side: list[bytes | Octets] = [self.constants[0]]
        for hole, constant in zip(self.holes, self.constants[1:], strict=True):
            filling = columns[hole]
            if isinstance(filling, ByteRanges):
                stretches += [_rows(side_by_side, count), filling]
                side_by_side = [constant]
            else:
                side_by_side += [filling, constant]
        stretches.append(_rows(side_by_side, count))
        lengths = np.zeros(count, np.int64)
        for stretch in stretches:
            lengths += stretch.length if isinstance(stretch, ByteRanges) else stretch.shape[1]
        ends = lengths.cumsum()
        octets = np.empty(int(ends[-1]), np.uint8)
        at = ends - lengths
        for stretch in stretches:
            if isinstance(stretch, ByteRanges):
                stretch.copy_to(octets, at)
                at += stretch.length
            elif width := stretch.shape[1]:
                pieces_at(octets, width)[at] = column(stretch, 0, width)
                at += width
        return Messages(octets, ends)


class Messages(NamedTuple):
    """Finished messages, one after the other in one buffer."""

    octets: Octets
    """One dimension."""
    ends: Int64s
    """End of each message in ``octets``."""

    def part(self, where: slice) -> memoryview:
        """Return the bytes of messages ``where.start`` … ``where.stop`` - 1 (at least one) without a copy."""
        begin = int(self.ends[where.start - 1]) if where.start else 0
        return self.octets[begin : int(self.ends[where.stop - 1])].data


def _count(filling: ByteRanges | Octets | bytes) -> int:
    return len(filling.length if isinstance(filling, ByteRanges) else filling)


def _rows(side_by_side: Sequence[bytes | Octets], count: int) -> Octets:
    """Concatenate fixed-width parts into ``count`` rows; one row if all parts are constant."""
    template = b"".join(one if isinstance(one, bytes) else bytes(one.shape[1]) for one in side_by_side)
    same = np.frombuffer(template, np.uint8).reshape(1, -1)
    if not template or all(isinstance(one, bytes) for one in side_by_side):
        return same
    rows = np.empty((count, len(template)), np.uint8)
    column(rows, 0, len(template))[:] = column(same, 0, len(template))
    at = 0
    for one in side_by_side:
        width = len(one) if isinstance(one, bytes) else one.shape[1]
        if not isinstance(one, bytes) and width:
            column(rows, at, width)[:] = column(np.ascontiguousarray(one), 0, width)
        at += width
    return rows


def cut(message: bytes, marks: Iterable[MarkedValue]) -> Skeleton:
    """Cut the occurrences of ``marks`` out of ``message``; raises ``Uncut`` if a count is not as expected."""
    places: list[tuple[int, int, Hole | TextHole]] = []
    for hole, value, times, start, stop in marks:
        found = _places(message, value, start, stop)
        if len(found) != (times or max(1, len(found))):
            raise Uncut(f"its {hole.value} is found {len(found)} times in the message, expected {times or 'some'}")
        places += [(at, at + len(value), hole) for at in found]
    places.sort(key=lambda place: place[:2])
    bounds = [(0, 0), *((start, end) for start, end, _ in places), (len(message), len(message))]
    if any(first[1] > second[0] for first, second in pairwise(bounds)):
        raise Uncut("two of its varying values overlap")
    constants = tuple(message[first[1] : second[0]] for first, second in pairwise(bounds))
    return Skeleton(constants, tuple(hole for _, _, hole in places))


def _places(message: bytes, value: bytes, start: int, stop: int | None) -> list[int]:
    found = []
    at = message.find(value, start, stop)
    while at >= 0:
        found.append(at)
        at = message.find(value, at + len(value), stop)
    return found


def nonces(entropy: bytes) -> Octets:
    """Return 32 hex digits for each 16 bytes of ``entropy``, n × 32."""
    return np.frombuffer(entropy.hex().encode(), np.uint8).reshape(-1, 32)


def delivery_tags(entropy: bytes) -> Octets:
    """Return a random UUID (RFC 9562, version 4) as text for each 16 bytes of ``entropy``, n × 36."""
    return uuid_octets(np.frombuffer(entropy, np.uint8).reshape(-1, 16).copy(), version=4)


def fire_texts(fire_ms: Int64s, lead: bytes = b"") -> Octets:
    """Return ``lead`` and the fire time (13 decimal digits), one row per value."""
    return _spread(fire_ms, lambda value: b"%b%d" % (lead, value))


def fire_octets(fire_ms: Int64s, lead: bytes = b"") -> Octets:
    """Return ``lead`` and the fire time as eight big-endian bytes, one row per value."""
    return _spread(fire_ms, lambda value: lead + value.to_bytes(8, "big", signed=True))


def _spread(values: Int64s, write: Callable[[int], bytes]) -> Octets:
    """Return ``write`` of each value as rows; called once per stretch of equal values. All results have one length."""
    distinct, times = repeated(values)
    written = rows_of([write(value) for value in distinct.tolist()])
    width = written.shape[1]
    return np.repeat(column(written, 0, width), times).view(np.uint8).reshape(-1, width)
