"""Misfires: what is offered of the fire times that passed while nobody could send them. One rule for every gap.

Pure: a stretch of time and the schedules go in, the runs to offer and the number of runs to account for come out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.jobs import MISFIRE_SHIFT, Misfire
from celery_wheelbeat.schedule_columns import NOT_CRON, fires_between, next_fires, spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from celery_wheelbeat.cron import CronTable
    from celery_wheelbeat.jobs import Int64s
    from celery_wheelbeat.schedule_columns import ScheduleColumns


class MisfireRule(NamedTuple):
    """The numbers in the rule."""

    gap_ms: int
    """``auto`` offers the newest missed run if its successor on the grid is at least this far from it."""
    deadline_ms: int | None
    """``latest`` offers a cron's newest missed run only while it is no older than this."""
    all_max: int
    """``all`` offers at most this many runs of one gap (of every job the newest), at least one for each job."""


class Gap(NamedTuple):
    """A stretch of time (``after_ms``, ``until_ms``] for each of ``n`` jobs."""

    schedules: ScheduleColumns
    flags: NDArray[np.uint16]
    after_ms: Int64s
    until_ms: Int64s

    def take(self, positions: NDArray[np.intp]) -> Gap:
        """Return the gap of the jobs at ``positions``."""
        return Gap(
            self.schedules.take(positions), self.flags[positions], self.after_ms[positions], self.until_ms[positions]
        )


class Missed(NamedTuple):
    """What a gap holds."""

    positions: NDArray[np.intp]
    """Jobs of the offered runs, as positions in the columns that were given."""
    fire_ms: Int64s
    """Fire times of the offered runs, ascending."""
    expected: int
    """Fire times in the gap; those that are not offered are skipped."""

    @property
    def skipped(self) -> int:
        """Fire times that are not offered."""
        return self.expected - len(self.fire_ms)


def settle(gap: Gap, rule: MisfireRule, crons: CronTable) -> Missed:
    """Apply each job's policy to its fire times in the gap."""
    span = spans(gap.schedules, gap.after_ms, gap.until_ms, crons)
    missed = np.flatnonzero(span.count)
    newest = span.newest_ms[missed]
    offered = _newest_offered(gap.take(missed), newest, rule, crons)
    positions, fires = missed[offered], newest[offered]
    every = missed[_policies(gap.flags[missed]) == Misfire.ALL]
    if len(every):
        part = _newest_of_all(gap.take(every), span.count[every], rule.all_max, crons)
        chosen, all_fires = fires_between(part.schedules, part.after_ms, part.until_ms, crons)
        positions, fires = np.concatenate((positions, every[chosen])), np.concatenate((fires, all_fires))
    order = np.argsort(fires, kind="stable")
    return Missed(positions[order], fires[order], int(span.count.sum()))


def _policies(flags: NDArray[np.uint16]) -> NDArray[np.uint16]:
    return (flags >> MISFIRE_SHIFT) & 3


def _newest_offered(gap: Gap, newest: Int64s, rule: MisfireRule, crons: CronTable) -> NDArray[np.bool_]:
    policies = _policies(gap.flags)
    offered = policies == Misfire.LATEST
    if rule.deadline_ms is not None:
        offered &= (gap.schedules.cron_index == NOT_CRON) | (gap.until_ms - newest <= rule.deadline_ms)
    auto = np.flatnonzero(policies == Misfire.AUTO)
    if len(auto):
        successor = next_fires(gap.schedules.take(auto).endless(), newest[auto], crons)
        offered[auto] = successor - newest[auto] >= rule.gap_ms
    return offered


def _newest_of_all(gap: Gap, counts: Int64s, all_max: int, crons: CronTable) -> Gap:
    """Begin the gap of each job later, so that none has more than its share of ``all_max`` fire times, by bisection."""
    if int(counts.sum()) <= all_max:
        return gap
    share = max(1, all_max // len(counts))
    low, high = gap.after_ms, np.where(counts > share, gap.until_ms, gap.after_ms)
    while (high - low > 1).any():
        middle = (low + high) // 2
        fits = spans(gap.schedules, middle, gap.until_ms, crons).count <= share
        high, low = np.where(fits, middle, high), np.where(fits, low, middle)
    return gap._replace(after_ms=high)
