"""A simulated database of monitors: transactions that commit late, a change log read out of order, failures anywhere.

It keeps the whole history of definitions: each one carries its version in its arguments, so that whatever reaches the
broker says which definition it was rendered from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.errors import CursorLost, SourceError
from celery_wheelbeat.jobs.rows import MonitorRow
from celery_wheelbeat.sources import BeatRow, Poll, ReportingBeat, RowBlock, Snapshot

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from celery_wheelbeat.jobs.definitions import Finished
    from simulation.sim_clock import SimClock

REARMING = ("interval_ms", "cron", "timezone", "once_at_ms", "jitter_s", "start_at_ms", "end_at_ms", "one_off")

BLANK = MonitorRow(
    id=0, name="", task="probe", args="[]", kwargs="{}", interval_ms=None, cron=None, timezone="UTC", day_rule="and",
    once_at_ms=None, solar_event=None, solar_latitude=None, solar_longitude=None, jitter_s=None, start_at_ms=None,
    end_at_ms=None, one_off=False, queue=None, exchange=None, routing_key=None, priority=None, headers=None,
    expires_s=None, expires_next=False, options=None, misfire="auto", overlap="allow", enabled=True,
    incident_interval_ms=None, incident_until_ms=None, effective_from_ms=0, finished_at_ms=None,
)  # fmt: skip


class Commit(NamedTuple):
    """One change of one monitor, as it became visible."""

    job_id: int
    row: MonitorRow | None
    elapsed_ms: int
    logged: bool


class SimTable:
    """Committed rows, open transactions, and everything that ever was."""

    def __init__(self, clock: SimClock) -> None:
        self.rows: dict[int, MonitorRow] = {}
        self.log: list[int] = []
        self.history: list[Commit] = []
        self.versions: list[MonitorRow] = []
        self.beats: dict[str, Mapping[str, Any]] = {}
        self.refused_reports = 0
        self.quarantine: dict[str, tuple[str, str]] = {}
        self.locked: dict[int, tuple[int, MonitorRow | None]] = {}
        """Rows that an open transaction has written: when it commits, and what it wrote."""
        self._clock = clock

    def write(self, row: MonitorRow, *, commit_after_ms: int = 0, logged: bool = True) -> None:
        """Insert or update a monitor as the triggers would; a row under a lock is left alone."""
        if row.id in self.locked:
            return
        former = self.rows.get(row.id)
        now_ms = self._clock.wall_ms()
        if former is None:
            row = row._replace(effective_from_ms=now_ms, finished_at_ms=None)
        elif _rearms(former, row):
            same_once = row.once_at_ms is not None and row.once_at_ms == former.once_at_ms
            finished_at_ms = former.finished_at_ms if same_once else None
            row = row._replace(effective_from_ms=now_ms, finished_at_ms=finished_at_ms)
        else:
            row = row._replace(effective_from_ms=former.effective_from_ms, finished_at_ms=former.finished_at_ms)
        row = row._replace(args=f"[{len(self.versions)}]")
        self.versions.append(row)
        if commit_after_ms:
            self.locked[row.id] = (self._clock.elapsed_ms + commit_after_ms, row)
        else:
            self._commit(row.id, row, logged=logged)

    def delete(self, job_id: int, *, logged: bool = True) -> None:
        """Delete a monitor."""
        if job_id in self.rows and job_id not in self.locked:
            self._commit(job_id, None, logged=logged)

    def finish(self, job_id: int, done: Finished) -> None:
        """Note that a single-run job is done, unless it was armed again."""
        row = self.rows.get(job_id)
        if row is not None and row.finished_at_ms is None and row.effective_from_ms <= done.armed_ms:
            self._commit(job_id, row._replace(finished_at_ms=done.at_ms), logged=True)

    def commit_due(self) -> None:
        """Commit the transactions whose time has come, the latest opened first."""
        for job_id, (at_ms, row) in reversed(list(self.locked.items())):
            if at_ms <= self._clock.elapsed_ms:
                del self.locked[job_id]
                self._commit(job_id, row, logged=True)

    def _commit(self, job_id: int, row: MonitorRow | None, *, logged: bool) -> None:
        if row is None:
            self.rows.pop(job_id, None)
        else:
            self.rows[job_id] = row
        if logged:
            self.log.append(job_id)
        self.history.append(Commit(job_id, row, self._clock.elapsed_ms, logged))


class Link:
    """The connection of one beat to the database: what can go wrong with it."""

    def __init__(self, rng: random.Random, *, reach: Callable[[str], None], disturb: Callable[[], None]) -> None:
        """``reach`` is called before each statement: it may raise, or end the process. ``disturb`` notes a fault."""
        self.rng = rng
        self.reach = reach
        self.disturb = disturb
        self.lost_cursor_rate = 0.0
        self.late_rate = 0.0
        self.block_rows = 4


class SimCursor(NamedTuple):
    """Entries of the log below ``high`` are read, except for those in ``missing``."""

    high: int
    missing: tuple[int, ...] = ()


class SimSource:
    """See ``celery_wheelbeat.sources.MonitorSource``."""

    def __init__(self, table: SimTable, link: Link) -> None:
        self._table = table
        self._link = link

    def snapshot(self) -> Snapshot:
        self._link.reach("snapshot")
        return Snapshot(SimCursor(len(self._table.log)), len(self._table.rows))

    def poll(self, cursor: SimCursor) -> Poll:
        self._link.reach("poll")
        return self._poll(cursor)

    def fetch(self, ids: Sequence[int]) -> Sequence[MonitorRow]:
        self._link.reach("fetch")
        return [self._table.rows[job_id] for job_id in sorted(ids) if job_id in self._table.rows]

    def block(self, after_id: int, limit: int, cursor: SimCursor) -> RowBlock:
        self._link.reach("block")
        ids = sorted(job_id for job_id in self._table.rows if job_id > after_id)
        shown = ids[: min(limit, self._link.block_rows)]
        poll = self._poll(cursor, whole=True)
        return RowBlock([self._table.rows[job_id] for job_id in shown], len(shown) == len(ids), poll)

    def logged(self, ids: Sequence[int], within_s: float) -> set[int]:
        self._link.reach("logged")
        return set(ids) & set(self._table.log)

    def close(self) -> None:
        """There is no connection to drop."""

    def _poll(self, cursor: SimCursor, *, whole: bool = False) -> Poll:
        """Read the log, some of it later than the rest, some of it twice; with a block, as of its snapshot."""
        link = self._link
        if link.rng.random() < link.lost_cursor_rate:
            link.disturb()
            raise CursorLost("pruned")
        new = [*cursor.missing, *range(cursor.high, len(self._table.log))]
        late = () if whole else tuple(place for place in new if link.rng.random() < link.late_rate)
        ids = {self._table.log[place] for place in new if place not in late}
        if late:
            link.disturb()
        if ids and self._table.log and link.rng.random() < link.late_rate:
            ids.add(link.rng.choice(self._table.log))
        return Poll(np.array(sorted(ids), np.int64), SimCursor(len(self._table.log), late))


class SimStore:
    """See ``celery_wheelbeat.sources.BeatStore``; what only people ask for is left out."""

    def __init__(self, table: SimTable, link: Link) -> None:
        self._table = table
        self._link = link

    def namespace(self) -> str:
        self._link.reach("namespace")
        return "installation"

    def marks(self, namespace: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        import json

        self._link.reach("marks")
        found: dict[str, list[Mapping[str, Any]]] = {}
        for row in self._table.beats.values():
            for destination, document in json.loads(row["marks"]).items():
                found.setdefault(destination, []).append(document)
        return found

    def report(self, beat_id: str, row: Mapping[str, Any]) -> None:
        self._table.refused_reports += 1
        self._link.reach("report")
        self._table.refused_reports -= 1
        self._table.beats[beat_id] = row

    def reporting(self, _namespace: str, _within_s: float) -> Sequence[ReportingBeat]:
        return []

    def beats(self) -> Sequence[BeatRow]:
        return []  # the simulation has one namespace

    def later(self) -> Mapping[str, Any]:
        return {}  # the simulation has no one-off runs

    def quarantined(self) -> Mapping[str, tuple[str, str]]:
        self._link.reach("quarantined")
        return dict(self._table.quarantine)

    def quarantine(self, added: Mapping[str, tuple[str, str]], lifted: Sequence[str]) -> None:
        self._link.reach("quarantine")
        self._table.quarantine.update(added)
        for key in lifted:
            self._table.quarantine.pop(key, None)

    def finish(self, finished: Mapping[int, Finished]) -> None:
        self._link.reach("finish")
        if self._table.locked.keys() & finished.keys():
            self._link.disturb()
            raise SourceError("lock timeout")
        for job_id, done in finished.items():
            self._table.finish(job_id, done)


def _rearms(former: MonitorRow, row: MonitorRow) -> bool:
    return (row.enabled and not former.enabled) or any(
        getattr(former, column) != getattr(row, column) for column in REARMING
    )
