"""Runs that the broker refused for now: they wait apart for a moment, so that one full queue holds up nobody else.

For the backlog they are still in flight. Of each job the newest refused run is kept, as while a destination is down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from celery_wheelbeat.backlog import Backlog
    from celery_wheelbeat.pairs import Pair

PAUSE_S = 1.0


class _Refused(NamedTuple):
    token: int
    fire_ms: int
    again_s: float


class Held:
    """Refused runs by job. Owned by the scheduling thread."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._jobs: dict[int, _Refused] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def hold(self, token: int, pair: Pair, now_s: float) -> None:
        """Keep a refused run for ``PAUSE_S``; an older one of the same job is skipped(backlog)."""
        refused = _Refused(token, pair.fire_ms, now_s + PAUSE_S)
        older = self._jobs.get(pair.job_id)
        if older is not None:
            older, refused = sorted((older, refused), key=lambda one: one.fire_ms)
            self._backlog.skip([older.token], "backlog")
        self._jobs[pair.job_id] = refused

    def give_back(self, now_s: float) -> None:
        """Return to the backlog what has waited long enough."""
        ripe = [job_id for job_id, refused in self._jobs.items() if refused.again_s <= now_s] if self._jobs else []
        if ripe:
            self._backlog.give_back([self._jobs.pop(job_id).token for job_id in ripe])
