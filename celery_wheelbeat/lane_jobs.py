"""The engine's side of the poll lane: which jobs are in it, and what they have due.

A job of our own schedules is in the lane because its grid is not a multiple of the tick; the lane replays its fire
times from where the engine says. Foreign schedules are merely asked. Invariant: exactly the enabled rows that are
marked ``IN_LANE`` are members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.jobs import NEVER_MS
from celery_wheelbeat.poll_lane import GridSchedule, LaneTurn
from celery_wheelbeat.stored_rows import ENABLED, IN_LANE, POLLED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from celery_wheelbeat.cron import CronTable
    from celery_wheelbeat.jobs import Int64s, Polled
    from celery_wheelbeat.poll_lane import LaneFailure, PollLane
    from celery_wheelbeat.shard import Shard
    from celery_wheelbeat.shards import Shards
    from celery_wheelbeat.stored_rows import Rows


class LaneJobs:
    """Keeps the members of one ``PollLane`` in step with the tables."""

    def __init__(self, polled: PollLane, crons: CronTable) -> None:
        self.polled = polled
        self.turn = LaneTurn()
        """What the last turn of the lane found."""
        self._failures: list[LaneFailure] = []
        self._crons = crons

    def put(self, rows: Rows, shards: Shards, foreign: Mapping[int, Polled], *, after_ms: int, settled_ms: int) -> None:
        """Take in those of ``rows`` that belong here. Intervals fire after ``after_ms``, others ``settled_ms``."""
        rows = rows.take(np.flatnonzero((rows.flags & (ENABLED | IN_LANE)) == ENABLED | IN_LANE))
        columns = (rows.ids, rows.interval, rows.flags & POLLED)
        for job_id, interval, is_foreign in zip(*(column.tolist() for column in columns), strict=True):
            if is_foreign:
                self.polled.put(job_id, foreign[job_id], ask_ms=after_ms + 1, after_ms=settled_ms)
                continue
            schedule = shards.schedule_of(job_id, self._crons)
            if schedule is not None:
                floor_ms = after_ms if interval > 0 else settled_ms
                first_ms = schedule.next_fire(floor_ms)
                ask_ms = NEVER_MS if first_ms is None else first_ms
                self.polled.put(job_id, GridSchedule(schedule, floor_ms), ask_ms=ask_ms, after_ms=floor_ms)

    def remove(self, rows: Rows) -> None:
        """Forget the jobs of ``rows`` that are members."""
        if len(self.polled):
            for job_id in rows.ids[(rows.flags & IN_LANE) > 0].tolist():
                self.polled.remove(job_id)

    def grids(self, shards: Shards) -> Iterator[tuple[Shard, NDArray[np.intp]]]:
        """Yield the rows of each shard that the lane keeps though their schedules are ours."""
        if len(self.polled):
            for shard in shards:
                yield (
                    shard,
                    np.flatnonzero((shard.table.rows.flags & (ENABLED | IN_LANE | POLLED)) == ENABLED | IN_LANE),
                )

    def restart_grids(self, shards: Shards, *, after_ms: int, settled_ms: int) -> None:
        """Let the lane go on from other instants."""
        for shard, rows in self.grids(shards):
            self.put(shard.table.rows.take(rows), shards, {}, after_ms=after_ms, settled_ms=settled_ms)

    def due(self, until_ms: int) -> tuple[Int64s, Int64s]:
        """Ask the lane; returns job ids and fire times, by fire time."""
        self.turn = self.polled.advance(until_ms)
        self._failures += self.turn.failures
        runs = sorted(self.turn.due, key=lambda run: run[1])
        return np.array([job_id for job_id, _ in runs], np.int64), np.array([fire for _, fire in runs], np.int64)

    def take_failures(self) -> list[LaneFailure]:
        """Return the schedules that have raised since the last call: each is to be reported once."""
        failures, self._failures = self._failures, []
        return failures
