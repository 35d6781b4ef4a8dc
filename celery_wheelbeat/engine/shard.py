"""One shard: a table of jobs and the wheel that holds their next fire times.

Invariants, checked by the watchdog: ``next_fire`` of an enabled row is the first fire time of its schedule after the
cursor (NEVER_MS: none, or polled), and every armed row has exactly one valid entry in the wheel. A shard never knows
the time; the engine passes the tick to empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.engine.packing import DEAD, IN_MS_END, RARE, Rows
from celery_wheelbeat.engine.recount import Change, Recount
from celery_wheelbeat.engine.table import Table
from celery_wheelbeat.engine.wheel import NO_ROWS, Wheel
from celery_wheelbeat.schedules.columns import fires_between, next_fires
from celery_wheelbeat.schedules.kinds import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_wheelbeat.engine.packing import Rare
    from celery_wheelbeat.schedules.cron import CronTable
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

NO_FIRES: Int64s = np.empty(0, np.int64)
NOTHING_REPLACED = Rows.empty(0)


class Ticks(NamedTuple):
    """Length of a tick in ms, and of a far window in ticks."""

    tick_ms: int
    window_ticks: int

    def slot_of(self, fire_ms: Int64s) -> Int64s:
        """Return the slot of each fire time: the first tick that ends at or after it."""
        return -(-fire_ms // self.tick_ms)


class Due(NamedTuple):
    """The due runs of one slot, ascending by fire time."""

    rows: UInt32s
    fire_ms: Int64s


NOTHING_DUE = Due(NO_ROWS, NO_FIRES)


class Shard:
    """Owner of one table and one wheel."""

    def __init__(self, number: int, cursor: int, ticks: Ticks, lead_ticks: int, crons: CronTable) -> None:
        self.number = number
        self.cursor = cursor
        """The tick that was emptied last."""
        self.ticks = ticks
        self.lead_ticks = lead_ticks
        """How far ahead a far window is promoted; differs by shard, so that they do not all promote in one tick."""
        self.table = Table()
        self.wheel = Wheel(cursor, ticks.window_ticks)
        self.recount = Recount()
        self._crons = crons
        self._filed_rows = 0
        """Rows from this one on are not filed in the wheel yet."""

    @property
    def cursor_ms(self) -> int:
        """End of the tick that was emptied last."""
        return self.cursor * self.ticks.tick_ms

    def upsert(self, new: Rows, rare: Mapping[int, Rare], *, loading: bool = False) -> Rows:
        """Insert or replace jobs (ids ascending, ``next_fire`` decided); returns the definitions they replace.

        While ``loading`` nothing is recorded in the recount; the caller restarts it. New rows are filed in the wheel by
        the next ``pop``: filing a million jobs batch by batch would touch the slots entry by entry.
        """
        table = self.table
        if loading and table.ends_before(new.ids):
            table.set_rare(new.ids, rare)
            table.append(new)
            return NOTHING_REPLACED
        rows = table.rows_of(new.ids)
        known = rows >= 0
        replaced = table.rows.take(rows[known])
        replaced = replaced.take((replaced.flags & DEAD) == 0)
        if not loading:
            self._note(replaced, new, rare)
        table.set_rare(new.ids, rare)
        if known.any():
            self.file()
            self._replace(rows[known], new.take(known))
        if not known.all():
            table.append(new.take(~known))
        return replaced

    def remove(self, ids: Int64s) -> Rows:
        """Delete jobs; returns their definitions, without ids that do not exist."""
        rows = self.living(ids)
        removed = self.table.rows.take(rows)
        self._note(removed)
        self.disarm(rows)
        self.table.bury(rows)
        return removed

    def disable(self, ids: Int64s) -> Rows:
        """Disable jobs: they are kept, unarmed. Returns their previous definitions."""
        rows = self.living(ids)
        before = self.table.rows.take(rows)
        self.disarm(rows)
        self.table.disable(rows)
        self._note(before, self.table.rows.take(rows), dict(self.table.rare))
        return before

    def disarm(self, rows: Int64s) -> None:
        """Remove ``rows`` from the wheel."""
        self.file()
        fires = self.table.columns.next_fire[rows]
        armed = fires != NEVER_MS
        self.wheel.moved_away(self.ticks.slot_of(fires[armed]))
        self.table.arm(rows[armed], np.full(np.count_nonzero(armed), NEVER_MS))

    def pop(self, tick: int) -> Due:
        """Empty the slot of ``tick``, re-arm its jobs for their next fire times, and return the due runs."""
        self.file()
        self.promote(tick)
        self.cursor = tick
        rows = self.wheel.pop(tick)
        if not len(rows):
            return NOTHING_DUE
        end_ms = tick * self.ticks.tick_ms
        fires = self.table.columns.next_fire[rows]
        due = (fires <= end_ms) & (fires > end_ms - self.ticks.tick_ms)
        if not due.all():
            rows, fires = rows[due], fires[due]
        found = [(rows, fires)]
        following = self._following(rows, fires)
        repeats = following <= end_ms
        if repeats.any():  # an interval below the tick, or the end of an incident
            again = np.flatnonzero(repeats)
            schedules, until_ms = self.table.schedules(rows[again]), np.full(len(again), end_ms)
            positions, more = fires_between(schedules, fires[again], until_ms, self._crons)
            found.append((rows[again[positions]], more))
            following[again] = next_fires(schedules, until_ms, self._crons)
        self._set_next(rows, following)
        merged = _merged(found)
        self.recount.passed += len(merged.rows)
        return merged

    def overdue(self, until_ms: int) -> UInt32s:
        """Return the rows armed for ``until_ms`` or earlier, read from the column, not from the wheel."""
        return np.flatnonzero(self.table.rows.next_fire <= until_ms).astype(np.uint32)

    def armed(self) -> UInt32s:
        """Return all armed rows."""
        return np.flatnonzero(self.table.rows.next_fire != NEVER_MS).astype(np.uint32)

    def promote(self, tick: int) -> None:
        """Move the rows of every far window that begins within ``lead_ticks`` of ``tick`` to slots."""
        wheel = self.wheel
        while wheel.edge <= tick + self.lead_ticks:
            window = wheel.edge // wheel.window_ticks
            rows = wheel.pop_window()
            if len(rows):
                slots = self.ticks.slot_of(self.table.columns.next_fire[rows])
                valid = slots // wheel.window_ticks == window
                wheel.arm(rows[valid], slots[valid])

    def file(self) -> None:
        """File the rows appended since the last call in the wheel."""
        begin, end = self._filed_rows, self.table.row_count
        if begin == end:
            return
        self._filed_rows = end
        self._arm(np.arange(begin, end, dtype=np.uint32), self.table.columns.next_fire[begin:end])

    def rebuild(self, cursor: int) -> None:
        """Replace the wheel by an empty one at ``cursor``; the next ``file`` files every armed row again."""
        self.cursor = cursor
        self.wheel = Wheel(cursor, self.ticks.window_ticks)
        self._filed_rows = 0

    def renumber(self, cursor: int) -> None:
        """Sort the table and drop its dead rows. Invalidates all row numbers."""
        self.table.renumber()
        self.rebuild(cursor)

    def find(self, ids: Int64s) -> Int64s:
        """Return the row of each of ``ids``; -1 if the job does not exist or is deleted."""
        rows = self.table.rows_of(ids)
        if self.table.dead_rows:
            rows[(rows >= 0) & ((self.table.columns.flags[rows] & DEAD) > 0)] = -1
        return rows

    def living(self, ids: Int64s) -> Int64s:
        """Return the rows of ``ids``, without those that do not exist."""
        rows = self.find(ids)
        return rows[rows >= 0]

    def _note(self, gone: Rows, come: Rows | None = None, rare: Mapping[int, Rare] | None = None) -> None:
        """Record a change in the recount. Call before the table drops the rare attributes of ``gone``."""
        attributes = self.table.rare
        kept = (
            {job_id: attributes[job_id] for job_id in gone.ids.tolist() if job_id in attributes} if attributes else {}
        )
        self.recount.note(Change(gone, kept, 1, self.cursor_ms), self._crons)
        if come is not None:
            self.recount.note(Change(come, rare or {}, -1, self.cursor_ms), self._crons)

    def _replace(self, rows: Int64s, new: Rows) -> None:
        old_fires = self.table.columns.next_fire[rows]
        was_armed, is_armed = old_fires != NEVER_MS, new.next_fire != NEVER_MS
        old_slots = self.ticks.slot_of(old_fires)
        stays = was_armed & is_armed & (old_slots == self.ticks.slot_of(new.next_fire))
        self.wheel.moved_away(old_slots[was_armed & ~stays])
        self.table.write(rows, new)
        self._arm(rows[~stays].astype(np.uint32), new.next_fire[~stays])

    def _following(self, rows: UInt32s, fires: Int64s) -> Int64s:
        """Return the fire time of each row after ``fires``, which are fire times of ``rows``."""
        columns = self.table.columns
        interval = columns.interval[rows]
        plain = (interval > 0) & (interval < IN_MS_END) & ((columns.flags[rows] & RARE) == 0)
        following = fires + interval
        if not plain.all():
            other = np.flatnonzero(~plain)
            following[other] = next_fires(self.table.schedules(rows[other]), fires[other], self._crons)
        return following

    def _set_next(self, rows: UInt32s, fires: Int64s) -> None:
        self.table.arm(rows, fires)
        self._arm(rows, fires)

    def _arm(self, rows: UInt32s, fires: Int64s) -> None:
        armed = fires != NEVER_MS
        if not armed.all():
            rows, fires = rows[armed], fires[armed]
        if len(rows):
            self.wheel.arm(rows, self.ticks.slot_of(fires))


def _merged(found: list[tuple[UInt32s, Int64s]]) -> Due:
    rows, fires = found[0]
    if len(found) > 1:
        rows = np.concatenate([part for part, _ in found])
        fires = np.concatenate([part for _, part in found])
    if (fires[1:] < fires[:-1]).any():
        order = np.argsort(fires, kind="stable")
        rows, fires = rows[order], fires[order]
    return Due(rows, fires)
