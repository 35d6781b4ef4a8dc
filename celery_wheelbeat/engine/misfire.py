"""Misfires: what is offered of the fire times that passed while nobody could send them. One rule for every gap.

``settle`` is pure: stretches of time and schedules go in, the runs to offer and the number of runs to account for come
out. ``Misfires`` writes the account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.jobs.definitions import MISFIRE_SHIFT, Flag, Misfire, Offer
from celery_wheelbeat.schedules.columns import NOT_CRON, ScheduleColumns, fires_between, next_fires, spans
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from celery_wheelbeat.engine.ledger import Ledger
    from celery_wheelbeat.engine.shards import Shards
    from celery_wheelbeat.jobs.definitions import DefinitionBatch, DueBatch
    from celery_wheelbeat.jobs.routes import RouteTable
    from celery_wheelbeat.schedules.cron import CronTable
    from celery_wheelbeat.schedules.kinds import Int64s


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
        schedules = batch.schedules().take(positions)
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


class LateOnce:
    """What is owed. Owned by the engine."""

    def __init__(self) -> None:
        self._owed: dict[int, int] = {}
        """Job id → instant in ms."""

    def note(self, batch: DefinitionBatch, shards: Shards, after_ms: int, until_ms: int) -> None:
        """Note instants in (``after_ms``, ``until_ms``]; to be called before ``shards`` takes the definitions in."""
        once = batch.kind == Kind.ONCE
        if not once.any():
            return
        at_ms = batch.anchor_ms + batch.offset_ms
        late = once & ((batch.flags & Flag.ENABLED) > 0) & (at_ms > after_ms) & (at_ms <= until_ms)
        late &= (at_ms >= batch.start_ms) & (at_ms < batch.end_ms)
        late &= (at_ms >= batch.effective_from_ms) | (policies(batch.flags) != Misfire.SKIP.value)
        for position in np.flatnonzero(late).tolist():
            job_id, instant_ms = int(batch.ids[position]), int(at_ms[position])
            if shards.once_of(job_id) != instant_ms:
                self._owed[job_id] = instant_ms

    def take(self, shards: Shards, cursor_ms: int) -> list[DueBatch]:
        """Return the runs due by ``cursor_ms``, once, in order; a job that has another instant by now is owed none."""
        due = sorted((at_ms, job_id) for job_id, at_ms in self._owed.items() if at_ms <= cursor_ms)
        for _, job_id in due:
            del self._owed[job_id]
        wanted = [(job_id, at_ms) for at_ms, job_id in due if shards.once_of(job_id) == at_ms]
        ids, fires = np.array(wanted, np.int64).reshape(-1, 2).T
        return shards.batches(ids, fires, Offer.MISFIRE) if wanted else []
