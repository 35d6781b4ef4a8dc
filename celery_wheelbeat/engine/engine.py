"""The engine: computes which runs are due.

``load`` and ``apply`` take definitions, ``advance`` returns due runs. Every fire time of the share that passes is
entered in the ledger as expected, and as skipped with a reason if it is not offered. Invariant: once ``advance`` has
caught up, every enabled job is armed for its first fire time after the cursor tick. The engine must never arm relative
to ``now``: the slots between the cursor and now are not emptied yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.engine import ApplyReport, EngineConfig, EngineStats
from celery_wheelbeat.engine.misfire import Gap, LateOnce, MisfireRule, Misfires, marks_of, policies
from celery_wheelbeat.engine.packing import ENABLED, POLLED, encode
from celery_wheelbeat.engine.poll_lane import PolledJobs, PollLane
from celery_wheelbeat.engine.shard import Ticks
from celery_wheelbeat.engine.shards import JobView, Reached, Relived, Shards, ids_of
from celery_wheelbeat.engine.sharing.followed import KeptRuns
from celery_wheelbeat.engine.sharing.share import Share
from celery_wheelbeat.engine.watchdog import Watchdog
from celery_wheelbeat.jobs.definitions import DueBatch, Misfire, Offer
from celery_wheelbeat.jobs.routes import RouteTable
from celery_wheelbeat.schedules.columns import ScheduleColumns, next_fires, spans
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.engine.ledger import Ledger
    from celery_wheelbeat.engine.misfire import Marks
    from celery_wheelbeat.engine.shard import Shard
    from celery_wheelbeat.engine.watchdog import SweepReport
    from celery_wheelbeat.jobs.definitions import ChangeBatch, DefinitionBatch
    from celery_wheelbeat.schedules.cron import CronTable
    from celery_wheelbeat.schedules.intervals import Bounded
    from celery_wheelbeat.schedules.kinds import Int64s

_NEVER_RELIVED = Relived()
__all__ = ["Engine", "EngineConfig", "JobView"]


class Engine:
    """See the module. ``crons`` is shared with the threads that compile definitions, ``ledger`` with dispatch."""

    def __init__(self, config: EngineConfig, crons: CronTable, ledger: Ledger, jobs: PolledJobs | None = None) -> None:
        """``jobs``: those of the poll lane; by default they are bounded by steps but not by time."""
        self.config = config
        self.crons = crons
        self.ledger = ledger
        self.routes = RouteTable()
        self.cursor = 0
        """The last processed tick."""
        ticks = Ticks(config.tick_ms, config.window_ms // config.tick_ms)
        self.shards = Shards(config.shards, 0, ticks, crons)
        self.share = Share(config.shards, ledger, config.backlog_max)
        self.poll_lane = PollLane(PolledJobs(lambda: 0.0) if jobs is None else jobs, self.share)
        self._watchdog = Watchdog(self.shards, self.poll_lane, crons, ledger, self.share)
        self._replay_until = 0
        self._shortest_ms = config.tick_ms
        """Lower bound of all intervals so far."""
        self._late_once = LateOnce(self.share)
        self._refused = 0
        rule = MisfireRule(config.misfire_gap_ms, config.starting_deadline_ms, config.all_max, config.lookback_ms)
        self.misfires = Misfires(rule, crons, ledger, self.share)

    def start(self, now_ms: int, relived: Relived = _NEVER_RELIVED) -> None:
        """Set the cursor to the last tick at or before ``now_ms``; call once, before the first job is added.

        ``relived``: what the previous process knew of backward steps of the clock.
        """
        self.cursor = self._replay_until = now_ms // self.config.tick_ms
        self.shards.relived = relived
        for shard in self.shards:
            shard.rebuild(self.cursor)
            shard.recount.restart(self.cursor_ms, self._settled_ms, shard.table)

    @property
    def cursor_ms(self) -> int:
        """End of the last processed tick: every fire time up to here was offered or skipped."""
        return self.cursor * self.config.tick_ms

    @property
    def relived(self) -> Relived:
        """What is known of backward steps of the clock."""
        return self.shards.relived

    @property
    def reached(self) -> Reached:
        """The current position of the wheel."""
        return Reached(self.cursor_ms, self.shards.relived)

    def expect(self, jobs: int) -> None:
        """Reserve capacity for a load of about ``jobs`` jobs."""
        share = jobs // len(self.shards)
        for shard in self.shards:
            shard.table.reserve(share + share // 64)

    def load(self, batch: DefinitionBatch, marks: Marks) -> list[DueBatch]:
        """Add jobs of a snapshot, settle what each missed since its destination's mark, and return the runs to offer.

        No mark = first start of that destination: nothing was missed. The fast path needs ids that ascend from call to
        call. What jobs of followed shards have missed is settled when their shard is taken.
        """
        batch = self._within_limit(batch)
        self._late_once.note(batch, self.shards, self.cursor_ms, self._settled_ms)
        self._insert(batch, loading=True)
        return self.misfires.offer_after_start(self.shards, batch, marks_of(batch, marks, self.routes), self.cursor_ms)

    def apply(self, changes: ChangeBatch) -> ApplyReport:
        """Apply ``changes``; jobs are armed strictly after the cursor tick. Idempotent.

        A ``Once`` whose instant has already passed is handed out by the next ``advance``.
        """
        deleted = self._remove(changes.deleted_ids)
        accepted = self._within_limit(changes.upserts)
        refused = np.setdiff1d(changes.upserts.ids, accepted.ids).tolist()
        self._late_once.note(accepted, self.shards, ALWAYS_MS, self._settled_ms)
        updated = self._insert(accepted)
        return ApplyReport(len(accepted) - updated, updated, deleted, refused)

    def advance(self, now_ms: int, *, cause: str = "stall") -> list[DueBatch]:
        """Empty every slot up to ``now_ms``, in order; returns the due runs.

        Returns early after ``runs_per_advance`` runs; check ``caught_up``. A gap of more than ``stall_limit_ms``, or of
        more than ``backlog_max`` runs, is not replayed but settled by misfire policy; skipped runs are counted as
        ``cause`` (``stall``, or ``clock`` if the clock was stepped forward).
        """
        due = self._move_on(now_ms // self.config.tick_ms, cause)
        return due + self.share.expect(self._late_once.take(self.shards, self.cursor_ms))

    def follow(self, where: NDArray[np.bool_]) -> None:
        """Stop to answer for the shards at ``where``: their runs are kept from now on instead of being returned."""
        self.share.set(self.share.mask & ~where)
        self.poll_lane.divide()

    def take(self, where: NDArray[np.bool_], floor_ms: Int64s) -> list[DueBatch]:
        """Begin to answer for the shards at ``where``; returns their runs after ``floor_ms``, a mark per shard.

        One-time jobs that are due and not finished are returned by the next ``advance``, whatever the mark.
        """
        self.share.set(self.share.mask | where)
        self.poll_lane.divide(floor_ms, ask_ms=self.cursor_ms + 1)
        settled_ms = self.cursor_ms - self.config.stall_limit_ms
        runs, stretches = self.share.followed.take(where, floor_ms, settled_ms)
        due = self.misfires.offer_kept(self.shards, runs)
        for number, after_ms, until_ms in stretches:
            due += self.misfires.offer_unfollowed(self.shards, self.shards[number], after_ms, until_ms)
        return due

    def give_away(self, ids: Int64s, fire_ms: Int64s, steps: NDArray[np.int32]) -> None:
        """Keep runs of followed shards that were to be sent here and are not; ``take`` returns them again."""
        once = self.shards.once_of(ids) == fire_ms
        self._late_once.owe(self.shards, ids[once], fire_ms[once])  # marks do not tell whether these were sent
        self.share.followed.keep_runs(KeptRuns(ids, fire_ms, steps).at(~once))

    def forget_followed(self, marks_ms: Int64s) -> None:
        """Forget the kept runs that their owners have settled: those up to ``marks_ms``, by shard."""
        self._late_once.owe(self.shards, *self.share.followed.trim(marks_ms)[:2])

    def caught_up(self, now_ms: int) -> bool:
        """Return whether every slot up to ``now_ms`` is empty."""
        return self.cursor >= now_ms // self.config.tick_ms

    def step_back(self, now_ms: int, step_number: int, right_ms: int = NEVER_MS) -> None:
        """Follow a clock that was stepped back to ``now_ms``; ``step_number`` counts such steps across processes.

        Interval jobs continue at once and re-live fire times (``DueBatch.step``). Cron and once jobs are suppressed up
        to the last fire time that was handed out, or up to ``right_ms`` if the clock was wrong after that.
        """
        until_ms, settled_ms = max(self.relived.until_ms, self.cursor_ms), min(self.cursor_ms, right_ms)
        self.shards.relived = Relived(until_ms, step_number, max(self.relived.settled_ms, settled_ms))
        self.cursor = self._replay_until = now_ms // self.config.tick_ms
        for shard in self.shards:
            rows = _in_wheel(shard)
            shard.table.arm(rows, self._arming(shard.table.schedules(rows)))
            shard.rebuild(self.cursor)
            shard.recount.restart(self.cursor_ms, self._settled_ms, None)

    def lookup(self, ids: Sequence[int] | Int64s) -> list[JobView | None]:
        """Return the current definition of each job; None if it does not exist or is disabled."""
        return self.shards.views(ids_of(ids))

    def schedule_of(self, job_id: int) -> Bounded | None:
        """Return the schedule of a job, enabled or not; None if it does not exist or is polled."""
        return self.shards.schedule_of(job_id, self.crons)

    def next_fire(self, job_id: int, after_ms: int) -> int | None:
        """Return the first fire time of a job, enabled or not, strictly after ``after_ms``."""
        schedule = self.schedule_of(job_id)
        return None if schedule is None else schedule.next_fire(after_ms)

    def finish(self, ids: Sequence[int] | Int64s) -> None:
        """Disable single-run jobs that are done."""
        done = np.unique(ids_of(ids))
        for shard, positions in self.shards.partition(done):
            self.poll_lane.remove(shard.disable(done[positions]))

    def sweep(self, number: int) -> SweepReport:
        """Let the watchdog check and repair shard ``number``. Invalidates row numbers. See ``watchdog.FINDINGS``."""
        agreed = self._watchdog.agreed_cursor()
        damaged, self.cursor = self.cursor != agreed, agreed
        report = self._watchdog.sweep(number, self._arming, self._settled_ms)
        if damaged:
            self._replay_until = agreed
            report.add("cursor", 1)
        return report

    def recount(self, shard: int, from_ms: int, to_ms: int) -> int:
        """Count in closed form the fire times of a shard in (``from_ms``, ``to_ms``], by the current definitions."""
        rows = _in_wheel(self.shards[shard])
        schedules = self.shards[shard].table.schedules(rows)
        return int(spans(schedules, np.full(len(rows), from_ms), np.full(len(rows), to_ms), self.crons).counts.sum())

    def stats(self) -> EngineStats:
        """Return counts for status and metrics."""
        resident_bytes = self.shards.payloads.resident_bytes
        return EngineStats(len(self), self.cursor_ms, self._refused, self.relived.step, resident_bytes)

    def __len__(self) -> int:
        return self.shards.job_count

    def _insert(self, batch: DefinitionBatch, *, loading: bool = False) -> int:
        """Write and arm definitions; returns how many replaced a living job."""
        if not len(batch):
            return 0
        refs = self.shards.payloads.add(batch.payload, batch.lengths, batch.names, batch.name_lengths)
        rows, rare = encode(batch, refs)
        in_wheel = (rows.flags & (ENABLED | POLLED)) == ENABLED
        armed, fires = np.flatnonzero(in_wheel), np.full(len(batch), NEVER_MS)
        fires[armed] = self._arming(batch.schedules().take(armed))
        rows = rows._replace(next_fire=fires)
        for intervals in (batch.interval_ms, batch.incident_interval_ms):
            self._shortest_ms = min(self._shortest_ms, int(intervals[intervals > 0].min(initial=self._shortest_ms)))
        updated = 0
        for shard, share in self.shards.split(rows):
            if loading:
                shard.recount.restart(self.cursor_ms, self._settled_ms, None)
            if len((replaced := shard.upsert(share, rare, loading=loading)).ids):
                self.shards.payloads.release(replaced.ref)
                self.poll_lane.remove(replaced)
                updated += len(replaced.ids)
            self._keep_sorted(shard)
        self.poll_lane.put(rows, batch.polled, ask_ms=self.cursor_ms + 1, after_ms=self._settled_ms)
        return updated

    def _remove(self, ids: Int64s) -> int:
        removed = 0
        for shard, positions in self.shards.partition(ids):
            gone = shard.remove(ids[positions])
            self.shards.payloads.release(gone.ref)
            self.poll_lane.remove(gone)
            removed += len(gone.ids)
            self._keep_sorted(shard)
        return removed

    def _keep_sorted(self, shard: Shard) -> None:
        if shard.table.crowded():
            shard.renumber(self.cursor)

    def _arming(self, schedules: ScheduleColumns) -> Int64s:
        """Return the fire times to arm for; only intervals re-live time after a backward step of the clock."""
        after = np.where(schedules.interval_ms > 0, self.cursor_ms, self._settled_ms)
        return next_fires(schedules, after, self.crons)

    def _within_limit(self, batch: DefinitionBatch) -> DefinitionBatch:
        accepted = self.shards.admit(batch, self.config.max_jobs)
        self._refused += len(batch) - len(accepted)
        return self.routes.adopt(accepted)

    def _move_on(self, target: int, cause: str) -> list[DueBatch]:
        if target <= self.cursor:
            return self._polled_due() if self.poll_lane.turn.behind else []
        if self.cursor >= self._replay_until:
            if not self._replayable(target):
                return self._skip_to(target, cause)
            self._replay_until = target
        due: list[DueBatch] = []
        runs = 0
        while self.cursor < self._replay_until and runs < self.config.runs_per_advance:
            found = self._empty_slot(self.cursor + 1)
            runs += sum(map(len, found))
            due += self.share.expect(found)
        return due + self._polled_due()

    def _empty_slot(self, tick: int) -> list[DueBatch]:
        again = (tick - 1) * self.config.tick_ms < self.relived.until_ms
        due = []
        for shard in self.shards:
            rows, fires = shard.pop(tick)
            if len(rows):
                ids, routes = shard.table.ids(rows), shard.table.routes(rows)
                batch = DueBatch(shard.number, rows, ids, fires, routes)
                due += self.shards.by_step(batch) if again else [batch]
        self.cursor = tick
        return due

    def _replayable(self, target: int) -> bool:
        gap_ms = (target - self.cursor) * self.config.tick_ms
        if gap_ms > self.config.stall_limit_ms:
            return False
        runs_at_most = len(self) * (gap_ms // self._shortest_ms + 2)  # one more if an incident ends
        if gap_ms == self.config.tick_ms or runs_at_most <= self.config.backlog_max:
            return True  # nothing was missed, or little enough
        return self.shards.runs_until(target * self.config.tick_ms, self.crons) <= self.config.backlog_max

    def _skip_to(self, target: int, cause: str) -> list[DueBatch]:
        """Move the cursor to ``target`` without emptying slots; their runs are settled by misfire policy."""
        due: list[DueBatch] = []
        until_ms = target * self.config.tick_ms
        for shard in self.shards:
            rows = shard.overdue(until_ms)
            due += self._offer_missed(shard, rows, until_ms, cause)
            following = next_fires(shard.table.schedules(rows), np.full(len(rows), until_ms), self.crons)
            shard.table.arm(rows, following)
            shard.rebuild(target)
        self.cursor = self._replay_until = target
        return due + self._polled_due()

    def _offer_missed(self, shard: Shard, rows: NDArray[np.integer], until_ms: int, cause: str) -> list[DueBatch]:
        fires_ms, schedules = shard.table.columns.next_fire[rows], shard.table.schedules(rows)
        gap = Gap(schedules, shard.table.rows.take(rows).flags, fires_ms - 1, np.full(len(rows), until_ms))
        if not self.share.mask[shard.number]:
            shard.recount.passed += int(spans(schedules, gap.after_ms, gap.until_ms, self.crons).counts.sum())
            owed = policies(gap.flags) != Misfire.SKIP.value
            self._late_once.owe(self.shards, shard.table.ids(rows[owed]), fires_ms[owed])
            self.share.followed.miss(self.share.only(shard.number), self.cursor_ms, until_ms)
            return []
        before = self.ledger.expected
        due = self.misfires.offer(self.shards, shard.table.ids(rows), gap, cause)
        shard.recount.passed += self.ledger.expected - before
        return due

    def _polled_due(self) -> list[DueBatch]:
        return self.share.expect(self.shards.batches(*self.poll_lane.due(self.cursor_ms), Offer.DUE))

    @property
    def _settled_ms(self) -> int:
        """Cron and once jobs no longer fire at or before this instant."""
        return max(self.cursor_ms, self.relived.settled_ms)


def _in_wheel(shard: Shard) -> NDArray[np.intp]:
    return np.flatnonzero((shard.table.rows.flags & (ENABLED | POLLED)) == ENABLED)
