"""Deferred runs: the broker refused them for now, and they wait ``PAUSE_S`` outside the queues.

One full queue therefore delays no other run. For the backlog, deferred runs are in flight. The newest refused run of
each job is kept, and every one of ``misfire=all`` jobs, up to the backlog's limit. The cost of a call grows with the
runs refused or due for retry, not with the number held.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_wheelbeat.dispatch.backlog import Backlog
    from celery_wheelbeat.dispatch.pending import PendingRun

PAUSE_S = 1.0


class _Refused(NamedTuple):
    token: int
    job_id: int
    again_s: float


class DeferredRuns:
    """The deferred runs of one lane, by job."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._jobs: dict[int, dict[int, int]] = {}
        """Job id → token → fire time."""
        self._line: deque[_Refused] = deque()
        """In the order of retry; runs that have left ``_jobs`` meanwhile are ignored."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def tokens(self) -> Iterator[int]:
        """Yield the tokens of the deferred runs."""
        for held in self._jobs.values():
            yield from held

    def hold(self, refused: Mapping[int, PendingRun], now_s: float) -> None:
        """Defer refused runs (token → pair) for ``PAUSE_S``; runs that are not kept are skipped(backlog)."""
        for token, pair in refused.items():
            self._jobs.setdefault(pair.job_id, {})[token] = pair.fire_ms
            self._line.append(_Refused(token, pair.job_id, now_s + PAUSE_S))
        self._count += len(refused)
        gone = self._older({pair.job_id for pair in refused.values()})
        while self._count > self._backlog.limit:
            first = self._line.popleft()
            if self._forget(first):
                gone.append(first.token)
        if gone:
            self._backlog.skip(gone, "backlog")

    def give_back(self, now_s: float) -> None:
        """Return runs whose pause is over to the backlog."""
        ripe = []
        while self._line and self._line[0].again_s <= now_s:
            first = self._line.popleft()
            if self._forget(first):
                ripe.append(first.token)
        if ripe:
            self._backlog.queue_again(ripe)

    def _older(self, job_ids: set[int]) -> list[int]:
        """Forget all but the newest run of each job without ``misfire=all``; returns the forgotten tokens."""
        several = np.array(sorted(job_id for job_id in job_ids if len(self._jobs[job_id]) > 1), np.int64)
        if not several.size:
            return []
        older: list[int] = []
        for job_id in several[~self._backlog.keep_all(several)].tolist():
            held = self._jobs[job_id]
            newest = max(held, key=held.__getitem__)
            older += (token for token in held if token != newest)
            self._count -= len(held) - 1
            self._jobs[job_id] = {newest: held[newest]}
        return older

    def _forget(self, refused: _Refused) -> bool:
        """Remove a run; returns whether it was still held."""
        held = self._jobs.get(refused.job_id, {})
        if held.pop(refused.token, None) is None:
            return False
        if not held:
            del self._jobs[refused.job_id]
        self._count -= 1
        return True
