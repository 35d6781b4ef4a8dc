"""Pairs of job and fire time: what is kept of a run while it waits, 20 bytes each, in columns.

Values and a queue of them; who counts what is the backlog's business.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.schedules.kinds import Int64s

REOFFERED = 1
STEP_SHIFT = 1
SMALL_CHUNK = 1_000
"""Pairs; what comes behind a chunk of fewer is joined to it, so that many small additions stay few chunks."""


class Pair(NamedTuple):
    """One pending run."""

    job_id: int
    fire_ms: int
    tag: int = 0

    @property
    def reoffered(self) -> bool:
        """Whether it may have been sent before the restart; then it stands outside the accounting sum."""
        return bool(self.tag & REOFFERED)

    @property
    def step(self) -> int:
        """Number of the clock step that brought this fire time back; 0 = lived through once."""
        return self.tag >> STEP_SHIFT


class Pairs(NamedTuple):
    """Pairs as columns of equal length."""

    ids: Int64s
    fire_ms: Int64s
    tag: NDArray[np.int32]

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Pairs:
        """Turn single pairs (at least one) into columns."""
        ids, fires_ms, tags = zip(*pairs, strict=True)
        return cls(np.array(ids, np.int64), np.array(fires_ms, np.int64), np.array(tags, np.int32))

    def singly(self) -> Iterator[Pair]:
        """Yield pair after pair."""
        return map(Pair._make, zip(self.ids.tolist(), self.fire_ms.tolist(), self.tag.tolist(), strict=True))

    def at(self, where: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Pairs:
        """Return the pairs at ``where``."""
        return Pairs(self.ids[where], self.fire_ms[where], self.tag[where])

    def accounted(self) -> int:
        """How many of them are part of the sum."""
        return len(self.ids) - int(np.count_nonzero(self.tag & REOFFERED))


def joined(chunks: Sequence[Pairs]) -> Pairs:
    """Return ``chunks`` as one, in their order."""
    if len(chunks) == 1:
        return chunks[0]
    if not chunks:
        return Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
    return Pairs(*(np.concatenate(column) for column in zip(*chunks, strict=True)))


class PairQueue:
    """Pairs in order of arrival, cut and joined without copying long chunks that do not move."""

    def __init__(self) -> None:
        self.chunks: deque[Pairs] = deque()
        self.count = 0

    def append(self, pairs: Pairs) -> None:
        """Add ``pairs`` at the end."""
        if not len(pairs.ids):
            return
        self.count += len(pairs.ids)
        if self.chunks and len(self.chunks[-1].ids) < SMALL_CHUNK:
            pairs = joined([self.chunks.pop(), pairs])
        self.chunks.append(pairs)

    def prepend(self, pairs: Pairs) -> None:
        """Add ``pairs`` at the beginning."""
        if len(pairs.ids):
            self.chunks.appendleft(pairs)
            self.count += len(pairs.ids)

    def take(self, runs: int) -> list[Pairs]:
        """Remove the first ``runs`` pairs (≤ ``count``)."""
        taken = []
        self.count -= runs
        while runs:
            head = self.chunks.popleft()
            if len(head.ids) > runs:
                self.chunks.appendleft(head.at(slice(runs, None)))
                head = head.at(slice(None, runs))
            taken.append(head)
            runs -= len(head.ids)
        return taken

    def clear(self) -> Pairs:
        """Remove all pairs and return them as one block."""
        pairs = joined(self.chunks)
        self.chunks.clear()
        self.count = 0
        return pairs
