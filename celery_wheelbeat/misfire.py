"""Misfires: what is offered of the fire times that passed while nobody could send them. One rule for every gap.

``settle`` is pure: stretches of time and schedules go in, the runs to offer and the number of runs to account for come
out. ``Misfires`` writes the account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.jobs import ALWAYS_MS, MISFIRE_SHIFT, NEVER_MS, Flag, Kind, Misfire, Offer
from celery_wheelbeat.schedule_columns import NOT_CRON, ScheduleColumns, fires_between, next_fires, spans

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from celery_wheelbeat.cron import CronTable
    from celery_wheelbeat.jobs import DefinitionBatch, DueBatch, Int64s
    from celery_wheelbeat.ledger import Ledger
    from celery_wheelbeat.routes import RouteTable
    from celery_wheelbeat.shards import Shards


NO_MARK_MS = NEVER_MS
"""Mark of a destination at its first start: nothing was missed."""


class MisfireRule(NamedTuple):
    """The numbers in the rule."""

    gap_ms: int
    """``auto`` offers the newest missed run if its successor on the grid is at least this far from it."""
    deadline_ms: int | None
    """``latest`` offers a cron's newest missed run only while it is no older than this."""
    all_max: int
    """``all`` offers at most this many runs of one job, the newest."""
    lookback_ms: int
    """What follows a mark this closely may have been sent before the restart."""


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


class Misfires:
    """Settles gaps against the ledger: what is offered becomes due batches, the rest is skipped with a reason."""

    def __init__(self, rule: MisfireRule, crons: CronTable, ledger: Ledger) -> None:
        self._rule = rule
        self._crons = crons
        self._ledger = ledger
        self.first_start = False
        """The marks are where this process began, as no former one has left any. Set by whoever knows the marks."""

    def offer(self, shards: Shards, ids: Int64s, gap: Gap, reason: str) -> list[DueBatch]:
        """Settle the gap of the jobs ``ids``; what is not offered is skipped for ``reason``."""
        missed = settle(gap, self._rule, self._crons)
        self._ledger.expect(missed.expected)
        self._ledger.skip(reason, missed.skipped)
        if missed.skipped:
            begin_ms, end_ms = int(gap.after_ms.min()), int(gap.until_ms.max())
            self._ledger.last_skips.note_gap(reason, missed.skipped, begin_ms, end_ms)
        return shards.batches(ids[missed.positions], missed.fire_ms, Offer.MISFIRE)

    def offer_after_start(
        self, shards: Shards, batch: DefinitionBatch, mark_ms: Int64s, cursor_ms: int
    ) -> list[DueBatch]:
        """Settle what each enabled job missed in (its mark, ``cursor_ms``], never before its ``effective_from``.

        The first moments after the mark are offered whatever the policy. They may have been sent, so they stand outside
        the account; at a first start nobody can have sent them, and they count as all runs do. A once that is not
        finished is offered however long ago it was due: it may have been stored late, or its run died with a process.
        """
        positions = np.flatnonzero((mark_ms != NO_MARK_MS) & ((batch.flags & Flag.ENABLED) > 0))
        if not len(positions):
            return []
        ids, mark_ms = batch.ids[positions], mark_ms[positions]
        schedules = ScheduleColumns.of(batch).take(positions)
        begin = np.maximum(mark_ms, batch.effective_from_ms[positions] - 1)
        repeats = schedules.interval_ms > 0
        begin[~repeats] = np.maximum(begin[~repeats], shards.relived.until_ms)  # only intervals live through time again
        once = (batch.kind[positions] == Kind.ONCE) & (policies(batch.flags[positions]) != Misfire.SKIP.value)
        begin[once] = ALWAYS_MS
        end = np.full(len(ids), cursor_ms)
        certain_from = np.minimum(mark_ms + self._rule.lookback_ms, end)
        early, fires = fires_between(schedules, begin, certain_from, self._crons)
        if self.first_start:
            self._ledger.expect(len(fires))
        due = shards.batches(ids[early], fires, Offer.MISFIRE if self.first_start else Offer.REOFFERED)
        gap = Gap(schedules, batch.flags[positions], np.maximum(begin, certain_from), end)
        return due + self.offer(shards, ids, gap, "restart")


def settle(gap: Gap, rule: MisfireRule, crons: CronTable) -> Missed:
    """Apply each job's policy to its fire times in the gap."""
    span = spans(gap.schedules, gap.after_ms, gap.until_ms, crons)
    missed = np.flatnonzero(span.counts)
    newest = span.newest_ms[missed]
    offered = _newest_offered(gap.take(missed), newest, rule, crons)
    positions, fires = missed[offered], newest[offered]
    every = missed[policies(gap.flags[missed]) == Misfire.ALL.value]
    if len(every):
        after_ms = _newest_of_all(gap.take(every), span.counts[every], rule.all_max, crons)
        chosen, all_fires = fires_between(gap.schedules.take(every), after_ms, gap.until_ms[every], crons)
        positions, fires = np.concatenate((positions, every[chosen])), np.concatenate((fires, all_fires))
    order = np.argsort(fires, kind="stable")
    return Missed(positions[order], fires[order], int(span.counts.sum()))


def policies(flags: NDArray[np.uint16]) -> NDArray[np.integer[Any]]:
    """Unpack the misfire policies of many jobs."""
    return (flags >> MISFIRE_SHIFT) & 3


def _newest_offered(gap: Gap, newest: Int64s, rule: MisfireRule, crons: CronTable) -> NDArray[np.bool_]:
    policy = policies(gap.flags)
    offered: NDArray[np.bool_] = policy == Misfire.LATEST.value
    if rule.deadline_ms is not None:
        offered &= (gap.schedules.cron_index == NOT_CRON) | (gap.until_ms - newest <= rule.deadline_ms)
    auto = np.flatnonzero(policy == Misfire.AUTO.value)
    if len(auto):
        successor = next_fires(gap.schedules.take(auto).endless(), newest[auto], crons)
        offered[auto] = successor - newest[auto] >= rule.gap_ms
    return offered


def _newest_of_all(gap: Gap, counts: Int64s, all_max: int, crons: CronTable) -> Int64s:
    """Return for each job an instant after which no more than ``all_max`` of its fire times are left, by bisection."""
    after_ms = gap.after_ms.copy()
    many = np.flatnonzero(counts > all_max)
    gap = gap.take(many)
    low, high = gap.after_ms, gap.until_ms
    while (high - low > 1).any():
        middle = (low + high) // 2
        fits = spans(gap.schedules, middle, gap.until_ms, crons).counts <= all_max
        high, low = np.where(fits, middle, high), np.where(fits, low, middle)
    after_ms[many] = high
    return after_ms


def marks_of(batch: DefinitionBatch, marks: Mapping[str, int | None], routes: RouteTable) -> Int64s:
    """Return the mark of each job's destination, ``NO_MARK_MS`` where there is none."""
    mark_of = np.full(int(batch.route_index.max(initial=0)) + 1, NO_MARK_MS)
    for index in np.flatnonzero(np.bincount(batch.route_index)).tolist() if marks else ():
        mark_ms = marks.get(routes[index].destination)
        mark_of[index] = NO_MARK_MS if mark_ms is None else mark_ms
    found: Int64s = mark_of[batch.route_index]
    return found
