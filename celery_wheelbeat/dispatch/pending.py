"""Pending runs as (job, fire time, tag) columns of 20 bytes per run, and a queue of them.

Values only; the backlog does the accounting.
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
"""A chunk of fewer pairs is merged with the next addition, so that many small additions make few chunks."""


class PendingRun(NamedTuple):
    """One pending run."""

    job_id: int
    fire_ms: int
    tag: int = 0

    @property
    def reoffered(self) -> bool:
        """Whether it may have been sent before the restart; reoffered runs are outside the accounting sum."""
        return bool(self.tag & REOFFERED)

    @property
    def step(self) -> int:
        """Number of the backward clock step that repeated this fire time; 0 = first time."""
        return self.tag >> STEP_SHIFT


class PendingRuns(NamedTuple):
    """Pairs as columns of equal length."""

    ids: Int64s
    fire_ms: Int64s
    tag: NDArray[np.int32]

    @classmethod
    def of(cls, pairs: Sequence[PendingRun]) -> PendingRuns:
        """Turn single pairs (at least one) into columns."""
        ids, fires_ms, tags = zip(*pairs, strict=True)
        return cls(np.array(ids, np.int64), np.array(fires_ms, np.int64), np.array(tags, np.int32))

    def singly(self) -> Iterator[PendingRun]:
        """Yield pair after pair."""
        return map(PendingRun._make, zip(self.ids.tolist(), self.fire_ms.tolist(), self.tag.tolist(), strict=True))

    def at(self, where: NDArray[np.bool_] | NDArray[np.intp] | slice) -> PendingRuns:
        """Return the pairs at ``where``."""
        return PendingRuns(self.ids[where], self.fire_ms[where], self.tag[where])

    def accounted(self) -> int:
        """Return the number of pairs in the accounting sum: all but the reoffered ones."""
        return len(self.ids) - int(np.count_nonzero(self.tag & REOFFERED))


def joined(chunks: Sequence[PendingRuns]) -> PendingRuns:
    """Return ``chunks`` concatenated."""
    if len(chunks) == 1:
        return chunks[0]
    if not chunks:
        return PendingRuns(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
    return PendingRuns(*(np.concatenate(column) for column in zip(*chunks, strict=True)))


class PendingQueue:
    """A queue of pairs in chunks; long chunks are sliced, not copied."""

    def __init__(self) -> None:
        self.chunks: deque[PendingRuns] = deque()
        self.count = 0

    def append(self, pairs: PendingRuns) -> None:
        """Add ``pairs`` at the end."""
        if not len(pairs.ids):
            return
        self.count += len(pairs.ids)
        if self.chunks and len(self.chunks[-1].ids) < SMALL_CHUNK:
            pairs = joined([self.chunks.pop(), pairs])
        self.chunks.append(pairs)

    def prepend(self, pairs: PendingRuns) -> None:
        """Add ``pairs`` at the beginning."""
        if len(pairs.ids):
            self.chunks.appendleft(pairs)
            self.count += len(pairs.ids)

    def take(self, runs: int) -> list[PendingRuns]:
        """Remove and return the first ``runs`` pairs (≤ ``count``)."""
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

    def clear(self) -> PendingRuns:
        """Remove all pairs and return them as one block."""
        pairs = joined(self.chunks)
        self.chunks.clear()
        self.count = 0
        return pairs
