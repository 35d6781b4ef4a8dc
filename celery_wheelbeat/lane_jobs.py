"""The engine's side of the poll lane: which jobs are in it, and what they have due.

Invariant: exactly the enabled rows that are marked ``POLLED`` are members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.poll_lane import LaneTurn
from celery_wheelbeat.stored_rows import ENABLED, POLLED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_wheelbeat.jobs import Int64s, Polled
    from celery_wheelbeat.poll_lane import LaneFailure, PollLane
    from celery_wheelbeat.stored_rows import Rows


class LaneJobs:
    """Keeps the members of one ``PollLane`` in step with the tables."""

    def __init__(self, polled: PollLane) -> None:
        self.polled = polled
        self.turn = LaneTurn()
        """What the last turn of the lane found."""
        self._failures: list[LaneFailure] = []

    def put(self, rows: Rows, schedules: Mapping[int, Polled], *, ask_ms: int, after_ms: int) -> None:
        """Take in those of ``rows`` that belong here: asked at ``ask_ms`` first, due only after ``after_ms``."""
        for job_id in rows.ids[(rows.flags & (ENABLED | POLLED)) == ENABLED | POLLED].tolist():
            self.polled.put(job_id, schedules[job_id], ask_ms=ask_ms, after_ms=after_ms)

    def remove(self, rows: Rows) -> None:
        """Forget the jobs of ``rows`` that are members."""
        if len(self.polled):
            for job_id in rows.ids[(rows.flags & POLLED) > 0].tolist():
                self.polled.remove(job_id)

    def due(self, until_ms: int) -> tuple[Int64s, Int64s]:
        """Ask the lane; returns job ids and fire times, by fire time."""
        self.turn = self.polled.advance(until_ms)
        self._failures += self.turn.failures
        ids, fires = np.array(self.turn.due, np.int64).reshape(-1, 2).T
        return ids, fires

    def take_failures(self) -> list[LaneFailure]:
        """Return the schedules that have raised since the last call: each is to be reported once."""
        failures, self._failures = self._failures, []
        return failures
