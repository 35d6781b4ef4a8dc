"""Deferred runs: the broker refused them for now, and they wait ``PAUSE_S`` outside the queues.

One full queue therefore delays no other run. The newest refused run of each job is kept, and every one of
``misfire=all`` jobs, up to the backlog's limit. The cost of a call grows with the runs refused or due for retry, not
with the number deferred. The backlog does the accounting.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.dispatch.pending import PendingRun, PendingRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from celery_wheelbeat.schedules.kinds import Int64s

PAUSE_S = 1.0


class _Retry(NamedTuple):
    number: int
    job_id: int
    again_s: float


class DeferredRuns:
    """The deferred runs of one backlog, by job."""

    def __init__(self) -> None:
        self._jobs: dict[int, dict[int, PendingRun]] = {}
        """Job id → number of the refusal → run."""
        self._line: deque[_Retry] = deque()
        """In the order of retry; runs that have left ``_jobs`` meanwhile are ignored."""
        self._count = 0
        self._next = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PendingRun]:
        for of_job in self._jobs.values():
            yield from of_job.values()

    def add(
        self, refused: PendingRuns, now_s: float, *, keep_all: Callable[[Int64s], NDArray[np.bool_]], limit: int
    ) -> PendingRuns:
        """Defer refused runs for ``PAUSE_S``; returns the runs that are no longer kept."""
        for number, run in enumerate(refused.singly(), self._next):
            self._jobs.setdefault(run.job_id, {})[number] = run
            self._line.append(_Retry(number, run.job_id, now_s + PAUSE_S))
        self._next += len(refused.ids)
        self._count += len(refused.ids)
        gone = self._remove_older(refused.ids, keep_all)
        while self._count > limit:
            gone += self._remove(self._line.popleft())
        return PendingRuns.of(gone)

    def take_due(self, now_s: float) -> PendingRuns:
        """Remove and return the runs whose pause is over."""
        due: list[PendingRun] = []
        while self._line and self._line[0].again_s <= now_s:
            due += self._remove(self._line.popleft())
        return PendingRuns.of(due)

    def remove(self, ids: Int64s) -> PendingRuns:
        """Remove and return the runs of these jobs."""
        gone = [run for job_id in ids.tolist() for run in self._jobs.pop(job_id, {}).values()]
        self._count -= len(gone)
        return PendingRuns.of(gone)

    def clear(self) -> None:
        """Remove all runs."""
        self._jobs.clear()
        self._line.clear()
        self._count = 0

    def _remove_older(self, job_ids: Int64s, keep_all: Callable[[Int64s], NDArray[np.bool_]]) -> list[PendingRun]:
        """Remove and return all but the newest run of each job without ``misfire=all``."""
        ids = sorted(set(job_ids.tolist()))
        several = np.array([job_id for job_id in ids if len(self._jobs[job_id]) > 1], np.int64)
        if not several.size:
            return []
        older: list[PendingRun] = []
        for job_id in several[~keep_all(several)].tolist():
            of_job = self._jobs[job_id]
            newest = max(of_job, key=lambda number: of_job[number].fire_ms)
            older += (run for number, run in of_job.items() if number != newest)
            self._count -= len(of_job) - 1
            self._jobs[job_id] = {newest: of_job[newest]}
        return older

    def _remove(self, retry: _Retry) -> list[PendingRun]:
        """Remove a run and return it; empty if it had left before."""
        of_job = self._jobs.get(retry.job_id, {})
        run = of_job.pop(retry.number, None)
        if run is None:
            return []
        if not of_job:
            del self._jobs[retry.job_id]
        self._count -= 1
        return [run]
