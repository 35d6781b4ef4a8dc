"""Misfires: the one rule for fire times that passed while they could not be sent.

``settle`` is pure: it takes schedules and gaps, and returns the runs to offer and the number of fire times to account
for. ``Misfires`` applies it and writes to the ledger. ``LateOnce`` holds one-time jobs that arrive too late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from celery_wheelbeat.engine.packing import ENABLED, ONCE, POLLED
from celery_wheelbeat.engine.sharing.shard_marks import UNKNOWN_MS, ShardMarks
from celery_wheelbeat.jobs.definitions import MISFIRE_SHIFT, Flag, Misfire, Offer
from celery_wheelbeat.schedules.columns import NOT_CRON, ScheduleColumns, fires_between, next_fires, spans
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from celery_wheelbeat.engine.ledger import Ledger
    from celery_wheelbeat.engine.shard import Shard
    from celery_wheelbeat.engine.shards import Shards
    from celery_wheelbeat.engine.sharing.followed import KeptRuns
    from celery_wheelbeat.engine.sharing.share import Share
    from celery_wheelbeat.jobs.definitions import DefinitionBatch, DueBatch
    from celery_wheelbeat.jobs.routes import RouteTable
    from celery_wheelbeat.schedules.cron import CronTable
    from celery_wheelbeat.schedules.kinds import Int64s


Marks: TypeAlias = "Mapping[str, ShardMarks | int | None]"
"""By destination: a mark of each shard, or one for all of them."""
NO_MARK_MS = NEVER_MS
"""The mark of a destination without one (first start): nothing was missed."""


class MisfireRule(NamedTuple):
    """The parameters of the rule; times in ms."""

    gap_ms: int
    """``auto`` offers the newest missed run if the next fire time is at least this much later."""
    deadline_ms: int | None
    """``latest`` offers a cron's newest missed run only up to this age; None = any age."""
    all_max: int
    """``all`` offers at most this many runs of a job: the newest."""
    lookback_ms: int
    """Runs up to this long after a mark may have been sent before the restart."""


class Gap(NamedTuple):
    """``n`` jobs, each with the time (``after_ms``, ``until_ms``] in which it could not be sent."""

    schedules: ScheduleColumns
    flags: NDArray[np.uint16]
    after_ms: Int64s
    until_ms: Int64s

    def take(self, positions: NDArray[np.intp]) -> Gap:
        """Return the jobs at ``positions`` with their gaps."""
        return Gap(
            self.schedules.take(positions), self.flags[positions], self.after_ms[positions], self.until_ms[positions]
        )


class Missed(NamedTuple):
    """The result of ``settle``."""

    positions: NDArray[np.intp]
    """The job of each offered run, as a position in the columns of the ``Gap``."""
    fire_ms: Int64s
    """Fire times of the offered runs, ascending."""
    expected: int
    """Number of fire times in the gap, offered and skipped."""

    @property
    def skipped(self) -> int:
        """Number of fire times in the gap that are not offered."""
        return self.expected - len(self.fire_ms)


class Misfires:
    """Settles gaps and books them in the ledger: offered runs become due batches, the others are skipped."""

    def __init__(self, rule: MisfireRule, crons: CronTable, ledger: Ledger, share: Share) -> None:
        self._share = share
        self._rule = rule
        self._crons = crons
        self._ledger = ledger
        self.first_start = False
        """No earlier process left a mark, so the marks are the start of this process. Set by the owner of the marks."""

    def offer(self, shards: Shards, ids: Int64s, gap: Gap, reason: str) -> list[DueBatch]:
        """Settle the gap of the jobs ``ids`` and return the runs to offer; the others are skipped with ``reason``."""
        missed = settle(gap, self._rule, self._crons)
        self._ledger.expect(missed.expected)
        self._ledger.skip(reason, missed.skipped)
        if missed.skipped:
            begin_ms, end_ms = int(gap.after_ms.min()), int(gap.until_ms.max())
            self._ledger.last_skips.note_gap(reason, missed.skipped, begin_ms, end_ms)
        return shards.batches(ids[missed.positions], missed.fire_ms, Offer.MISFIRE)

    def offer_kept(self, shards: Shards, runs: KeptRuns) -> list[DueBatch]:
        """Offer runs that this process has followed and now answers for; those of deleted jobs are skipped."""
        due = shards.batches(*runs[:2], Offer.DUE, runs.step)
        self._ledger.expect(len(runs.ids))
        self._ledger.skip("removed", len(runs.ids) - sum(map(len, due)))
        return due

    def offer_unfollowed(self, shards: Shards, shard: Shard, after_ms: int, until_ms: int) -> list[DueBatch]:
        """Settle, as a restart does, (``after_ms``, ``until_ms``] of a shard that this process answers for now.

        Runs within ``lookback_ms`` are offered whatever the policy. One-time jobs are left to ``LateOnce``.
        """
        flags = shard.table.rows.flags
        rows = np.flatnonzero((flags & (ENABLED | POLLED | ONCE)) == ENABLED)
        ids, schedules = shard.table.ids(rows), shard.table.schedules(rows)
        begin, end = np.full(len(ids), after_ms), np.full(len(ids), until_ms)
        begin[schedules.interval_ms <= 0] = max(after_ms, shards.relived.settled_ms)
        certain = np.clip(begin + self._rule.lookback_ms, begin, np.maximum(begin, end))
        early, fires = fires_between(schedules, begin, certain, self._crons)
        self._ledger.expect(len(fires))
        due = shards.batches(ids[early], fires, Offer.MISFIRE)
        return due + self.offer(shards, ids, Gap(schedules, flags[rows], certain, end), "restart")

    def offer_after_start(
        self, shards: Shards, batch: DefinitionBatch, mark_ms: Int64s, cursor_ms: int
    ) -> list[DueBatch]:
        """Settle the fire times of each enabled job in (its mark, ``cursor_ms``], none before its ``effective_from``.

        Runs within ``lookback_ms`` after the mark are offered whatever the policy. They may have been sent already, so
        they are not booked as expected, except at a first start, where no process can have sent them. An unfinished
        one-time job is offered regardless of age, unless its policy is ``skip``: it may have been stored late, or its
        run may have died with a process. What jobs of followed shards have missed is settled when a shard is taken.
        """
        wanted = (mark_ms != NO_MARK_MS) & ((batch.flags & Flag.ENABLED) > 0)
        if not self._share.whole:
            wanted &= self._share.has(batch.ids)
            self._share.followed.miss(~self._share.mask, ALWAYS_MS, cursor_ms)
        positions = np.flatnonzero(wanted)
        if not len(positions):
            return []
        ids, mark_ms = batch.ids[positions], mark_ms[positions]
        schedules = batch.schedules().take(positions)
        begin = np.maximum(mark_ms, batch.effective_from_ms[positions] - 1)
        repeats = schedules.interval_ms > 0
        begin[~repeats] = np.maximum(begin[~repeats], shards.relived.settled_ms)
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
    """Apply the misfire policy of each job to its fire times in the gap."""
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
    """Return the misfire policy of each job, a value of ``Misfire``."""
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
    """Return, by bisection, the earliest instant after which each job has at most ``all_max`` fire times in its gap."""
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


def marks_of(batch: DefinitionBatch, marks: Marks, routes: RouteTable) -> Int64s:
    """Return the mark of each job's destination and shard, ``NO_MARK_MS`` if there is none."""
    mark_of = np.full(int(batch.route_index.max(initial=0)) + 1, NO_MARK_MS)
    by_shard: list[tuple[int, ShardMarks]] = []
    for index in np.flatnonzero(np.bincount(batch.route_index)).tolist() if marks else ():
        known = marks.get(routes[index].destination)
        if isinstance(known, ShardMarks):
            by_shard.append((index, known))
        elif known is not None:
            mark_of[index] = known
    found: Int64s = mark_of[batch.route_index]
    for index, shard_marks in by_shard:
        where = batch.route_index == index
        of_job = shard_marks.of(batch.ids[where])
        found[where] = np.where(of_job == UNKNOWN_MS, NO_MARK_MS, of_job)
    return found


class LateOnce:
    """One-time jobs that arrived when their instant had already passed.

    A run is kept only if no earlier definition can have offered it. After a backward step of the clock the wheel
    suppresses one-time jobs up to the old time; new ones in that range are kept here until the cursor reaches them.
    """

    def __init__(self, share: Share) -> None:
        self._share = share
        self._owed: dict[int, int] = {}
        """Job id → instant in ms."""

    def owe(self, shards: Shards, ids: Int64s, fires_ms: Int64s) -> None:
        """Record the one-time jobs among runs of followed shards that are neither handed out nor kept."""
        once = shards.once_of(ids) == fires_ms
        self._owed.update(zip(ids[once].tolist(), fires_ms[once].tolist(), strict=True))

    def note(self, batch: DefinitionBatch, shards: Shards, after_ms: int, until_ms: int) -> None:
        """Record the new instants in (``after_ms``, ``until_ms``]. Call before ``shards`` contains ``batch``.

        In followed shards, earlier instants too: marks do not tell whether such a job was sent.
        """
        once = batch.kind == Kind.ONCE
        if not once.any():
            return
        at_ms = batch.anchor_ms + batch.offset_ms
        late = once & ((batch.flags & Flag.ENABLED) > 0) & (at_ms <= until_ms)
        late &= (at_ms > after_ms) | ~self._share.has(batch.ids)
        late &= (at_ms >= batch.start_ms) & (at_ms < batch.end_ms)
        late &= (at_ms >= batch.effective_from_ms) | (policies(batch.flags) != Misfire.SKIP.value)
        ids, instants_ms = batch.ids[late], at_ms[late]
        new = shards.once_of(ids) != instants_ms
        self._owed.update(zip(ids[new].tolist(), instants_ms[new].tolist(), strict=True))

    def take(self, shards: Shards, cursor_ms: int) -> list[DueBatch]:
        """Remove and return the runs due by ``cursor_ms``, in order, except those whose job has a new instant.

        Jobs of followed shards are kept until they are finished.
        """
        due = sorted((at_ms, job_id) for job_id, at_ms in self._owed.items() if at_ms <= cursor_ms)
        fires, ids = np.array(due, np.int64).reshape(-1, 2).T
        wanted = shards.once_of(ids) == fires
        stays = wanted & ~self._share.has(ids)
        for job_id in ids[~stays].tolist():
            del self._owed[job_id]
        wanted &= ~stays
        return shards.batches(ids[wanted], fires[wanted], Offer.MISFIRE) if wanted.any() else []
