"""The jobs of one shard as columns: 24 bytes a job, found by id without a dict of all ids.

``ids[:sorted_rows]`` ascends and is found by binary search. Ids appended out of order follow it and are in ``overlay``
(id → row) until ``renumber`` sorts all rows. Attributes that few jobs have are in ``rare``, by id. ``next_fire`` is the
armed fire time, NEVER_MS if none is armed. Ids, intervals and routes are *narrow* while all values of the table fit,
see ``Rows``. Only the methods of ``Table`` write its columns; other modules read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from celery_wheelbeat.engine.packing import DEAD, ENABLED, Nearest, Rare, Rows, decode
from celery_wheelbeat.schedules.kinds import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from celery_wheelbeat.schedules.columns import ScheduleColumns
    from celery_wheelbeat.schedules.kinds import Int64s, Positions, UInt32s

    Integers = NDArray[np.integer[Any]]
    Unsigned = NDArray[np.unsignedinteger[Any]]

_SMALLEST = 16
_GROWTH = 1.125


class Table:
    """Columns with spare capacity. Row numbers are valid until ``renumber``."""

    def __init__(self) -> None:
        self.columns = Rows.empty(_SMALLEST)
        self.row_count = 0
        self.sorted_rows = 0
        self.overlay: dict[int, int] = {}
        self.rare: dict[int, Rare] = {}
        self.dead_rows = 0

    def __len__(self) -> int:
        return self.row_count - self.dead_rows

    @property
    def rows(self) -> Rows:
        """The columns without their spare capacity, as views."""
        return self.columns.take(slice(self.row_count))

    def rows_of(self, ids: Integers) -> Int64s:
        """Return the row of each id, dead rows included; -1 if there is none."""
        ascending = self.columns.ids[: self.sorted_rows]
        # same dtype, or numpy copies the whole column; an id that overflows fails the comparison below
        rows = ascending.searchsorted(ids.astype(ascending.dtype, copy=False))
        if self.sorted_rows:
            known = ascending[np.minimum(rows, self.sorted_rows - 1)] == ids
            rows[~known] = -1
        else:
            rows[:] = -1
        if self.overlay:
            for position in np.flatnonzero(rows < 0).tolist():
                rows[position] = self.overlay.get(int(ids[position]), -1)
        return rows

    def nearest(self, ids: Int64s) -> Nearest:
        """Return the job of each id, dead ones included, or an arbitrary job: the caller must compare the ids.

        For a few ids in each of many tables, where call overhead dominates.
        """
        stored = self.columns
        if not self.row_count:
            nothing = np.zeros(len(ids), np.uint32)
            return Nearest(np.full(len(ids), -1), nothing.astype(np.uint16), nothing, nothing, nothing.astype(np.int32))
        if self.overlay or not self.sorted_rows:
            rows = self.rows_of(ids)
        else:
            ascending = stored.ids[: self.sorted_rows]
            rows = ascending.searchsorted(ids.astype(ascending.dtype, copy=False))
        return Nearest(
            stored.ids.take(rows, mode="clip"),
            stored.flags.take(rows, mode="clip"),
            stored.route.take(rows, mode="clip"),
            stored.ref.take(rows, mode="clip"),
            stored.interval.take(rows, mode="clip"),
        )

    def ends_before(self, ids: Integers) -> bool:
        """Return whether the table is sorted and all ``ids`` (ascending) follow its last id."""
        rows = self.row_count
        return rows == self.sorted_rows and (not rows or bool(ids[0] > self.columns.ids[rows - 1]))

    def reserve(self, row_count: int) -> None:
        """Allocate capacity for ``row_count`` rows in total, so that a load does not copy while growing."""
        if row_count > len(self.columns.ids):
            self._grow(row_count)

    def append(self, new: Rows) -> None:
        """Append jobs whose ids (ascending) are not in the table."""
        first = self.row_count
        count = len(new.ids)
        in_order = self.ends_before(new.ids)
        self._reserve(first + count)
        self._put(slice(first, first + count), new)
        self.row_count += count
        if in_order:
            self.sorted_rows += count
        else:
            self.overlay.update(zip(new.ids.tolist(), range(first, first + count), strict=True))

    def write(self, rows: Int64s, new: Rows) -> None:
        """Replace the definitions in ``rows``; the ids stay the same."""
        self.dead_rows -= int(np.count_nonzero(self.columns.flags[rows] & DEAD))
        self._put(rows, new)

    def bury(self, rows: Int64s) -> None:
        """Mark ``rows`` as dead. They must be living."""
        self.columns.flags[rows] = DEAD
        self.columns.next_fire[rows] = NEVER_MS
        self.dead_rows += len(rows)
        for job_id in self.columns.ids[rows].tolist():
            self.rare.pop(job_id, None)

    def arm(self, rows: Integers, fires: Int64s) -> None:
        """Set the armed fire time of each of ``rows``, NEVER_MS to arm none; the caller keeps the wheel in step."""
        self.columns.next_fire[rows] = fires

    def disable(self, rows: Int64s) -> None:
        """Mark ``rows`` as disabled and unarmed."""
        self.columns.flags[rows] &= np.uint16(0xFFFF ^ ENABLED)
        self.columns.next_fire[rows] = NEVER_MS

    def move_texts(self, rows: Integers, refs: UInt32s) -> None:
        """Point each of ``rows`` to the copy of its payload at ``refs``."""
        self.columns.ref[rows] = refs

    def set_rare(self, ids: Integers, attributes: Mapping[int, Rare]) -> None:
        """Set the rare attributes of ``ids``; ids missing in ``attributes`` lose theirs."""
        if not self.rare and not attributes:
            return
        for job_id in ids.tolist():
            if job_id in attributes:
                self.rare[job_id] = attributes[job_id]
            else:
                self.rare.pop(job_id, None)

    def schedules(self, rows: Positions) -> ScheduleColumns:
        """Decode the schedules of ``rows``."""
        return decode(self.columns.take(rows), self.rare)

    def ids(self, rows: Positions) -> Int64s:
        """Return the id of each of ``rows``."""
        return self.columns.ids[rows].astype(np.int64)

    def routes(self, rows: Positions) -> UInt32s:
        """Return the route of each of ``rows``."""
        return self.columns.route[rows].astype(np.uint32)

    def living(self) -> NDArray[np.intp]:
        """Return the row numbers of all living jobs."""
        return np.flatnonzero((self.rows.flags & DEAD) == 0)

    def living_rows(self) -> Rows:
        """Return the columns of all living jobs."""
        return self.rows.take(self.living()) if self.dead_rows else self.rows

    def crowded(self) -> bool:
        """Return whether ``renumber`` pays: over 1,024 and a quarter of the rows are in the overlay, or are dead."""
        return len(self.overlay) > max(1024, self.row_count // 4) or self.dead_rows > max(1024, self.row_count // 4)

    def renumber(self) -> None:
        """Drop dead rows and sort the rest by id. Invalidates all row numbers."""
        rows = self.rows
        alive = self.living()
        order = alive[np.argsort(rows.ids[alive], kind="stable")]
        self.columns = rows.take(order).narrow()
        self.row_count = self.sorted_rows = len(order)
        self.dead_rows = 0
        self.overlay.clear()

    def _reserve(self, row_count: int) -> None:
        capacity = len(self.columns.ids)
        if row_count <= capacity:
            return
        self._grow(max(row_count, int(capacity * _GROWTH), _SMALLEST))

    def _grow(self, capacity: int) -> None:
        grown = Rows.empty(capacity).like(self.columns)
        grown.put(slice(self.row_count), self.rows)
        self.columns = grown

    def _put(self, rows: Positions, new: Rows) -> None:
        if new.wider_than(self.columns):
            new = new.narrow()  # a row may be wide only because others of its batch are
            self.columns = self.columns.like(new)
        self.columns.put(rows, new)
