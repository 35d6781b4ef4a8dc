"""What can be wrong with one shard: its table, its fire times, its wheel. Each check is a scan of the columns.

The checks share no code with the paths that they distrust: none of them asks the wheel where a row is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.jobs import NEVER_MS
from celery_wheelbeat.stored_rows import ENABLED, ONCE, POLLED, RARE, widened

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from celery_wheelbeat.findings import SweepReport
    from celery_wheelbeat.jobs import Int64s
    from celery_wheelbeat.schedule_columns import ScheduleColumns
    from celery_wheelbeat.shard import Shard


def check_table(shard: Shard, owner_mask: int, cron_count: int, report: SweepReport) -> NDArray[np.intp]:
    """Check that ids can be found and definitions can be right; returns the rows that must go."""
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
    """Compare what each job is armed for with its schedule, and correct the column; says whether it was right."""
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
    table.columns.next_fire[alive] = right
    return False


def check_wheel(shard: Shard, report: SweepReport) -> bool:
    """Compare the entries of the wheel with the armed rows; says whether they agree."""
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
