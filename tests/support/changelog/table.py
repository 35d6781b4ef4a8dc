"""A database of monitors in memory: a dict, a change log, and faults on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.errors import CursorLost, SourceError
from celery_wheelbeat.jobs.rows import MonitorRow
from celery_wheelbeat.sources import Poll, RowBlock, Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAIN = MonitorRow(
    id=0, name="", task="proj.check", args="[]", kwargs="{}", interval_ms=60_000, cron=None, timezone="UTC",
    day_rule="and", once_at_ms=None, solar_event=None, solar_latitude=None, solar_longitude=None, jitter_s=None,
    start_at_ms=None, end_at_ms=None, one_off=False, queue=None, exchange=None, routing_key=None, priority=None,
    headers="{}", expires_s=None, expires_next=False, options="{}", misfire="auto", overlap="allow", enabled=True,
    incident_interval_ms=None, incident_until_ms=None, effective_from_ms=0, finished_at_ms=None,
)  # fmt: skip


class TableOfMonitors:
    """``MonitorSource``; edits are made through ``put`` and ``drop``."""

    def __init__(self, count: int = 0) -> None:
        self.rows = {n: PLAIN._replace(id=n, name=f"m{n}") for n in range(1, count + 1)}
        self.log: list[int] = []
        self.lost: str | None = None
        self.down = False
        self.calls: list[str] = []

    def put(self, job_id: int, *, triggered: bool = True, **columns: object) -> None:
        """Insert or update a row."""
        self.rows[job_id] = self.rows.get(job_id, PLAIN._replace(id=job_id, name=f"m{job_id}"))._replace(**columns)
        self._note(job_id, triggered)

    def drop(self, job_id: int, *, triggered: bool = True) -> None:
        """Delete a row."""
        if self.rows.pop(job_id, None) is not None:
            self._note(job_id, triggered)

    def lose(self, reason: str) -> None:
        """Let every cursor taken so far be lost."""
        self.lost = reason

    def snapshot(self) -> Snapshot:
        self._answer("snapshot")
        self.lost = None
        return Snapshot(len(self.log), len(self.rows))

    def poll(self, cursor: int) -> Poll:
        self._answer("poll")
        if self.lost:
            raise CursorLost(self.lost)
        return Poll(np.unique(np.array(self.log[cursor:], np.int64)), len(self.log))

    def fetch(self, ids: Sequence[int]) -> Sequence[MonitorRow]:
        self._answer("fetch")
        return [self.rows[job_id] for job_id in sorted(ids) if job_id in self.rows]

    def block(self, after_id: int, limit: int, cursor: int) -> RowBlock:
        self._answer("block")
        poll = self.poll(cursor)
        rows = [self.rows[job_id] for job_id in sorted(self.rows) if job_id > after_id][:limit]
        return RowBlock(rows, len(rows) < limit, poll)

    def logged(self, ids: Sequence[int], within_s: float) -> set[int]:
        self._answer("logged")
        return set(ids) & set(self.log)

    def close(self) -> None:
        self.calls.append("close")

    def _note(self, job_id: int, triggered: bool) -> None:
        if triggered:
            self.log.append(job_id)

    def _answer(self, call: str) -> None:
        self.calls.append(call)
        if self.down:
            raise SourceError("the database is down")
