"""All shards of one engine: maps a job id to its shard and looks up jobs by id.

Read-only: jobs are changed through the ``Shard`` that owns them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.engine.packing import DEAD, ENABLED, ONCE, POLLED, widened
from celery_wheelbeat.engine.payloads import Payloads
from celery_wheelbeat.engine.shard import Shard
from celery_wheelbeat.errors import WheelbeatError
from celery_wheelbeat.jobs.definitions import DueBatch, Offer
from celery_wheelbeat.schedules.columns import NOT_CRON, spans
from celery_wheelbeat.schedules.intervals import Bounded, Interval, Once
from celery_wheelbeat.schedules.kinds import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.engine.packing import Rows
    from celery_wheelbeat.engine.shard import Ticks
    from celery_wheelbeat.jobs.definitions import DefinitionBatch
    from celery_wheelbeat.schedules.cron import Cron, CronTable
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

PUBLIC_FLAGS = 0xFF
STAGGER_TICKS = 256
"""The shards promote a far window one after the other, spread over this many ticks before it begins."""


class JobView(NamedTuple):
    """The current definition of a job, as needed to render its message."""

    id: int
    name: str
    payload: bytes
    route_index: int
    flags: int
    """Bits of ``jobs.definitions.Flag``."""
    next_fire_ms: int | None
    """None: no further fire time, or the job is polled."""


class JobColumns(NamedTuple):
    """Current definitions of jobs as columns; rows that are not ``enabled`` have arbitrary values."""

    enabled: NDArray[np.bool_]
    """The job exists and is enabled."""
    route: UInt32s
    flags: NDArray[np.uint16]
    """Bits of ``jobs.definitions.Flag``."""
    ref: UInt32s
    """Argument of ``payloads.read``."""
    interval: Int64s
    """Interval in ms; ≤ 0 for other jobs."""

    @classmethod
    def empty(cls, count: int) -> JobColumns:
        """Return uninitialised columns."""
        return cls(
            np.empty(count, np.bool_),
            np.empty(count, np.uint32),
            np.empty(count, np.uint16),
            np.empty(count, np.uint32),
            np.empty(count, np.int64),
        )

    def at(self, where: slice) -> JobColumns:
        """Return the jobs at ``where``."""
        return JobColumns(
            self.enabled[where], self.route[where], self.flags[where], self.ref[where], self.interval[where]
        )


class Relived(NamedTuple):
    """Which fire times are lived again after a backward step of the clock."""

    until_ms: int = 0
    """Fire times up to here were handed out before the step. Intervals live them again, with ids of their own."""
    step: int = 0
    """Number of the step."""
    settled_ms: int = 0
    """Crons and single runs up to here do not fire again; those up to ``until_ms`` do, with the same ids."""


class Reached(NamedTuple):
    """The position of the wheel: how far runs were handed out, and which fire times are re-lived."""

    cursor_ms: int
    relived: Relived

    def is_before(self, fire_ms: int, step: int) -> bool:
        """Return whether the run (``fire_ms``, ``step``) is handed out only after the wheel was at this position."""
        if fire_ms > max(self.cursor_ms, self.relived.until_ms):
            return True
        return step != 0 and (abs(step), fire_ms) > (self.relived.step, self.cursor_ms)


class Shards:
    """The shards of one engine and the payloads of their jobs. ``count`` is a power of two."""

    def __init__(self, count: int, cursor: int, ticks: Ticks, crons: CronTable) -> None:
        if count < 1 or count & (count - 1):
            raise WheelbeatError(f"shards = {count}: expected a power of two")
        self.payloads = Payloads()
        self.relived = Relived()
        stagger = min(ticks.window_ticks // 2, STAGGER_TICKS)
        self._shards = [Shard(number, cursor, ticks, number * stagger // count, crons) for number in range(count)]

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> Shard:
        return self._shards[number]

    def owner(self, job_id: int) -> Shard:
        """Return the shard that owns ``job_id``."""
        return self._shards[job_id & (len(self._shards) - 1)]

    def partition(self, ids: Int64s) -> Iterator[tuple[Shard, NDArray[np.intp]]]:
        """Yield each shard that owns any of ``ids``, with the positions of its ids, ascending."""
        order, shares = self._shares(ids)
        for shard, share in shares:
            yield shard, order[share]

    def split(self, rows: Rows) -> Iterator[tuple[Shard, Rows]]:
        """Yield each shard that owns any of ``rows``, with its rows in their order: views into one sorted copy."""
        order, shares = self._shares(rows.ids)
        ordered = rows.take(order)
        for shard, share in shares:
            yield shard, ordered.take(share)

    def _shares(self, ids: NDArray[np.integer[Any]]) -> tuple[NDArray[np.intp], list[tuple[Shard, slice]]]:
        """Return the positions of ``ids`` sorted by shard, and each shard with its slice of them."""
        count = len(self._shards)
        numbers = (ids & (count - 1)).astype(np.uint8 if count <= 1 << 8 else np.uint16)
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        edges = (np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()
        bounds = [0, *edges, len(ids)] if len(ids) else []
        return order, [(self._shards[numbers[start]], slice(start, end)) for start, end in pairwise(bounds)]

    def located(self, ids: Int64s) -> Iterator[tuple[Shard, NDArray[np.intp], Int64s]]:
        """Yield each shard with the positions of its existing ``ids`` and their rows."""
        for shard, positions in self.partition(ids):
            rows = shard.find(ids[positions])
            found = rows >= 0
            yield shard, positions[found], rows[found]

    def known(self, ids: Int64s) -> NDArray[np.bool_]:
        """Return a mask of the ``ids`` that exist, enabled or not."""
        known = np.zeros(len(ids), np.bool_)
        for _, positions, _ in self.located(ids):
            known[positions] = True
        return known

    def named(self, name: str) -> Int64s:
        """Return the ids of the jobs with this name; takes about 10 ms per million jobs."""
        refs = self.payloads.named(name.encode(errors="surrogatepass"))
        found = [np.empty(0, np.int64)]
        for shard in self._shards if len(refs) else ():
            rows = shard.table.rows
            found.append(shard.table.ids(np.flatnonzero(np.isin(rows.ref, refs) & (rows.flags & DEAD == 0))))
        return np.concatenate(found)

    @property
    def job_count(self) -> int:
        """Jobs in all shards, enabled or not."""
        return sum(len(shard.table) for shard in self._shards)

    def admit(self, batch: DefinitionBatch, max_jobs: int) -> DefinitionBatch:
        """Return ``batch`` without the new jobs that would exceed ``max_jobs``."""
        room = max_jobs - self.job_count
        if len(batch) <= room:
            return batch
        known = self.known(batch.ids)
        return batch.take(np.flatnonzero(known | (np.cumsum(~known) <= room)))

    def once_of(self, ids: Int64s) -> Int64s:
        """Return the instants of enabled one-time jobs; NEVER_MS for other jobs, and if it is outside its bounds."""
        found = np.full(len(ids), NEVER_MS)
        for shard, positions, rows in self.located(ids):
            once = (shard.table.columns.flags[rows] & (ONCE | ENABLED)) == ONCE | ENABLED
            for position in positions[once].tolist():
                rare = shard.table.rare[int(ids[position])]
                if rare.start_ms <= rare.phase_ms < rare.end_ms:
                    found[position] = rare.phase_ms
        return found

    def batches(
        self, ids: Int64s, fire_ms: Int64s, offer: Offer, steps: NDArray[np.int32] | None = None
    ) -> list[DueBatch]:
        """Make due batches of runs given by id and ascending fire time; runs of deleted jobs are left out.

        ``steps``: the step of each run, if it came due before the current step of the clock.
        """
        due = []
        for shard, positions, rows in self.located(ids):
            if len(rows):
                found, here = rows.astype(np.uint32), positions
                batch = DueBatch(shard.number, found, ids[here], fire_ms[here], shard.table.routes(found), offer)
                due += self.by_step(batch, None if steps is None else steps[here])
        return due

    def by_step(self, batch: DueBatch, steps: NDArray[np.int32] | None = None) -> list[DueBatch]:
        """Split a batch by the step of its runs, ``DueBatch.step``; None: by the current step of the clock."""
        if steps is None:
            repeats = self._shards[batch.shard].table.columns.interval[batch.rows] > 0
            lived = np.where(repeats, self.relived.step, -self.relived.step)
            steps = np.where(batch.fire_ms <= self.relived.until_ms, lived, 0).astype(np.int32)
        values = np.unique(steps).tolist()
        return [replace(batch.take(np.flatnonzero(steps == step)), step=step) for step in values]

    def views(self, ids: Int64s) -> list[JobView | None]:
        """Return the current definition of each job; None if it does not exist or is disabled."""
        views: list[JobView | None] = [None] * len(ids)
        for shard, all_positions, rows in self.located(ids):
            found = shard.table.rows.take(rows)
            enabled = (found.flags & ENABLED) > 0
            positions, found = all_positions[enabled], found.take(enabled)
            columns = (positions, found.ids, found.route, found.flags & PUBLIC_FLAGS, found.next_fire)
            for text, (position, job_id, route, flags, fire_ms) in zip(
                self.payloads.read(found.ref), zip(*(column.tolist() for column in columns), strict=True), strict=True
            ):
                next_fire_ms = None if fire_ms == NEVER_MS else fire_ms
                views[position] = JobView(job_id, text.name.decode(), text.payload, route, flags, next_fire_ms)
        return views

    def columns_of(self, ids: Int64s) -> JobColumns:
        """Return the current definitions of ``ids`` as columns."""
        order, shares = self._shares(ids)
        ordered = ids[order]
        nearest = [shard.table.nearest(ordered[share]) for shard, share in shares]
        columns = JobColumns.empty(len(ids))
        if nearest:
            found, flags, routes, refs, intervals = zip(*nearest, strict=True)
            if len({part.itemsize for part in intervals}) > 1:
                intervals = tuple(map(widened, intervals))
            every = np.concatenate(flags)
            columns.enabled[order] = (every & (ENABLED | DEAD) == ENABLED) & (np.concatenate(found) == ordered)
            columns.route[order] = np.concatenate(routes)
            columns.flags[order] = every & PUBLIC_FLAGS
            columns.ref[order] = np.concatenate(refs)
            columns.interval[order] = widened(np.concatenate(intervals))
        return columns

    def payload_sizes(self, ids: Int64s) -> Int64s:
        """Return the bytes of payload and name of each of ``ids``; 0 if the job does not exist or is disabled."""
        jobs = self.columns_of(ids)
        sizes = np.zeros(len(ids), np.int64)
        sizes[jobs.enabled] = self.payloads.lengths(jobs.ref[jobs.enabled])
        return sizes

    def runs_until(self, to_ms: int, crons: CronTable) -> int:
        """Count the fire times up to ``to_ms`` of all jobs armed for ``to_ms`` or earlier."""
        runs = 0
        for shard in self._shards:
            rows = shard.overdue(to_ms)
            after = shard.table.columns.next_fire[rows] - 1
            runs += int(spans(shard.table.schedules(rows), after, np.full(len(rows), to_ms), crons).counts.sum())
        return runs

    def schedule_of(self, job_id: int, crons: CronTable) -> Bounded | None:
        """Return the schedule of a job, enabled or not; None if the job does not exist or is polled."""
        shard = self.owner(job_id)
        rows = shard.living(np.array([job_id]))
        if not len(rows) or shard.table.columns.flags[rows[0]] & POLLED:
            return None
        columns = (column.tolist()[0] for column in shard.table.schedules(rows))
        interval_ms, phase_ms, cron_index, offset_ms, *bounds = columns
        base: Interval | Cron | Once
        if interval_ms:
            base, offset_ms = Interval(interval_ms / 1000, anchor_ms=phase_ms), 0
        elif cron_index != NOT_CRON:
            base = crons[cron_index]
        else:
            base = Once(phase_ms - offset_ms)
        return Bounded(base, offset_ms, *bounds)


def ids_of(ids: Sequence[int] | Int64s) -> Int64s:
    """Return ``ids`` as an int64 array."""
    return np.asarray(ids, np.int64)
