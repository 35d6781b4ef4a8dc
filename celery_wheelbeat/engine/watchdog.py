"""Watchdog: checks one shard at a time against sources other than the wheel, and repairs it.

The columns determine which jobs must be armed, the schedules for when, and ``recount`` how many runs must have passed.
Findings are counted by reason. They are repaired if the correct value can be computed; other jobs are reported, to be
read from their source again. It must never repair without a finding: an undamaged shard yields an empty report.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.engine.packing import ENABLED, ONCE, POLLED, RARE, widened
from celery_wheelbeat.engine.payloads import PAGE_BITS
from celery_wheelbeat.schedules.kinds import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from celery_wheelbeat.engine.ledger import Ledger
    from celery_wheelbeat.engine.poll_lane import PollLane
    from celery_wheelbeat.engine.shard import Shard
    from celery_wheelbeat.engine.shards import Shards
    from celery_wheelbeat.engine.sharing.share import Share
    from celery_wheelbeat.schedules.columns import ScheduleColumns
    from celery_wheelbeat.schedules.cron import CronTable
    from celery_wheelbeat.schedules.kinds import Int64s


MOVES = 20_000
"""Texts that one sweep moves out of thin payload pages, at most."""


FINDINGS = {
    "lost": "an armed job that the wheel does not hold",
    "misfiled": "an armed job that the wheel holds only in a wrong place",
    "ghost": "an entry of the wheel without an armed job",
    "double": "a job that one unmarked slot holds twice",
    "edge": "the border between slots and far windows does not match the cursor",
    "past_due": "a job armed for a time that has passed",
    "off_grid": "a job armed for another time than its schedule says",
    "unsorted": "ids that are not in ascending order",
    "foreign": "a job of another shard, or the same job twice",
    "definition": "a definition that changed without an edit, or that is impossible",
    "payload": "a job whose arguments or name are no longer what was stored",
    "cursor": "a cursor that disagrees with the other shards",
    "uncounted": "a run that was due and was not handed out",
    "surplus": "a run that was handed out though none was due",
}
"""All possible findings of a sweep. In a sound shard the count of each is 0."""
EXAMPLES = 10


class Watchdog:
    """Sweeps the shards of one engine. Keeps no state between sweeps."""

    def __init__(self, shards: Shards, poll_lane: PollLane, crons: CronTable, ledger: Ledger, share: Share) -> None:
        self._shards = shards
        self._poll_lane = poll_lane
        self._crons = crons
        self._ledger = ledger
        self._share = share

    def agreed_cursor(self) -> int:
        """Return the cursor that most shards have."""
        return Counter(shard.cursor for shard in self._shards).most_common(1)[0][0]

    def sweep(self, number: int, truth: Callable[[ScheduleColumns], Int64s], settled_ms: int) -> SweepReport:
        """Check and repair shard ``number``; ``truth`` computes the fire times that schedules must be armed for.

        Lost runs of the share are entered in the ledger as expected and skipped (``error``).
        """
        report = SweepReport(number)
        shard = self._shards[number]
        if shard.cursor != (agreed := self.agreed_cursor()):
            report.add("cursor", 1)
            shard.cursor = agreed
        shard.file()
        broken = check_table(shard, len(self._shards) - 1, len(self._crons), report)
        self._evict(shard, broken, report)
        self._check_payloads(shard, report)
        report.resync |= bool(report.counts["unsorted"] + report.counts["foreign"])
        comparable = report.healthy
        if comparable and not shard.recount.definitions_intact(shard.table, self._crons):
            report.add("definition", 1)
            report.resync = True
            comparable = False
        if comparable:
            self._check_account(shard, report)
        self._check_poll_lane(shard, report)
        fires_right = check_fires(shard, truth, shard.cursor_ms, report)
        if fires_right:
            check_wheel(shard, report)
        if not report.healthy:
            shard.renumber(shard.cursor)
        self._compact(shard)
        shard.recount.restart(shard.cursor_ms, settled_ms, shard.table)
        return report

    def _check_account(self, shard: Shard, report: SweepReport) -> None:
        difference = shard.recount.difference(shard.table, shard.cursor_ms, self._crons)
        if difference > 0:
            report.add("uncounted", difference)
            if self._share.mask[shard.number]:
                self._ledger.expect(difference)
                self._ledger.skip("error", difference)
        else:
            report.add("surplus", -difference)

    def _check_payloads(self, shard: Shard, report: SweepReport) -> None:
        payloads = self._shards.payloads
        alive = shard.table.living()
        self._report_damaged(shard, alive[~payloads.valid(shard.table.columns.ref[alive])], report)
        damaged = payloads.damaged(range(shard.number, payloads.page_count, len(self._shards)))
        if damaged:
            for owner in self._shards:
                rows = owner.table.living()
                pages = owner.table.columns.ref[rows] >> PAGE_BITS
                self._report_damaged(owner, rows[np.isin(pages, damaged)], report)

    def _report_damaged(self, shard: Shard, rows: NDArray[np.intp], report: SweepReport) -> None:
        report.add("payload", len(rows), shard.table.ids(rows))
        self._evict(shard, rows, report)

    def _check_poll_lane(self, shard: Shard, report: SweepReport) -> None:
        table = shard.table
        rows = np.flatnonzero((table.rows.flags & (ENABLED | POLLED)) == ENABLED | POLLED)
        absent = np.array([row for row in rows.tolist() if int(table.columns.ids[row]) not in self._poll_lane], np.intp)
        report.add("lost", len(absent), table.ids(absent))
        self._evict(shard, absent, report)

    def _evict(self, shard: Shard, rows: NDArray[np.intp], report: SweepReport) -> None:
        """Remove damaged jobs and report them in ``reload_ids``."""
        if not len(rows):
            return
        gone = shard.table.rows.take(rows)
        self._poll_lane.remove(gone.take((gone.ids & (len(self._shards) - 1)) == shard.number))
        self._shards.payloads.release(gone.ref[self._shards.payloads.valid(gone.ref)])
        shard.disarm(rows)
        shard.table.bury(rows)
        report.reload_ids += gone.ids.tolist()
        if shard.number != report.shard:
            shard.renumber(shard.cursor)
            shard.recount.restart(shard.cursor_ms, shard.recount.settled_ms, None)

    def _compact(self, shard: Shard) -> None:
        alive = shard.table.living()
        thin = alive[self._shards.payloads.thin(shard.table.columns.ref[alive])][:MOVES]
        if len(thin):
            shard.table.move_texts(thin, self._shards.payloads.move(shard.table.columns.ref[thin]))


def check_table(shard: Shard, owner_mask: int, cron_count: int, report: SweepReport) -> NDArray[np.intp]:
    """Check that ids can be found and definitions are plausible; returns the rows to evict."""
    table = shard.table
    rows = table.rows
    in_order = rows.ids[: table.sorted_rows]
    report.add("unsorted", int(np.count_nonzero(in_order[1:] <= in_order[:-1])))
    behind = rows.ids[table.sorted_rows :].tolist()
    misplaced = sum(table.overlay.get(job_id) != table.sorted_rows + at for at, job_id in enumerate(behind))
    report.add("unsorted", misplaced + max(0, len(table.overlay) - len(behind)))
    alive = table.living()
    ids, interval, flags = table.ids(alive), widened(rows.interval[alive]), rows.flags[alive]
    foreign = (ids & owner_mask) != shard.number
    if not report.healthy or behind:
        foreign[np.setdiff1d(np.arange(len(ids)), np.unique(ids, return_index=True)[1])] = True
    report.add("foreign", int(np.count_nonzero(foreign)), ids[foreign])
    special = (flags & (ONCE | POLLED)) > 0
    wrong = ((interval == 0) != special) | ((interval < 0) & ((~interval >> 32) >= cron_count))
    rare = np.flatnonzero(flags & RARE)
    wrong[[at for at in rare.tolist() if int(ids[at]) not in table.rare]] = True
    report.add("definition", int(np.count_nonzero(wrong)), ids[wrong])
    gone: NDArray[np.intp] = alive[foreign | wrong]
    return gone


def check_fires(shard: Shard, truth: Callable[[ScheduleColumns], Int64s], cursor_ms: int, report: SweepReport) -> bool:
    """Compare ``next_fire`` of each job with its schedule and correct it; returns whether all were right."""
    table = shard.table
    alive = table.living()
    flags, armed_for = table.columns.flags[alive], table.columns.next_fire[alive]
    right = np.full(len(alive), NEVER_MS)
    in_wheel = np.flatnonzero((flags & (ENABLED | POLLED)) == ENABLED)
    right[in_wheel] = truth(table.schedules(alive[in_wheel]))
    wrong = armed_for != right
    if not wrong.any():
        return True
    past = wrong & (armed_for <= cursor_ms)
    ids = table.ids(alive)
    report.add("past_due", int(np.count_nonzero(past)), ids[past])
    report.add("off_grid", int(np.count_nonzero(wrong & ~past)), ids[wrong & ~past])
    table.arm(alive, right)
    return False


def check_wheel(shard: Shard, report: SweepReport) -> bool:
    """Compare the entries of the wheel with the armed rows; returns whether they agree."""
    wheel, table = shard.wheel, shard.table
    before = report.counts.total()
    window = wheel.window_ticks
    edges = {(tick // window + 1) * window for tick in (shard.cursor, shard.cursor + shard.lead_ticks)}
    report.add("edge", int(wheel.edge not in edges))
    next_fire, ids = table.rows.next_fire, table.ids(slice(table.row_count))
    held = np.zeros(len(ids), np.int64)
    seen = np.zeros(len(ids), np.bool_)
    dirty_places = (wheel.dirty_slots, wheel.dirty_far)
    for (is_far, rows, places), dirty in zip(wheel.entries(), dirty_places, strict=True):
        known = rows < len(ids)
        slots = shard.ticks.slot_of(next_fire[np.where(known, rows, 0)]) if len(ids) else places - 1
        reachable = places * window >= wheel.edge if is_far else (places > shard.cursor) & (places < wheel.edge)
        valid = known & reachable & ((slots // window if is_far else slots) == places)
        marked = np.isin(places, np.fromiter(dirty, np.int64, len(dirty)))
        ghost = ~valid & ~(marked & known & reachable)
        report.add("ghost", int(np.count_nonzero(ghost)))
        seen[rows[ghost & known]] = True
        np.add.at(held, rows[valid & ~marked], 1)
        held[rows[valid & marked]] = 1
    armed = next_fire != NEVER_MS
    lost = armed & (held == 0)
    report.add("misfiled", int(np.count_nonzero(lost & seen)), ids[lost & seen])
    report.add("lost", int(np.count_nonzero(lost & ~seen)), ids[lost & ~seen])
    report.add("double", int(np.count_nonzero(held > 1)), ids[held > 1])
    return report.counts.total() == before


@dataclass(slots=True)
class SweepReport:
    """The findings of one sweep."""

    shard: int
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[int]] = field(default_factory=dict)
    """Up to ``EXAMPLES`` job ids for each finding, for the log."""
    reload_ids: list[int] = field(default_factory=list)
    """Damaged jobs that were removed: to be read from their source again."""
    resync: bool = False
    """Definitions are damaged but unidentified: the whole source must be read again."""

    @property
    def healthy(self) -> bool:
        """True if there are no findings."""
        return not self.counts

    def add(self, finding: str, count: int, ids: Int64s | None = None) -> None:
        """Count a finding, a key of ``FINDINGS``; ``ids`` are the jobs concerned."""
        if count:
            self.counts[finding] += count
            if ids is not None:
                known = self.examples.setdefault(finding, [])
                known += ids[: EXAMPLES - len(known)].tolist()
