"""What a follower keeps: the runs that it would have sent, until the mark of their owner has passed them.

Invariant: the kept runs and the stretches that were not followed cover every fire time of a followed shard from the
mark of its owner to the cursor. Pairs, not definitions: a run that is taken is sent by the definition of that time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.jobs.definitions import DueBatch
    from celery_wheelbeat.schedules.kinds import Int64s


class KeptRuns(NamedTuple):
    """Runs as columns of equal length."""

    ids: Int64s
    fire_ms: Int64s
    step: NDArray[np.int32]
    """Number of the backward step of the clock that repeated the fire time; 0 = none."""

    def at(self, where: NDArray[np.bool_] | NDArray[np.intp]) -> KeptRuns:
        """Return the runs at ``where``."""
        return KeptRuns(self.ids[where], self.fire_ms[where], self.step[where])


class Stretch(NamedTuple):
    """Time (``after_ms``, ``until_ms``] of one shard whose fire times are not kept."""

    shard: int
    after_ms: int
    until_ms: int


class TakenRuns(NamedTuple):
    """What a beat that takes shards has to send."""

    runs: KeptRuns
    """Ascending by fire time."""
    stretches: Sequence[Stretch]
    """Settled by misfire policy."""


class Followed:
    """The runs that this process follows. ``shards``: a power of two; ``limit``: the most runs that are kept."""

    def __init__(self, shards: int, limit: int) -> None:
        self._limit = limit
        self._owner_bits = shards - 1
        self._chunks: list[KeptRuns] = []
        self._count = 0
        self._after_ms = np.full(shards, NEVER_MS)
        self._until_ms = np.full(shards, ALWAYS_MS)
        """By shard: the stretch that was not followed; empty if it ends before it begins."""
        self._apart_ids: Int64s = np.empty(0, np.int64)
        self._apart_ms: Int64s = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self._count

    def keep(self, due: Iterable[DueBatch]) -> None:
        """Keep due runs of followed shards."""
        for batch in due:
            self.keep_runs(KeptRuns(batch.ids, batch.fire_ms, np.full(len(batch), batch.step, np.int32)))

    def keep_runs(self, runs: KeptRuns) -> None:
        """Keep runs that this process gives away unsent."""
        self._chunks.append(runs)
        self._count += len(runs.ids)

    def miss(self, where: NDArray[np.bool_], after_ms: int, until_ms: int) -> None:
        """Note that the shards at ``where`` were not followed in (``after_ms``, ``until_ms``]."""
        self._after_ms[where] = np.minimum(self._after_ms[where], after_ms)
        self._until_ms[where] = np.maximum(self._until_ms[where], until_ms)
        runs = self._joined()
        shards = runs.ids & self._owner_bits
        inside = where[shards] & (runs.fire_ms > self._after_ms[shards]) & (runs.fire_ms <= self._until_ms[shards])
        self._replace(runs.at(~inside))

    def set_apart(self, marks_ms: Mapping[int, int]) -> None:
        """Set the jobs with a mark of their own (job id → ms): the owners of their shards do not know them."""
        self._apart_ids = np.array(sorted(marks_ms), np.int64)
        self._apart_ms = np.array([marks_ms[job_id] for job_id in sorted(marks_ms)], np.int64)

    def take_jobs(self, ids: Int64s) -> KeptRuns:
        """Remove the runs of these jobs and return those after their own marks, ascending by fire time."""
        runs = self._joined()
        mine = np.isin(runs.ids, ids)
        self._replace(runs.at(~mine))
        runs = runs.at(mine)
        runs = runs.at(runs.fire_ms > self._floor(runs.ids, np.full(len(self._after_ms), ALWAYS_MS)))
        return runs.at(np.argsort(runs.fire_ms, kind="stable"))

    def _floor(self, ids: Int64s, marks_ms: Int64s) -> Int64s:
        """Return the mark of each job: its own one, or that of its shard."""
        floor_ms: Int64s = marks_ms[ids & self._owner_bits]
        if len(self._apart_ids):
            place = np.minimum(np.searchsorted(self._apart_ids, ids), len(self._apart_ids) - 1)
            floor_ms = np.where(self._apart_ids[place] == ids, self._apart_ms[place], floor_ms)
        return floor_ms

    def trim(self, marks_ms: Int64s) -> KeptRuns:
        """Forget what the owners' marks have passed; then the oldest beyond the limit, which are returned.

        ``marks_ms``: by shard. The stretch of the returned runs counts as not followed.
        """
        runs = self._joined()
        runs = runs.at(runs.fire_ms > self._floor(runs.ids, marks_ms))
        excess = len(runs.ids) - self._limit
        if excess <= 0:
            self._replace(runs)
            return runs.at(np.empty(0, np.intp))
        until_ms = int(np.partition(runs.fire_ms, excess - 1)[excess - 1])
        gone = runs.fire_ms <= until_ms
        self._replace(runs.at(~gone))
        self.miss(np.ones(len(marks_ms), np.bool_), ALWAYS_MS, until_ms)
        return runs.at(gone)

    def take(self, where: NDArray[np.bool_], floor_ms: Int64s, settled_ms: int) -> TakenRuns:
        """Remove the runs of the shards at ``where`` and return those after ``floor_ms`` (by shard, a mark).

        If a run up to ``settled_ms`` is among them, the shard's time up to there is settled by policy, as after a stall
        that is too long to be replayed.
        """
        runs = self._joined()
        shards = runs.ids & self._owner_bits
        mine, late = where[shards], runs.fire_ms > self._floor(runs.ids, floor_ms)
        self._replace(runs.at(~mine))
        runs = runs.at(np.flatnonzero(mine & late))
        after_ms = np.maximum(self._after_ms, floor_ms)
        until_ms = self._until_ms.copy()
        self._after_ms[where], self._until_ms[where] = NEVER_MS, ALWAYS_MS
        old = np.unique(runs.ids[runs.fire_ms <= settled_ms] & self._owner_bits)
        after_ms[old], until_ms[old] = floor_ms[old], np.maximum(until_ms[old], settled_ms)
        shards = runs.ids & self._owner_bits
        runs = runs.at((runs.fire_ms <= after_ms[shards]) | (runs.fire_ms > until_ms[shards]))
        stretches = [
            Stretch(shard, int(after_ms[shard]), int(until_ms[shard]))
            for shard in np.flatnonzero(where & (after_ms < until_ms)).tolist()
        ]
        return TakenRuns(runs.at(np.argsort(runs.fire_ms, kind="stable")), stretches)

    def holds(self, ids: Int64s) -> NDArray[np.bool_]:
        """Return which of the jobs have a kept run."""
        return np.isin(ids, self._joined().ids)

    def _joined(self) -> KeptRuns:
        if len(self._chunks) != 1:
            self._replace(
                KeptRuns(*(np.concatenate(column) for column in zip(*self._chunks, strict=True)))
                if self._chunks
                else KeptRuns(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
            )
        return self._chunks[0]

    def _replace(self, runs: KeptRuns) -> None:
        self._chunks, self._count = [runs], len(runs.ids)
