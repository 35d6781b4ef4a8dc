"""Values exchanged by the fast lane and its publisher: batches, outcomes, answers; and how batches are made.

A batch is immutable and belongs to the publisher until its outcome has been polled.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from celery_wheelbeat.dispatch.messages.envelope import Answer, Stamps
from celery_wheelbeat.dispatch.messages.expiry import left_us
from celery_wheelbeat.dispatch.messages.template import Hole, delivery_tags, nonces
from celery_wheelbeat.dispatch.messages.tracing import new_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch import FailureKind
    from celery_wheelbeat.dispatch.fast_lane.envelope_registry import Declaring, Placed
    from celery_wheelbeat.dispatch.messages.envelope import Envelope
    from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments
    from celery_wheelbeat.dispatch.messages.part_cache import PartColumns
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.dispatch.messages.run_ids import Octets
    from celery_wheelbeat.dispatch.messages.template import Messages
    from celery_wheelbeat.schedules.kinds import Int64s

NONCE_LENGTH = 32


class Parcel(NamedTuple):
    """Consecutive messages for one place."""

    key: bytes
    """Redis: the list. AMQP: the exchange, which is also part of each message."""
    size: int
    """Number of messages."""
    data: memoryview
    """Bytes of the messages; parcels of several batches may share one buffer."""


class Batch(NamedTuple):
    """Messages that are sent and settled together. Positions count through all parcels."""

    token: int
    parcels: Sequence[Parcel]
    nonces: bytes
    """32 hex digits per message; identify a returned message."""
    epoch: int
    """Number of the connection on which its envelopes were made."""

    @property
    def size(self) -> int:
        """Number of messages."""
        return len(self.nonces) // NONCE_LENGTH


class Failure(NamedTuple):
    """Messages of a batch that were not confirmed, all for one reason."""

    positions: Sequence[int]
    kind: FailureKind
    reason: str


class Outcome(NamedTuple):
    """Outcome of a batch: every message that is in no failure is confirmed."""

    token: int
    at_ms: int
    failures: Sequence[Failure] = ()


class FormVerdict(NamedTuple):
    """The answer to ``FastPublisher.ask``."""

    form: Form
    epoch: int
    answer: Answer
    asked_in: int = 0
    """Number of the round, as passed with the question."""


class QueueVerdict(NamedTuple):
    """The answer to ``FastPublisher.declare``."""

    question: Declaring
    reasons: Mapping[str, str]
    """Queue → why it is not declared; empty if it is."""


class Comparison(NamedTuple):
    """The answer to ``FastPublisher.compare``."""

    form: Form
    epoch: int
    difference: str
    """How Celery's current rendering differs; empty if it does not."""


class Wire(Protocol):
    """One broker connection. Only the publisher's thread calls it; any exception means that the connection is lost."""

    blocked: str
    """Reason that the broker gave for accepting nothing at the moment; empty if it accepts."""
    on_wait: Callable[[], None]
    """Called repeatedly during a long call; an exception from it ends the call."""

    def connect(self) -> None:
        """Open a new connection."""

    def close(self, *, broken: bool) -> None:
        """Close the connection, fully or partly open; a ``broken`` one only on our side."""

    def send(self, batch: Batch) -> None:
        """Write ``batch``."""

    def receive(self, batches: Collection[Batch], timeout_s: float) -> Sequence[Outcome]:
        """Wait up to ``timeout_s`` for outcomes of ``batches``, which were sent in that order on this connection.

        Also keeps the connection alive.
        """

    def settle(self, batches: Sequence[Batch], reason: str) -> Sequence[Outcome]:
        """On a new connection, return the outcome of each of ``batches``, which were sent on the lost one."""

    def make(self, form: Form, candidates: Sequence[Arguments]) -> Answer:
        """Make the envelope of ``form`` on this connection."""

    def declare(self, queue: str) -> str:
        """Declare a plain queue; returns why that is not possible, or an empty text."""

    def compare(self, envelope: Envelope, form: Form, arguments: Arguments) -> str:
        """Return how messages of ``envelope`` differ from Celery's current rendering; empty if they do not."""


class Load(NamedTuple):
    """Runs whose messages share one envelope, as columns."""

    envelope: Envelope
    columns: PartColumns
    ids: Octets
    """Run ids, 36 octets each."""
    fire_ms: Int64s

    def split_expired(self, now: datetime) -> tuple[Load, NDArray[np.bool_] | None]:
        """Return the runs that have not expired, and a mask of those that have; None if there are none."""
        if not self.envelope.dated:
            return self, None
        found = self.columns.by_hole(self.envelope.texts, timed=True)[Hole.LIFETIME]
        expired = left_us(now, found) <= 0  # type: ignore[arg-type]
        if not expired.any():
            return self, None
        stay = ~expired
        return Load(self.envelope, self.columns.at(stay), self.ids[stay], self.fire_ms[stay]), expired


class Made(NamedTuple):
    """The messages of one load."""

    key: bytes
    """Key of the parcels in which they are sent."""
    messages: Messages
    nonces: Octets
    """32 hex digits each."""


class Draft:
    """A batch under construction."""

    def __init__(self) -> None:
        self.parcels: list[Parcel] = []
        self.positions: list[NDArray[np.intp]] = []
        """Positions of the runs among those that were to be submitted, in the order of the messages."""
        self._nonces: list[bytes] = []

    def add(self, made: Made, where: slice, positions: NDArray[np.intp], key: bytes | None = None) -> None:
        """Append the messages at ``where`` (at least one), which are of the runs at ``positions``.

        ``key``: of their place, if it is not that of the envelope.
        """
        self.parcels.append(
            Parcel(made.key if key is None else key, where.stop - where.start, made.messages.part(where))
        )
        self.positions.append(positions)
        self._nonces.append(made.nonces[where].tobytes())

    def batch(self, token: int, epoch: int) -> Batch:
        """Return the finished batch."""
        return Batch(token, self.parcels, b"".join(self._nonces), epoch)


def make(load: Load, now: datetime) -> Made:
    """Render the messages of ``load``, each with a fresh random nonce and delivery tag."""
    envelope, size = load.envelope, len(load.ids)
    entropy = os.urandom(16 * size)  # nonce and tag of a message may share their random bytes
    fresh = nonces(entropy)
    tags = delivery_tags(entropy) if Hole.TAG in envelope.skeleton.holes else b""
    traces = None
    if envelope.observed:
        traces = new_traces(load.ids, fresh, os.urandom(4 * size), now.timestamp())
    stamps = Stamps(load.ids, load.fire_ms, fresh, tags, now, traces)
    return Made(
        envelope.key, envelope.render(load.columns.by_hole(envelope.texts, timed=envelope.has_expiries), stamps), fresh
    )


def in_order(positions: NDArray[np.intp], ends: Sequence[int], placed: Placed | None) -> NDArray[np.intp]:
    """Return ``positions``, which ascend, ordered by block and then by place; ``ends``: see ``block_ends``."""
    if placed is None:
        return positions
    return positions[np.lexsort((placed.at[positions], np.searchsorted(ends, positions, side="right")))]


def stretches(
    positions: NDArray[np.intp], ends: Sequence[int], placed: Placed | None
) -> Iterator[tuple[int, slice, bytes | None]]:
    """Yield (block, slice of ``positions``, key) for the messages of each block and place; None: one key for all.

    ``positions``: some of those that ``in_order`` returned, at least one.
    """
    if placed is None:
        bounds = [0, *np.searchsorted(positions, ends).tolist()]
        yield from ((at, slice(*pair), None) for at, pair in enumerate(pairwise(bounds)) if pair[0] < pair[1])
        return
    blocks, places = np.searchsorted(ends, positions, side="right"), placed.at[positions]
    changes = np.flatnonzero((np.diff(blocks) != 0) | (np.diff(places) != 0)) + 1
    for start, stop in pairwise([0, *changes.tolist(), len(positions)]):
        yield int(blocks[start]), slice(start, stop), placed.keys[places[start]]


BLOCK_BYTES = 1 << 20
"""Most bytes of job-specific parts in one block; with the shared constants, its messages have about twice that."""


def block_ends(sizes: Int64s, most_runs: int) -> list[int]:
    """Return where blocks of consecutive runs end: each has at most ``most_runs`` runs, and ``BLOCK_BYTES`` bytes.

    ``sizes``: bytes of each run; a larger run has a block of its own.
    """
    ends: list[int] = []
    for start in range(0, len(sizes), most_runs):
        part = sizes[start : start + most_runs]
        ends += [start + cut for cut in _cuts(part)]
        ends.append(start + len(part))
    return ends


def _cuts(sizes: Int64s) -> list[int]:
    """Return ascending cut positions, so that each part has at most ``BLOCK_BYTES`` or is a single run."""
    if sizes.sum() <= BLOCK_BYTES:
        return []
    cuts = []
    together = 0
    for position, size in enumerate(sizes.tolist()):
        if together and together + size > BLOCK_BYTES:
            cuts.append(position)
            together = 0
        together += size
    return cuts
