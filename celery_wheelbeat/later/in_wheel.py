"""One-off runs in the wheel: rows that come due become jobs of one fire time, and leave when that run is settled.

Invariant: the stored ``Resume`` never passes a second of which a run is neither sent nor skipped. Rows are read ten
seconds ahead and at most 256 MB of them, so few jobs exist at a time. The scheduling thread owns everything here but
the feed's thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from celery_wheelbeat.jobs.definitions import ChangeBatch, DefinitionBatch, Misfire, flags_of
from celery_wheelbeat.jobs.identity import LATER_IDS_FROM
from celery_wheelbeat.later.feed import Held
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.engine.ledger import Ledger
    from celery_wheelbeat.jobs.definitions import Route
    from celery_wheelbeat.later.checks import DueRun
    from celery_wheelbeat.later.feed import LaterFeed
    from celery_wheelbeat.later.open_seconds import Resume
    from celery_wheelbeat.schedules.kinds import Int64s

logger = logging.getLogger("celery.beat")

SETTLE_EVERY_S = 0.5
_NONE = np.empty(0, np.int64)


class Backlogs(Protocol):
    """The runs that are due and not settled; see ``dispatch.dispatcher.Dispatcher``."""

    def holds(self, ids: Int64s) -> NDArray[np.bool_]:
        """Return which of the jobs have an unsettled run."""

    def drop(self, ids: Int64s, reason: str) -> int:
        """Skip the waiting runs of ``ids``."""


class _InWheel(NamedTuple):
    """The jobs in the wheel, in the order in which they were read; so their ids ascend."""

    ids: Int64s
    fires_ms: Int64s
    seconds: Int64s
    sizes: Int64s
    """Bytes of memory."""

    def at(self, where: NDArray[np.bool_]) -> _InWheel:
        """Return the jobs at ``where``."""
        return _InWheel(*(column[where] for column in self))

    def plus(self, others: _InWheel) -> _InWheel:
        """Return these jobs and ``others``."""
        return _InWheel(*map(np.concatenate, zip(self, others, strict=True)))

    def are(self, ids: Int64s) -> NDArray[np.bool_]:
        """Return which jobs are among ``ids``, all of which are here."""
        found = np.zeros(len(self.ids), np.bool_)
        found[np.searchsorted(self.ids, ids)] = True
        return found


class LaterRuns:
    """The one-off runs of one beat. ``run_ids`` (job id → task id) is read by the lanes."""

    def __init__(
        self,
        feed: LaterFeed | None,
        backlogs: Backlogs,
        ledger: Ledger,
        run_ids: dict[int, str],
        *,
        room: Callable[[], int],
    ) -> None:
        """``feed``: None if the database keeps no one-off runs. ``room``: how many more jobs the engine takes."""
        self._feed = feed
        self._room = room
        self._waiting: list[DueRun] = []
        """Runs that were read and are not in the wheel, because the engine had no room."""
        self._backlogs = backlogs
        self._ledger = ledger
        self._run_ids = run_ids
        self._of_run: dict[str, int] = {}
        """Task id → job id."""
        self._jobs = _InWheel(_NONE, _NONE, _NONE, _NONE)
        self._size = 0
        self._next = 0
        self._last: Resume | None = None
        """State of the newest read whose rows are in the wheel."""
        self._stored: Resume | None = None
        self._started = False
        self._settled_s = 0.0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._jobs.ids)

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
            found = read.runs
            self._ledger.expect(len(found.problems))
            self._ledger.skip("error", len(found.problems))
            cancelled = set(found.cancelled)
            self._cancelled += len(cancelled)
            self._cancel(cancelled, apply)
            known = self._of_run.keys() | {run.run_id for run in self._waiting} if self._waiting else self._of_run
            runs = [run for run in found.runs if run.run_id not in known and run.run_id not in cancelled]
            self._put(runs, apply)
            self._last = read.state or self._last
        self._put((), apply)
        self._note_held()

    def remove_settled(self, cursor_ms: int, now_s: float, apply: Callable[[ChangeBatch], None]) -> None:
        """Take jobs out of the wheel whose run is settled. ``cursor_ms``: every fire time up to it was offered."""
        if not len(self) or now_s - self._settled_s < SETTLE_EVERY_S:
            return
        self._settled_s = now_s
        fired = self._jobs.ids[self._jobs.fires_ms <= cursor_ms]
        if len(fired):
            self._remove(fired[~self._backlogs.holds(fired)], apply)

    def resume(self) -> Resume | None:
        """Return what the next beat needs to go on; None if one-off runs were never read."""
        if self._last is None:
            return self._stored
        resume = self._last.before(self._oldest_s())
        if self._feed is not None:
            self._feed.settled_s = resume.closed_s
        return resume

    def as_json(self, now_ms: int) -> dict[str, Any] | None:
        """Return the part ``later`` of the status document; None if the database keeps no one-off runs."""
        if self._feed is None:
            return None
        counts, now_s = self._feed.counts, now_ms // 1000
        return {
            "in_wheel": len(self),
            "ahead": None if counts is None else counts.ahead.runs,
            "precision": None if counts is None else counts.ahead.precision.value,
            "inserted": None if counts is None else counts.inserted,
            "cancelled": self._cancelled,
            "oldest_s": max(0, now_s - min(self._oldest_s(), default=now_s)),
        }

    def _oldest_s(self) -> list[int]:
        """Return the oldest second with an unsettled run; empty if there is none."""
        seconds = [int(self._jobs.seconds.min())] if len(self) else []
        seconds += [run.second for run in self._waiting]
        return [min(seconds)] if seconds else []

    def _put(self, runs: Sequence[DueRun], apply: Callable[[ChangeBatch], None]) -> None:
        """Put runs into the wheel, after those that wait; without room they wait, and the feed reads no more."""
        if not (runs or self._waiting):
            return
        due, room = [*self._waiting, *runs], max(0, self._room())
        if len(due) > room and not self._waiting:
            logger.warning(
                "beat: One-off runs wait for room in the wheel, which holds as many jobs as wheelbeat_max_jobs allows"
            )
        self._waiting = due[room:]
        if due[:room]:
            apply(ChangeBatch(self._batch(due[:room]), _NONE))

    def _note_held(self) -> None:
        if self._feed is not None:
            size = self._size + sum(run.size for run in self._waiting)
            self._feed.held = Held(len(self) + len(self._waiting), size)

    def _cancel(self, run_ids: Collection[str], apply: Callable[[ChangeBatch], None]) -> None:
        if self._waiting and run_ids:
            self._waiting = [run for run in self._waiting if run.run_id not in run_ids]
        known = np.array([self._of_run[run_id] for run_id in run_ids if run_id in self._of_run], np.int64)
        if len(known):
            self._backlogs.drop(known, "cancelled")
            self._remove(known, apply)

    def _remove(self, job_ids: Int64s, apply: Callable[[ChangeBatch], None]) -> None:
        if not len(job_ids):
            return
        apply(ChangeBatch(self._batch(()), np.sort(job_ids)))
        gone = self._jobs.are(job_ids)
        self._size -= int(self._jobs.sizes[gone].sum())
        self._jobs = self._jobs.at(~gone)
        for run_id in map(self._run_ids.pop, job_ids.tolist()):
            del self._of_run[run_id]
        self._note_held()

    def _batch(self, runs: Sequence[DueRun]) -> DefinitionBatch:
        n = len(runs)
        ids, fires_ms = self._add(runs)
        routes: dict[Route, int] = {}
        route_of = [routes.setdefault(run.route, len(routes)) for run in runs]
        names = [route.task.encode() for route in routes]
        name_lengths = np.array(list(map(len, names)), np.uint16)
        flags = flags_of(enabled=True, one_off=False, misfire=Misfire.LATEST)
        payloads = [run.payload for run in runs]
        zeros = np.zeros(n, np.int64)
        return DefinitionBatch(
            ids=ids,
            kind=np.full(n, Kind.ONCE, np.uint8),
            interval_ms=zeros,
            anchor_ms=fires_ms,
            offset_ms=zeros,
            cron_index=np.full(n, -1, np.int32),
            flags=np.full(n, flags, np.uint16),
            route_index=np.array(route_of, np.uint32),
            start_ms=np.full(n, ALWAYS_MS),
            end_ms=np.full(n, NEVER_MS),
            incident_interval_ms=zeros,
            incident_until_ms=zeros,
            effective_from_ms=zeros,
            payload=b"".join(payloads),
            lengths=np.fromiter(map(len, payloads), np.uint32, n),
            names=b"".join(map(names.__getitem__, route_of)),
            name_lengths=name_lengths[route_of] if n else name_lengths,
            routes=list(routes),
        )

    def _add(self, runs: Sequence[DueRun]) -> tuple[Int64s, Int64s]:
        """Note runs that come into the wheel; returns their job ids and fire times.

        The shard of an id is ``second & 255``, so that one beat of several sends a second whole.
        """
        seconds = np.array([run.second for run in runs], np.int64)
        ids = LATER_IDS_FROM | np.arange(self._next, self._next + len(runs)) << 8 | seconds & 0xFF
        self._next += len(runs)
        fires_ms = np.array([run.fire_ms for run in runs], np.int64)
        sizes = np.array([run.size for run in runs], np.int64)
        self._jobs = self._jobs.plus(_InWheel(ids, fires_ms, seconds, sizes))
        self._size += int(sizes.sum())
        run_ids, job_ids = [run.run_id for run in runs], ids.tolist()
        self._of_run.update(zip(run_ids, job_ids, strict=True))
        self._run_ids.update(zip(job_ids, run_ids, strict=True))
        return ids, fires_ms
