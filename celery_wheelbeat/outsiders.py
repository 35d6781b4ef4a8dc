"""Outsiders: jobs whose runs leave the fast lane though others of their route stay, each for a reason of its own.

Beside what ``lane_rules`` says of a definition, this knows what only shows at run time: arguments that do not render,
entries that somebody holds, check-ins of Sentry. Owned by the scheduling thread; sends and moves nothing.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat import lane_rules
from celery_wheelbeat.envelopes import FIRST_FIRE_MS, LAST_FIRE_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from numpy.typing import NDArray

    from celery_wheelbeat.jobs import Int64s, UInt32s
    from celery_wheelbeat.pairs import Pairs
    from celery_wheelbeat.publishers.observers import CheckIns
    from celery_wheelbeat.shards import JobColumns

REMEMBERED_MAX = 100_000
"""Jobs that are remembered for what is odd about them; of more, each run is judged anew."""


class Outsiders:
    """See the module."""

    def __init__(
        self,
        names_of: Callable[[UInt32s], Iterable[str]],
        handed_out: Callable[[], frozenset[int]],
        check_ins: Callable[[], CheckIns | None],
    ) -> None:
        """``names_of``: refs → plain names; ``handed_out``: jobs whose entries somebody holds and may write to;
        ``check_ins``: whose runs Sentry checks in for, None = nobody's.
        """
        self.unfit: dict[int, str] = {}
        """Jobs that do not render, with the reason; the celery lane reports them as Celery does."""
        self._checked_in: set[int] = set()
        """Jobs that Sentry checks in for, as far as they were due and are remembered; for the report."""
        self._names_of = names_of
        self._handed_out = handed_out
        self._check_ins = check_ins

    def among(self, pairs: Pairs, jobs: JobColumns) -> NDArray[np.bool_]:
        """Say which runs have to leave; ``jobs`` are those of ``pairs``."""
        found = lane_rules.apart(pairs.ids, jobs.flags)
        found |= (pairs.fire_ms < FIRST_FIRE_MS) | (pairs.fire_ms > LAST_FIRE_MS)
        check_ins = self._check_ins()
        if check_ins is not None:
            (there,) = np.nonzero(jobs.enabled & ~found)
            watched = there[check_ins.of(self._names_of(jobs.ref[there]), jobs.interval[there])]
            found[watched] = True
            if len(self._checked_in) < REMEMBERED_MAX:
                self._checked_in.update(pairs.ids[watched].tolist())
        others = self._handed_out() | self.unfit.keys()
        if others:
            found |= np.isin(pairs.ids, np.fromiter(others, np.int64, len(others)))
        return found

    def note_unfit(self, found: Mapping[int, str]) -> None:
        """Remember jobs that do not render, with the reason."""
        room = max(0, REMEMBERED_MAX - len(self.unfit))
        self.unfit.update(islice(found.items(), room))

    def redefined(self, ids: Int64s) -> None:
        """Judge jobs anew: their definitions have changed."""
        if self.unfit or self._checked_in:
            changed = ids.tolist()
            self._checked_in.difference_update(changed)
            for job_id in changed:
                self.unfit.pop(job_id, None)

    def by_reason(self) -> Mapping[str, Collection[int]]:
        """Return the jobs that only run time shows, as far as they were due: reason → job ids, a job in one only."""
        held = self._handed_out()
        return {
            lane_rules.HANDED_OUT: held,
            lane_rules.CHECKED_IN: self._checked_in - held,
            lane_rules.UNFIT: self.unfit.keys() - self._checked_in - held,
        }
