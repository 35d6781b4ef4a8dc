"""Runs that the broker refused for now: they wait apart for a moment, so that one full queue holds up nobody else.

For the backlog they are still in flight. Of each job the newest refused run is kept, as while a destination is down;
of ``misfire=all`` every one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

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
        self._jobs: dict[int, list[_Refused]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    def hold(self, token: int, pair: Pair, now_s: float) -> None:
        """Keep a refused run for ``PAUSE_S``; older ones of the same job are skipped(backlog), unless all are kept."""
        held = [*self._jobs.get(pair.job_id, ()), _Refused(token, pair.fire_ms, now_s + PAUSE_S)]
        held.sort(key=lambda refused: refused.fire_ms)
        if len(held) > 1 and not self._backlog.keep_all(np.array([pair.job_id]))[0]:
            self._backlog.skip([refused.token for refused in held[:-1]], "backlog")
            del held[:-1]
        self._jobs[pair.job_id] = held

    def give_back(self, now_s: float) -> None:
        """Return to the backlog what has waited long enough."""
        ripe = [one.token for held in self._jobs.values() for one in held if one.again_s <= now_s]
        if ripe:
            left = {job: [one for one in held if one.again_s > now_s] for job, held in self._jobs.items()}
            self._jobs = {job_id: held for job_id, held in left.items() if held}
            self._backlog.give_back(ripe)
