"""The definitions that a process received, compared with those committed by then."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from celery_wheelbeat.jobs.definitions import Flag
from simulation.expectation import Job
from simulation.fire_times import plan_of
from simulation.promises import demand

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from celery_wheelbeat.jobs.definitions import DefinitionBatch
    from simulation.sim_database import Commit, SimTable

EDIT_MS = 3_000
"""An edit is in force this long after its commit: two seconds, and a turn of either thread."""


class Deliveries:
    """The edits that one process has not received yet."""

    def __init__(self, table: SimTable, elapsed_ms: int) -> None:
        self._table = table
        self._read = len(table.history)
        self._missing = dict.fromkeys(table.rows, elapsed_ms)
        """Job id → when its last edit was committed."""

    def note_commits(self) -> None:
        """Take in what was committed since."""
        for commit in self._table.history[self._read :]:
            if commit.logged:
                self._missing[commit.job_id] = commit.elapsed_ms
        self._read = len(self._table.history)

    def delete(self, job_id: int) -> None:
        """A monitor was delivered as deleted."""
        gone = any(commit.job_id == job_id and commit.row is None for commit in self._table.history)
        demand(gone, "only what is gone is deleted", job_id=job_id)
        self._missing.pop(job_id, None)

    def jobs(self, batch: DefinitionBatch) -> Iterable[Job]:
        """Read which version of which monitor was delivered, and look up its row."""
        position = 0
        for job_id, flags, length in zip(batch.ids.tolist(), batch.flags.tolist(), batch.lengths.tolist(), strict=True):
            (version,), _ = json.loads(batch.payload[position : position + length])
            position += length
            row = self._table.versions[version]
            commits = self._commits(job_id, version)
            demand(commits, "what is delivered was committed", job_id=job_id, version=version)
            enabled = bool(flags & Flag.ENABLED)
            done = any(commit.row is not None and commit.row.finished_at_ms for commit in commits)
            demand(enabled == row.enabled or done, "a monitor is enabled as its row says", row=row, done=done)
            if self.current().get(job_id) == version:
                self._missing.pop(job_id, None)
            plan = plan_of(row)
            misfire = "latest" if plan.kind == "once" and row.misfire == "auto" else row.misfire
            one_off = row.one_off or plan.kind == "once"
            yield Job(job_id, f"monitor:{job_id}", plan, enabled, misfire, one_off, row.effective_from_ms, version)

    def current(self) -> dict[int, int]:
        """Return the version of each monitor that is committed now."""
        return {job_id: json.loads(row.args or "")[0] for job_id, row in self._table.rows.items()}

    def check(self, elapsed_ms: int, calm_since_ms: int, in_force: Collection[int]) -> None:
        """Demand that no edit is late; ``in_force``: jobs that the process knows."""
        for job_id, committed_ms in list(self._missing.items()):
            if job_id not in self._table.rows and job_id not in in_force:
                del self._missing[job_id]  # gone before anybody heard of it
                continue
            demand(
                elapsed_ms - max(committed_ms, calm_since_ms) <= EDIT_MS,
                "an edit is in force within two seconds",
                job_id=job_id,
                committed_ms=committed_ms,
                elapsed_ms=elapsed_ms,
            )

    def _commits(self, job_id: int, version: int) -> list[Commit]:
        wanted = self._table.versions[version].args
        return [one for one in self._table.history if one.job_id == job_id and one.row and one.row.args == wanted]
