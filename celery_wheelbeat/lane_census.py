"""Lane census: how many enabled jobs each kind has, and how many need more than an envelope, by reason.

Counts a few shards at each look, so that no look costs more for millions of jobs than for some hundred thousand. What
is kept of a shard is no longer than its jobs, however many kinds there are.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.lane_rules import apart_by_reason, kinds
from celery_wheelbeat.stored_rows import ENABLED

if TYPE_CHECKING:
    from celery_wheelbeat.engine import Engine
    from celery_wheelbeat.jobs import Int64s
    from celery_wheelbeat.stored_rows import Rows

ROWS_PER_LOOK = 500_000


class ByKind(NamedTuple):
    """Jobs that take the lane of their kind (``lane_rules.kinds``)."""

    kinds: Int64s
    """Ascending; a kind of several shards stands here several times where shards are put together."""
    jobs: Int64s


class _Counts(NamedTuple):
    by_kind: ByKind
    apart: Counter[str]
    """Jobs that do not take the lane of their kind, by reason."""


class LaneCensus:
    """See the module. Owned by the scheduling thread."""

    def __init__(self, engine: Engine) -> None:
        self.rounds = 0
        """How often every shard was counted."""
        self._engine = engine
        self._counted: dict[int, _Counts] = {}
        """By number of the shard."""
        self._at = 0
        """Number of the shard that is counted next."""

    def look(self) -> None:
        """Go on counting, up to about ``ROWS_PER_LOOK`` rows, and no shard twice."""
        shards, rows = self._engine.shards, 0
        for _ in range(len(shards)):
            number = self._at % len(shards)
            counted = shards[number].table.rows
            self._counted[number] = _count(counted)
            rows += len(counted.ids)
            self._at = (number + 1) % len(shards)
            self.rounds += self._at == 0
            if rows >= ROWS_PER_LOOK:
                break

    def by_kind(self) -> ByKind:
        """Return the jobs that take the lane of their kind, shard after shard."""
        counts = [counts.by_kind for counts in self._counted.values()] or [_NOBODY]
        return ByKind(*(np.concatenate(column) for column in zip(*counts, strict=True)))

    def apart(self) -> Counter[str]:
        """Return the jobs that need more than an envelope, by reason."""
        total = Counter[str]()
        for counts in self._counted.values():
            total.update(counts.apart)
        return +total


_NOBODY = ByKind(np.empty(0, np.int64), np.empty(0, np.int64))


def _count(rows: Rows) -> _Counts:
    stays = (rows.flags & ENABLED) > 0
    apart = Counter[str]()
    for reason, found in apart_by_reason(rows.ids, rows.flags):
        apart[reason] = int(np.count_nonzero(stays & found))
        stays &= ~found
    return _Counts(_by_kind(kinds(rows.route[stays], rows.flags[stays])), apart)


def _by_kind(found: Int64s) -> ByKind:
    if found.max(initial=0) > 4 * len(found):  # few jobs of many kinds: a list of all kinds would be far longer
        return ByKind(*np.unique(found, return_counts=True))
    jobs = np.bincount(found)
    there = np.flatnonzero(jobs)
    return ByKind(there, jobs[there])
