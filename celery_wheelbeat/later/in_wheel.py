"""One-off runs in the wheel: rows that come due become jobs of one fire time, and leave when that run is settled.

Invariant: the stored ``Resume`` never passes a second of which a run is neither sent nor skipped. Rows are read ten
seconds ahead, so few jobs exist at a time. The scheduling thread owns everything here but the feed's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from celery_wheelbeat.jobs.definitions import ChangeBatch, DefinitionBatch, Misfire, Route, flags_of
from celery_wheelbeat.jobs.identity import LATER_IDS_FROM
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.later.feed import LaterFeed
    from celery_wheelbeat.later.open_seconds import Resume
    from celery_wheelbeat.later.readers import LaterRow, Read
    from celery_wheelbeat.schedules.kinds import Int64s

SETTLE_EVERY_S = 0.5
_NONE = np.empty(0, np.int64)


class Backlogs(Protocol):
    """The runs that are due and not settled; see ``dispatch.dispatcher.Dispatcher``."""

    def holds(self, ids: Int64s) -> NDArray[np.bool_]:
        """Return which of the jobs have an unsettled run."""

    def drop(self, ids: Int64s, reason: str) -> int:
        """Skip the waiting runs of ``ids``."""


class _JobInWheel(NamedTuple):
    """A row that is in the wheel."""

    run_id: str
    second: int
    fire_ms: int


class LaterRuns:
    """The one-off runs of one beat. ``run_ids`` (job id → task id) is read by the lanes."""

    def __init__(self, feed: LaterFeed | None, backlogs: Backlogs, run_ids: dict[int, str]) -> None:
        """``feed``: None if the database keeps no one-off runs."""
        self._feed = feed
        self._backlogs = backlogs
        self._run_ids = run_ids
        self._jobs: dict[int, _JobInWheel] = {}
        """In the order in which they were read."""
        self._of_run: dict[str, int] = {}
        """Task id → job id."""
        self._next = 0
        self._last: Read | None = None
        """The newest read whose rows are in the wheel."""
        self._stored: Resume | None = None
        self._started = False
        self._settled_s = 0.0

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, resume: Resume | None) -> None:
        """Start to read where an earlier beat stopped; the first call counts."""
        self._stored = self._stored or resume
        if self._feed is not None and not self._started:
            self._started = True
            self._feed.start(resume)

    def close(self, timeout_s: float) -> None:
        """Stop to read."""
        if self._feed is not None and self._started:
            self._feed.close(timeout_s)

    def apply_reads(self, apply: Callable[[ChangeBatch], None]) -> None:
        """Put what was read into the wheel, and take out what was cancelled, with ``apply``."""
        if self._feed is None:
            return
        for read in self._feed.take():
            self._cancel([row.id for row in read.rows if not row.task], apply)
            cancelled = {row.id for row in read.rows if not row.task}
            rows = [row for row in read.rows if row.task and row.id not in self._of_run and row.id not in cancelled]
            if rows:
                apply(ChangeBatch(self._batch(rows), _NONE))
            self._last = read

    def remove_settled(self, cursor_ms: int, now_s: float, apply: Callable[[ChangeBatch], None]) -> None:
        """Take jobs out of the wheel whose run is settled. ``cursor_ms``: every fire time up to it was offered."""
        if not self._jobs or now_s - self._settled_s < SETTLE_EVERY_S:
            return
        self._settled_s = now_s
        fired = np.array([job_id for job_id, job in self._jobs.items() if job.fire_ms <= cursor_ms], np.int64)
        if len(fired):
            self._remove(fired[~self._backlogs.holds(fired)].tolist(), apply)

    def resume(self) -> Resume | None:
        """Return what the next beat needs to go on; None if one-off runs were never read."""
        if self._last is None:
            return self._stored
        resume = self._last.state.before(job.second for job in self._jobs.values())
        if self._feed is not None:
            self._feed.settled_s = resume.closed_s
        return resume

    def _cancel(self, run_ids: Iterable[str], apply: Callable[[ChangeBatch], None]) -> None:
        known = [self._of_run[run_id] for run_id in run_ids if run_id in self._of_run]
        if known:
            self._backlogs.drop(np.array(sorted(known), np.int64), "cancelled")
            self._remove(known, apply)

    def _remove(self, job_ids: Sequence[int], apply: Callable[[ChangeBatch], None]) -> None:
        if not job_ids:
            return
        apply(ChangeBatch(self._batch(()), np.array(sorted(job_ids), np.int64)))
        for job_id in job_ids:
            del self._of_run[self._jobs.pop(job_id).run_id]
            del self._run_ids[job_id]

    def _batch(self, rows: Sequence[LaterRow]) -> DefinitionBatch:
        n = len(rows)
        ids = [self._new_id(row) for row in rows]
        routes = {route: at for at, route in enumerate(dict.fromkeys(Route(row.task, row.options) for row in rows))}
        payloads = [f"[{row.args}, {row.kwargs}]".encode() for row in rows]
        names = [row.task.encode() for row in rows]
        flags = flags_of(enabled=True, one_off=False, misfire=Misfire.LATEST)
        zeros = np.zeros(n, np.int64)
        return DefinitionBatch(
            ids=np.array(ids, np.int64),
            kind=np.full(n, Kind.ONCE, np.uint8),
            interval_ms=zeros,
            anchor_ms=np.array([self._jobs[job_id].fire_ms for job_id in ids], np.int64),
            offset_ms=zeros,
            cron_index=np.full(n, -1, np.int32),
            flags=np.full(n, flags, np.uint16),
            route_index=np.array([routes[Route(row.task, row.options)] for row in rows], np.uint32),
            start_ms=np.full(n, ALWAYS_MS),
            end_ms=np.full(n, NEVER_MS),
            incident_interval_ms=zeros,
            incident_until_ms=zeros,
            effective_from_ms=zeros,
            payload=b"".join(payloads),
            lengths=np.array([len(payload) for payload in payloads], np.uint32),
            names=b"".join(names),
            name_lengths=np.array([len(name) for name in names], np.uint16),
            routes=list(routes),
        )

    def _new_id(self, row: LaterRow) -> int:
        """Return a job id; its shard is ``second & 255``, so that one beat of several sends a second whole."""
        job_id = LATER_IDS_FROM | self._next << 8 | row.second & 0xFF
        self._next += 1
        # A run that was due when it was inserted fires in the second that it was given.
        self._jobs[job_id] = _JobInWheel(row.id, row.second, max(row.at_ms, row.second * 1000))
        self._of_run[row.id] = job_id
        self._run_ids[job_id] = row.id
        return job_id
