"""What the scheduling thread and the sender of a fast lane hand to each other: batches of finished messages, outcomes.

Values only. A batch is immutable and belongs to the sender until its outcome has been polled.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from celery_wheelbeat.dispatch.messages.envelope import Answer, Stamps
from celery_wheelbeat.dispatch.messages.template import Hole, delivery_tags, nonces
from celery_wheelbeat.dispatch.messages.tracing import new_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch import FailureKind
    from celery_wheelbeat.dispatch.backlog import Backlog
    from celery_wheelbeat.dispatch.messages.envelope import Envelope
    from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments
    from celery_wheelbeat.dispatch.messages.part_cache import Columns
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.dispatch.messages.run_ids import Octets
    from celery_wheelbeat.dispatch.messages.template import Messages
    from celery_wheelbeat.dispatch.pending import Pairs
    from celery_wheelbeat.schedules.kinds import Int64s

NONCE_LENGTH = 32


class Parcel(NamedTuple):
    """Messages that go to one place, one after the other."""

    key: bytes
    """Redis: the list; AMQP: the exchange, which the messages say themselves."""
    size: int
    """How many."""
    data: memoryview
    """Octets; parcels of several batches may share their memory."""


class Batch(NamedTuple):
    """Messages that are sent, and settled, together. Positions count through all parcels."""

    token: int
    parcels: Sequence[Parcel]
    nonces: bytes
    """32 hex digits per message, by which a returned one is recognised."""
    epoch: int
    """Number of the connection that its envelopes were made on."""

    @property
    def size(self) -> int:
        """Messages in it."""
        return len(self.nonces) // NONCE_LENGTH


class Failure(NamedTuple):
    """Messages of a batch that were not confirmed, for one reason."""

    positions: Sequence[int]
    kind: FailureKind
    reason: str


class Outcome(NamedTuple):
    """What became of a batch: every message that no failure names is confirmed."""

    token: int
    at_ms: int
    failures: Sequence[Failure] = ()


class Verdict(NamedTuple):
    """The answer to ``Sender.ask``."""

    form: Form
    epoch: int
    answer: Answer
    asked_in: int = 0
    """What was given with the question."""


class Comparison(NamedTuple):
    """The answer to ``Sender.compare``."""

    form: Form
    epoch: int
    difference: str
    """What Celery renders otherwise now; empty where nothing differs."""


class Wire(Protocol):
    """One broker connection. Called by the sender's thread only; what it raises means that the connection is lost."""

    blocked: str
    """Why the broker takes nothing at the moment, as it said itself; empty where it does."""
    on_wait: Callable[[], None]
    """Called now and then while a call takes long; what it raises ends the call."""

    def connect(self) -> None:
        """Open a new connection."""

    def close(self, *, broken: bool) -> None:
        """Close what there is of it; of a ``broken`` one only our side."""

    def send(self, batch: Batch) -> None:
        """Write ``batch``."""

    def receive(self, timeout_s: float) -> Sequence[Outcome]:
        """Wait up to ``timeout_s`` for news about batches that were sent; also keeps the connection alive."""

    def settle(self, batches: Sequence[Batch], reason: str) -> Sequence[Outcome]:
        """On a new connection: say what became of ``batches`` that were sent on the lost one, all of them."""

    def make(self, form: Form, candidates: Sequence[Arguments]) -> Answer:
        """Make the envelope of ``form`` on this connection."""

    def compare(self, envelope: Envelope, form: Form, arguments: Arguments) -> str:
        """Return how the messages of ``envelope`` differ from what Celery renders now; empty where they do not."""


class Load(NamedTuple):
    """Runs whose messages have one envelope."""

    envelope: Envelope
    columns: Columns
    ids: Octets
    """Run ids, 36 octets each."""
    fire_ms: Int64s


class Made(NamedTuple):
    """The messages of one load."""

    key: bytes
    """Of the parcels that they are sent in."""
    messages: Messages
    nonces: Octets
    """32 hex digits each."""


class Draft:
    """A batch that is being put together."""

    def __init__(self) -> None:
        self.parcels: list[Parcel] = []
        self._nonces: list[bytes] = []

    def add(self, made: Made, where: slice) -> None:
        """Append some (at least one) of the messages that were made."""
        self.parcels.append(Parcel(made.key, where.stop - where.start, made.messages.part(where)))
        self._nonces.append(made.nonces[where].tobytes())

    def batch(self, token: int, epoch: int) -> Batch:
        """Return what was put together."""
        return Batch(token, self.parcels, b"".join(self._nonces), epoch)


def make(load: Load, now: datetime) -> Made:
    """Return the messages of ``load``, each with a nonce and a delivery tag that never existed before."""
    envelope, size = load.envelope, len(load.ids)
    entropy = os.urandom(16 * size)  # nonce and tag of a message may be the same number
    fresh = nonces(entropy)
    tags = delivery_tags(entropy) if Hole.TAG in envelope.skeleton.holes else b""
    traces = None
    if envelope.observed:
        traces = new_traces(load.ids, fresh, os.urandom(4 * size), now.timestamp())
    stamps = Stamps(load.ids, load.fire_ms, fresh, tags, now, traces)
    return Made(envelope.key, envelope.render(load.columns.by_hole(), stamps), fresh)


def make_batch(token: int, epoch: int, loads: Sequence[Load], now: datetime) -> Batch:
    """Return the batch of ``loads``."""
    draft = Draft()
    for load in loads:
        draft.add(make(load, now), slice(0, len(load.ids)))
    return draft.batch(token, epoch)


BLOCK_BYTES = 1 << 20
"""Most of what the jobs' own pieces of a block have; with what all messages have in common, a block has about twice
that."""


class Block(NamedTuple):
    """Pairs that are sent together."""

    token: int
    """Of the backlog."""
    pairs: Pairs


class Layout:
    """Which runs of several blocks, in columns one block behind the other, belong to which of them."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        self._ends = np.cumsum([len(block.pairs.ids) for block in blocks])

    def parts(self, positions: NDArray[np.intp]) -> Iterator[tuple[int, slice, NDArray[np.intp]]]:
        """Yield each block that has some of ``positions`` (ascending): its number, which of them, where in it."""
        begin = start = 0
        for number, (end, stop) in enumerate(
            zip(self._ends.tolist(), np.searchsorted(positions, self._ends).tolist(), strict=True)
        ):
            if stop > start:
                yield number, slice(start, stop), positions[start:stop] - begin
            begin, start = end, stop


class Blocks:
    """See the module. Owned by the scheduling thread."""

    def __init__(self, backlog: Backlog, runs: int) -> None:
        """``runs``: most of one block."""
        self._backlog = backlog
        self._runs = runs
        self._rest: deque[Block] = deque()

    def count(self, most: int) -> int:
        """Return how many blocks ``take`` would find, up to ``most``."""
        return min(most, len(self._rest) or -(-self._backlog.waiting // self._runs))

    def take(self, count: int) -> list[Block]:
        """Return the next ``count`` blocks, no more than ``Blocks.count`` says."""
        if self._rest:
            return [self._rest.popleft() for _ in range(count)]
        return [Block(*self._backlog.take_block(self._runs)) for _ in range(count)]

    def fit(self, blocks: Sequence[Block], sizes: Int64s, room: int) -> list[Block]:
        """Cut ``blocks`` where they have too many bytes, and return the first ``room``; the others are kept.

        ``sizes``: bytes of each run, through all blocks.
        """
        fitting: list[Block] = []
        start = 0
        for block in blocks:
            stop = start + len(block.pairs.ids)
            fitting += self._cut(block, sizes[start:stop])
            start = stop
        self._rest.extendleft(reversed(fitting[room:]))
        return fitting[:room]

    def _cut(self, block: Block, sizes: Int64s) -> list[Block]:
        pieces = []
        for at in reversed(_cuts(sizes)):
            token = self._backlog.cut(block.token, at)
            pieces.append(Block(token, block.pairs.at(slice(at, None))))
            block = block._replace(pairs=block.pairs.at(slice(at)))
        return [block, *reversed(pieces)]


def _cuts(sizes: Int64s) -> list[int]:
    """Return the positions at which something new begins, so that nothing in between is too large unless it is one."""
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
