"""What people do to monitors: create, change, pause, delete, speed up, one by one and in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_wheelbeat.jobs.validation import check
from simulation.sim_database import BLANK

if TYPE_CHECKING:
    import random
    from collections.abc import Collection

    from celery_wheelbeat.jobs.rows import MonitorRow
    from simulation.sim_clock import SimClock
    from simulation.sim_database import SimTable

INTERVALS_MS = (1_000, 2_000, 3_000, 7_000, 10_000, 30_000, 61_000, 1_500, 400, 3_600_000)
CRONS = (
    ("* * * * *", "UTC"),
    ("*/2 * * * *", "UTC"),
    ("5 1 * * *", "UTC"),
    ("30 2 * * *", "Europe/Berlin"),
    ("*/20 2 * * *", "Europe/Berlin"),
    ("0 0 29 2 *", "UTC"),
    ("0 12 1 1 *", "UTC"),
)
POLICIES = ("auto", "auto", "skip", "latest", "all")
IDS = range(1, 13)


class Edits:
    """People at work on one table."""

    def __init__(self, table: SimTable, clock: SimClock, rng: random.Random, faults: Collection[str]) -> None:
        self._table = table
        self._clock = clock
        self._rng = rng
        self._faults = faults

    def edit(self) -> None:
        """Do one thing; a row that the forms would refuse is not written."""
        rng = self._rng
        job_id = rng.choice(IDS)
        row = self._table.rows.get(job_id)
        logged = "untriggered" not in self._faults or rng.random() > 0.1
        if row is None:
            self._write(self._drawn(job_id), logged=logged)
            return
        what = rng.randrange(8)
        if what == 0:
            self._table.delete(job_id, logged=logged)
        elif what in (1, 2):
            self._write(row._replace(enabled=not row.enabled), logged=logged)
        elif what == 3:
            self._write(row, logged=logged)
        elif what == 4:
            self._write(self._with_incident(row), logged=logged)
        elif what == 5:
            for other in list(self._table.rows.values()):
                self._write(other._replace(enabled=rng.random() < 0.8), logged=logged)
        else:
            self._write(self._drawn(job_id), logged=logged)

    def _write(self, row: MonitorRow, *, logged: bool) -> None:
        if check(row):
            return
        late = "commit late" in self._faults and self._rng.random() < 0.3
        self._table.write(row, commit_after_ms=self._rng.randint(1, 9_000) if late else 0, logged=logged)

    def _drawn(self, job_id: int) -> MonitorRow:
        rng = self._rng
        row = BLANK._replace(
            id=job_id, name=f"monitor {job_id}", misfire=rng.choice(POLICIES), one_off=rng.random() < 0.15
        )
        kind = rng.randrange(10)
        if kind < 6:
            row = row._replace(interval_ms=rng.choice(INTERVALS_MS), jitter_s=rng.choice([None, None, 0]))
        elif kind < 8:
            expression, timezone = rng.choice(CRONS)
            row = row._replace(cron=expression, timezone=timezone, jitter_s=rng.choice([None, 0, 3]))
        else:
            row = row._replace(once_at_ms=self._near())
        if rng.random() < 0.15:
            row = row._replace(start_at_ms=self._near())
        if rng.random() < 0.15:
            row = row._replace(end_at_ms=self._near())
        return self._with_incident(row) if rng.random() < 0.1 else row

    def _with_incident(self, row: MonitorRow) -> MonitorRow:
        if self._rng.random() < 0.3:
            return row._replace(incident_interval_ms=None, incident_until_ms=None)
        return row._replace(incident_interval_ms=self._rng.choice([1_000, 2_000, 700]), incident_until_ms=self._near())

    def _near(self) -> int:
        return self._clock.wall_ms() + self._rng.choice([-20_000, -500, 300, 1_500, 5_000, 40_000, 300_000])
