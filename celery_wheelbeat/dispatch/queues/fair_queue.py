"""A queue that serves the jobs in turn, so that a job with one waiting run does not wait for a thousand of another.

Each waiting run of a job belongs to a round of its own. The first one belongs to the round that is being taken, each
further one to the round after its predecessor's. Runs are taken round by round, within a round by fire time. While the
oldest run of a job waits, at most two runs of each other job are taken.

Rounds cost nothing while every run is taken at once: they are computed when runs remain. Then a run costs a sort by job
and a few merges, 0.2 µs in all: waiting runs are kept in blocks, the older ones several times longer than the younger.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.dispatch.pending import PendingRuns, joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.schedules.kinds import Int64s

SMALL = 1_000
"""Additions of fewer runs are joined with the next one, so that many small additions make few chunks."""
AT_ONCE = 100_000
"""Most runs that one take gives their rounds, so that it is short. Further ones wait for the next take."""
GROWTH = 4
"""An older block has more than this many times the runs of the next younger one, or they are merged."""


class _Block(NamedTuple):
    """Runs and their rounds, in the order of round and fire time."""

    runs: PendingRuns
    rounds: Int64s

    @classmethod
    def merged(cls, blocks: Sequence[_Block]) -> _Block:
        runs, rounds = joined([block.runs for block in blocks]), np.concatenate([block.rounds for block in blocks])
        return cls(runs, rounds).at(np.lexsort((runs.fire_ms, rounds)))

    def at(self, where: NDArray[np.bool_] | NDArray[np.intp] | slice) -> _Block:
        return _Block(self.runs.at(where), self.rounds[where])


class FairQueue:
    """Waiting runs in the order in which jobs are served in turn."""

    def __init__(self) -> None:
        self.count = 0
        self._returned = joined(())
        """Runs that were taken before; they come first."""
        self._added: deque[PendingRuns] = deque()
        """Runs that have no round yet, the runs of each job in the order of sending."""
        self._blocks: list[_Block] = []
        self._round = 0
        """The round that is being taken."""
        self._jobs: Int64s = np.empty(0, np.int64)
        """Sorted ids of the jobs whose last round is not over."""
        self._last: Int64s = np.empty(0, np.int64)
        """The last round of each of ``_jobs``."""

    def chunks(self) -> Iterator[PendingRuns]:
        """Yield all runs; those of one job in the order of sending."""
        yield self._returned
        for block in self._blocks:
            yield block.runs
        yield from self._added

    def append(self, pairs: PendingRuns) -> None:
        """Add runs, each behind the waiting ones of its job."""
        if not len(pairs.ids):
            return
        self.count += len(pairs.ids)
        if self._added and len(self._added[-1].ids) < SMALL:
            pairs = joined([self._added.pop(), pairs])
        self._added.append(pairs)

    def prepend(self, pairs: PendingRuns) -> None:
        """Add runs that were taken before, at the beginning."""
        self._returned = joined([pairs, self._returned]).by_fire_time()
        self.count += len(pairs.ids)

    def take(self, runs: int) -> PendingRuns:
        """Remove and return the first ``runs`` pairs (≤ ``count``)."""
        if not runs:
            return joined(())
        if runs == self.count:
            returned, self._returned = self._returned, joined(())
            return joined([returned, self.clear().by_fire_time()])
        first = self._returned.at(slice(runs))
        self._returned = self._returned.at(slice(runs, None))
        self.count -= runs
        return joined([first, self._next(runs - len(first.ids))])

    def clear(self) -> PendingRuns:
        """Remove all pairs and return them as one block, the runs of each job in the order of sending."""
        pairs = joined(self.chunks())
        self.count, self._returned, self._added, self._blocks = 0, joined(()), deque(), []
        self._round, self._jobs, self._last = 0, np.empty(0, np.int64), np.empty(0, np.int64)
        return pairs

    def remove(self, ids: Int64s) -> PendingRuns:
        """Remove and return the runs of these jobs."""
        gone = np.isin(self._returned.ids, ids)
        removed, self._returned = [self._returned.at(gone)], self._returned.at(~gone)
        blocks, self._blocks, added, self._added = self._blocks, [], self._added, deque()
        for block in blocks:
            gone = np.isin(block.runs.ids, ids)
            removed.append(block.runs.at(gone))
            if not gone.all():
                self._blocks.append(block.at(~gone))
        for runs in added:
            gone = np.isin(runs.ids, ids)
            removed.append(runs.at(gone))
            if not gone.all():
                self._added.append(runs.at(~gone))
        others = ~np.isin(self._jobs, ids)
        self._jobs, self._last = self._jobs[others], self._last[others]
        pairs = joined(removed)
        self.count -= len(pairs.ids)
        return pairs

    def _next(self, runs: int) -> PendingRuns:
        """Remove and return the first ``runs`` pairs of the rounds."""
        if not runs:
            return joined(())
        self._give_rounds(max(AT_ONCE, runs))
        heads = [block.at(slice(runs)) for block in self._blocks]
        whole = _Block(joined([head.runs for head in heads]), np.concatenate([head.rounds for head in heads]))
        if len(heads) > 1:
            order = np.lexsort((whole.runs.fire_ms, whole.rounds))[:runs]
            whole = whole.at(order)
            origin = np.repeat(np.arange(len(heads)), [len(head.rounds) for head in heads])[order]
        else:
            origin = np.zeros(runs, np.int64)
        taken = np.bincount(origin, minlength=len(heads)).tolist()
        left = [block.at(slice(n, None)) if n else block for block, n in zip(self._blocks, taken, strict=True)]
        self._blocks = [block for block in left if len(block.rounds)]
        self._round = int(whole.rounds[-1])
        return whole.runs

    def _give_rounds(self, most: int) -> None:
        """Give the first ``most`` of the added runs their rounds, and put them into a block."""
        if not self._added:
            return
        runs = self._pop_added(most)
        order = np.argsort(runs.ids)
        ids = runs.ids[order]
        if np.any(ids[1:] == ids[:-1]):
            order = np.argsort(runs.ids, kind="stable")  # the runs of a job stay in order; takes four times as long
        first = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
        jobs, counts = ids[first], np.diff(first, append=len(ids))
        begin = np.maximum(self._last_rounds(jobs) + 1, self._round)
        rounds = np.empty(len(ids), np.int64)
        rounds[order] = np.repeat(begin - first, counts) + np.arange(len(ids))
        self._note_last(jobs, begin + counts - 1)
        self._blocks.append(_Block.merged([_Block(runs, rounds)]))
        while len(self._blocks) > 1 and len(self._blocks[-2].rounds) <= GROWTH * len(self._blocks[-1].rounds):
            self._blocks[-2:] = [_Block.merged(self._blocks[-2:])]

    def _pop_added(self, most: int) -> PendingRuns:
        chunks: list[PendingRuns] = []
        while self._added and most:
            chunk = self._added.popleft()
            if len(chunk.ids) > most:
                self._added.appendleft(chunk.at(slice(most, None)))
                chunk = chunk.at(slice(most))
            chunks.append(chunk)
            most -= len(chunk.ids)
        return joined(chunks)

    def _last_rounds(self, jobs: Int64s) -> Int64s:
        """Return the last round of each job, or -1 if that is over."""
        if not len(self._jobs):
            return np.full(len(jobs), -1, np.int64)
        place = np.minimum(np.searchsorted(self._jobs, jobs), len(self._jobs) - 1)
        return np.where(self._jobs[place] == jobs, self._last[place], -1)

    def _note_last(self, jobs: Int64s, last: Int64s) -> None:
        others = (self._last >= self._round) & ~np.isin(self._jobs, jobs, assume_unique=True)
        ids = np.concatenate([self._jobs[others], jobs])
        order = np.argsort(ids, kind="stable")
        self._jobs, self._last = ids[order], np.concatenate([self._last[others], last])[order]
