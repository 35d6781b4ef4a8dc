"""Watchdog: distrusts one shard at a time, against truths that do not come from the wheel.

The columns say what must be armed, the schedules say for when, ``recount`` says how many runs must have passed. What
is found is counted by reason, healed where the truth is at hand, and otherwise named to be read from the source again.
It must never repair silently: an undamaged shard yields an empty report.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.findings import SweepReport
from celery_wheelbeat.payloads import PAGE_BITS
from celery_wheelbeat.shard_checks import check_fires, check_table, check_wheel
from celery_wheelbeat.stored_rows import ENABLED, POLLED

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from celery_wheelbeat.cron import CronTable
    from celery_wheelbeat.jobs import Int64s
    from celery_wheelbeat.lane_jobs import LaneJobs
    from celery_wheelbeat.ledger import Ledger
    from celery_wheelbeat.schedule_columns import ScheduleColumns
    from celery_wheelbeat.shard import Shard
    from celery_wheelbeat.shards import Shards

MOVES = 20_000
"""Texts that one sweep moves out of payload pages that are mostly dead."""


class Watchdog:
    """Sweeps the shards of one engine. Between two sweeps of a shard it keeps nothing."""

    def __init__(self, shards: Shards, lane: LaneJobs, crons: CronTable, ledger: Ledger) -> None:
        self._shards = shards
        self._lane = lane
        self._crons = crons
        self._ledger = ledger

    def agreed_cursor(self) -> int:
        """Return the tick that most shards emptied last."""
        return Counter(shard.cursor for shard in self._shards).most_common(1)[0][0]

    def sweep(self, number: int, truth: Callable[[ScheduleColumns], Int64s], settled_ms: int) -> SweepReport:
        """Check and heal shard ``number``; ``truth`` computes what a schedule must be armed for.

        Runs that were lost are entered as expected and skipped (``error``), so that the account shows them.
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
        self._check_lane(shard, report)
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

    def _check_lane(self, shard: Shard, report: SweepReport) -> None:
        table = shard.table
        rows = np.flatnonzero((table.rows.flags & (ENABLED | POLLED)) == ENABLED | POLLED)
        absent = np.array(
            [row for row in rows.tolist() if int(table.columns.ids[row]) not in self._lane.polled], np.intp
        )
        report.add("lost", len(absent), table.ids(absent))
        self._evict(shard, absent, report)

    def _evict(self, shard: Shard, rows: NDArray[np.intp], report: SweepReport) -> None:
        """Take damaged jobs out: none of their runs is right any more."""
        if not len(rows):
            return
        gone = shard.table.rows.take(rows)
        self._lane.remove(gone.take((gone.ids & (len(self._shards) - 1)) == shard.number))
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
            shard.table.columns.ref[thin] = self._shards.payloads.move(shard.table.columns.ref[thin])
