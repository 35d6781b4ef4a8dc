"""The jobs of one shard as columns: 23 bytes each, found by id without a dict of all of them.

The table owns its columns; nobody else writes to them. ``ids[:sorted_rows]`` ascends and is searched; ids that came
out of order lie behind it and in ``overlay``, until ``renumber`` sorts everything. What only few jobs have lives in
``rare``, by id. ``next_fire`` is the next armed fire time, NEVER_MS where none is armed. Ids, intervals and routes are
*narrow* as long as all of a table are, see ``Rows``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.jobs import ALWAYS_MS, NEVER_MS, Flag, Kind
from celery_wheelbeat.runs import interval_offset_ms
from celery_wheelbeat.schedule_columns import NOT_CRON, ScheduleColumns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.jobs import DefinitionBatch, Int64s, Positions, UInt32s

    Integers = NDArray[np.integer[Any]]
    Unsigned = NDArray[np.unsignedinteger[Any]]

ENABLED = int(Flag.ENABLED)
RARE = 1 << 8
"""The job has a record in ``rare``."""
ON_GRID = 1 << 9
"""Phase 0 instead of the default jitter."""
IN_LANE = 1 << 10
"""Its fire times come from the poll lane."""
DEAD = 1 << 11
"""Deleted; the row keeps its id until the table is renumbered."""
POLLED = 1 << 12
ONCE = 1 << 13

OFFSET_BITS = 32
"""A cron job's interval is ``~(cron_index << 32 | offset_ms)``: negative, and no column of its own."""
IN_MS_END = 1 << 30
"""Narrow intervals from here on (12 days) count whole seconds, beginning with 0."""
_NARROW_OFFSET_BITS = 13
_NARROW_CRONS = 1 << (31 - _NARROW_OFFSET_BITS)
_SMALLEST = 16
_GROWTH = 1.125


class Rare(NamedTuple):
    """What only few jobs have; the fields of ``ScheduleColumns``."""

    phase_ms: int
    offset_ms: int
    start_ms: int
    end_ms: int
    incident_interval_ms: int
    incident_until_ms: int


class Nearest(NamedTuple):
    """Some of the stored columns of jobs that were looked for."""

    ids: Int64s | UInt32s
    flags: NDArray[np.uint16]
    route: Unsigned
    ref: UInt32s
    interval: Int64s | NDArray[np.int32]


class Rows(NamedTuple):
    """Stored columns of ``n`` jobs.

    Three of them are narrow where all values allow it. Ids and routes just take fewer bytes; a narrow interval has the
    sign of the whole one, which tells intervals from crons, but its value only through ``widened``.
    """

    ids: Int64s | UInt32s
    """Narrow: four bytes, none negative."""
    interval: Int64s | NDArray[np.int32]
    """> 0: interval in ms; < 0: cron group and offset; 0: once or polled. Narrow: see ``narrowed``."""
    next_fire: Int64s
    flags: NDArray[np.uint16]
    route: Unsigned
    """One byte, two or four."""
    ref: UInt32s

    def take(self, positions: Positions) -> Rows:
        """Return the jobs at ``positions``."""
        return Rows(
            self.ids[positions],
            self.interval[positions],
            self.next_fire[positions],
            self.flags[positions],
            self.route[positions],
            self.ref[positions],
        )

    @classmethod
    def empty(cls, capacity: int) -> Rows:
        """Return narrow columns with room for ``capacity`` jobs."""
        return cls(
            np.empty(capacity, np.uint32),
            np.empty(capacity, np.int32),
            np.empty(capacity, np.int64),
            np.empty(capacity, np.uint16),
            np.empty(capacity, np.uint8),
            np.empty(capacity, np.uint32),
        )

    def narrow(self) -> Rows:
        """Return the same jobs in as few bytes as they need."""
        return self._replace(
            ids=_unsigned(self.ids, (np.uint32,)),
            interval=narrowed(self.interval),
            route=_unsigned(self.route, (np.uint8, np.uint16)),
        )

    def wider_than(self, other: Rows) -> bool:
        """Say whether one of these columns is wider than the same one of ``other``."""
        return (
            self.ids.itemsize > other.ids.itemsize
            or self.interval.itemsize > other.interval.itemsize
            or self.route.itemsize > other.route.itemsize
        )

    def like(self, other: Rows) -> Rows:
        """Return the same jobs, each column at least as wide as in ``other``."""
        wider = self
        if other.ids.itemsize > self.ids.itemsize:
            wider = wider._replace(ids=self.ids.astype(np.int64))
        if other.interval.itemsize > self.interval.itemsize:
            wider = wider._replace(interval=widened(self.interval))
        if other.route.itemsize > self.route.itemsize:
            wider = wider._replace(route=self.route.astype(other.route.dtype))
        return wider

    def put(self, positions: Positions, values: Rows) -> None:
        """Write ``values``, none of them wider than these columns, to ``positions`` of them."""
        same = self.interval.itemsize == values.interval.itemsize
        self.ids[positions] = values.ids
        self.interval[positions] = values.interval if same else widened(values.interval)
        self.next_fire[positions] = values.next_fire
        self.flags[positions] = values.flags
        self.route[positions] = values.route
        self.ref[positions] = values.ref


def narrowed(interval: Int64s | NDArray[np.int32]) -> Int64s | NDArray[np.int32]:
    """Return the intervals in four bytes each if all of them fit, else as they are.

    Up to 12 days any fits, above whole seconds up to 34 years, and crons up to number 262,143 with an offset of whole
    seconds up to 8,191.
    """
    if interval.itemsize == np.dtype(np.int32).itemsize:
        return interval
    if interval.min(initial=0) >= 0 and interval.max(initial=0) < IN_MS_END:
        return interval.astype(np.int32)
    small, cron, long = interval.astype(np.int32), np.flatnonzero(interval < 0), np.flatnonzero(interval >= IN_MS_END)
    packed, seconds = ~interval[cron], interval[long] // 1000
    index, offset_ms = packed >> OFFSET_BITS, packed & ((1 << OFFSET_BITS) - 1)
    offset_s = offset_ms // 1000
    whole = (offset_s * 1000 == offset_ms).all() and (seconds * 1000 == interval[long]).all()
    within = (index < _NARROW_CRONS) & (offset_s < 1 << _NARROW_OFFSET_BITS)
    if not (whole and within.all() and (seconds < IN_MS_END).all()):
        return interval
    small[cron] = ~((index << _NARROW_OFFSET_BITS) | offset_s)
    small[long] = IN_MS_END + seconds
    return small


def widened(interval: Int64s | NDArray[np.int32]) -> Int64s:
    """Return the intervals in eight bytes each; the inverse of ``narrowed``."""
    whole: Int64s = interval.astype(np.int64, copy=False)
    if interval.itemsize == whole.itemsize:
        return whole
    cron, long = whole < 0, whole >= IN_MS_END
    if cron.any():
        packed = ~whole[cron]
        index, offset_s = packed >> _NARROW_OFFSET_BITS, packed & ((1 << _NARROW_OFFSET_BITS) - 1)
        whole[cron] = ~((index << OFFSET_BITS) | offset_s * 1000)
    if long.any():
        whole[long] = (whole[long] - IN_MS_END) * 1000
    return whole


def _unsigned(values: Integers, widths: Sequence[type[np.unsignedinteger[Any]]]) -> Any:
    """Return ``values`` in the first of ``widths`` that is less than they have and enough; else as they are."""
    low, high = values.min(initial=0), values.max(initial=0)
    for width in widths:
        if np.dtype(width).itemsize < values.itemsize and low >= 0 and high <= np.iinfo(width).max:
            return values.astype(width)
    return values


def encode(batch: DefinitionBatch, tick_ms: int, refs: UInt32s) -> tuple[Rows, dict[int, Rare]]:
    """Turn compiled definitions into stored columns, not yet armed, and the rare attributes by id."""
    kind, interval = batch.kind, batch.interval_ms
    is_interval, polled = kind == Kind.INTERVAL, kind == Kind.POLLED
    if not is_interval.all():
        is_cron, interval = kind == Kind.CRON, interval.copy()
        interval[is_cron] = ~((batch.cron_index[is_cron].astype(np.int64) << OFFSET_BITS) | batch.offset_ms[is_cron])
        interval[~(is_interval | is_cron)] = 0
    incident = batch.incident_interval_ms
    jittered, on_grid = _phases(batch, is_interval)
    rare = (batch.start_ms != ALWAYS_MS) | (batch.end_ms != NEVER_MS) | (incident > 0) | (kind == Kind.ONCE)
    rare |= is_interval & ~jittered & ~on_grid
    # the wheel could hold these too, but several fires of one job in one slot would make every pop a loop
    in_lane = polled | (is_interval & (interval // tick_ms * tick_ms != interval))
    if incident.any():
        in_lane |= incident % tick_ms > 0
    flags = batch.flags | (rare * np.uint16(RARE)) | (on_grid * np.uint16(ON_GRID)) | (in_lane * np.uint16(IN_LANE))
    flags |= (polled * np.uint16(POLLED)) | ((kind == Kind.ONCE) * np.uint16(ONCE))
    attributes = {}
    if rare.any():
        schedules = ScheduleColumns.of(batch).take(np.flatnonzero(rare))
        columns = (getattr(schedules, name).tolist() for name in Rare._fields)
        attributes = dict(zip(batch.ids[rare].tolist(), map(Rare, *columns), strict=True))
    next_fire = np.full(len(batch), NEVER_MS)
    rows = Rows(batch.ids, interval, next_fire, flags.astype(np.uint16), batch.route_index, refs)
    return rows.narrow(), attributes


def _phases(batch: DefinitionBatch, is_interval: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Say which interval jobs have the default jitter, and which of the others lie on the grid."""
    jittered = np.zeros(len(batch), np.bool_) if batch.spread is None else batch.spread.copy()
    on_grid = np.zeros(len(batch), np.bool_)
    rest = np.flatnonzero(is_interval & ~jittered)
    if len(rest):
        period = batch.interval_ms[rest]
        phase = (batch.anchor_ms[rest] + batch.offset_ms[rest]) % period
        jittered[rest] = phase == interval_offset_ms(batch.ids[rest], period)
        on_grid[rest] = (phase == 0) & ~jittered[rest]
    return jittered, on_grid


def decode(rows: Rows, rare: Mapping[int, Rare]) -> ScheduleColumns:
    """Read the schedules out of stored columns; the inverse of ``encode``."""
    ids, interval, flags = rows.ids, widened(rows.interval), rows.flags
    count = len(ids)
    cron = interval < 0
    packed = np.where(cron, ~interval, 0)
    phase = np.full(count, NEVER_MS)
    phase[interval > 0] = 0
    jittered = np.flatnonzero((interval > 0) & ((flags & (ON_GRID | RARE)) == 0))
    phase[jittered] = interval_offset_ms(ids[jittered].astype(np.int64), interval[jittered])
    schedules = ScheduleColumns(
        np.maximum(interval, 0),
        phase,
        np.where(cron, packed >> OFFSET_BITS, NOT_CRON).astype(np.int32),
        packed & ((1 << OFFSET_BITS) - 1),
        np.full(count, ALWAYS_MS),
        np.full(count, NEVER_MS),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )
    special = np.flatnonzero(flags & RARE)
    if len(special):
        values = np.array([rare[job_id] for job_id in ids[special].tolist()], np.int64)
        for position, name in enumerate(Rare._fields):
            getattr(schedules, name)[special] = values[:, position]
    return schedules


class Table:
    """Columns with room to grow. A row number is valid until ``renumber``."""

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
        """The columns up to the last row, as views."""
        return self.columns.take(slice(self.row_count))

    def rows_of(self, ids: Integers) -> Int64s:
        """Return the row of each id, dead ones included, -1 where there is none."""
        ascending = self.columns.ids[: self.sorted_rows]
        # of one type, or all of the column is copied; an id that does not fit is found to be another one below
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
        """Return for each id its job, dead ones included, or any other where it has none: whoever asks compares.

        For a few ids in each of many tables, where it is the calls that take the time.
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
        """Say whether all ``ids`` (ascending) come after every id of the table, which is sorted."""
        rows = self.row_count
        return rows == self.sorted_rows and (not rows or bool(ids[0] > self.columns.ids[rows - 1]))

    def reserve(self, row_count: int) -> None:
        """Make room for that many rows in all, so that a load copies nothing twice."""
        if row_count > len(self.columns.ids):
            self._grow(row_count)

    def append(self, new: Rows) -> None:
        """Add jobs whose ids (ascending) are not in the table, behind all others."""
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
        """Replace the jobs in ``rows`` by other definitions of the same ids."""
        self.dead_rows -= int(np.count_nonzero(self.columns.flags[rows] & DEAD))
        self._put(rows, new)

    def bury(self, rows: Int64s) -> None:
        """Mark the jobs in ``rows`` as deleted. They must be alive."""
        self.columns.flags[rows] = DEAD
        self.columns.next_fire[rows] = NEVER_MS
        self.dead_rows += len(rows)
        for job_id in self.columns.ids[rows].tolist():
            self.rare.pop(job_id, None)

    def set_rare(self, ids: Integers, attributes: Mapping[int, Rare]) -> None:
        """Give ``ids`` the rare attributes in ``attributes``, and none to those that are not in it."""
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
        """Return the row numbers of all jobs."""
        return np.flatnonzero((self.rows.flags & DEAD) == 0)

    def living_rows(self) -> Rows:
        """Return the columns of all jobs."""
        return self.rows.take(self.living()) if self.dead_rows else self.rows

    def crowded(self) -> bool:
        """Say whether so many ids came out of order, or so many rows are dead, that sorting anew pays."""
        return len(self.overlay) > max(1024, self.row_count // 4) or self.dead_rows > max(1024, self.row_count // 4)

    def renumber(self) -> None:
        """Drop dead rows and sort the rest by id. Every row number known elsewhere is void."""
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
            new = new.narrow()  # perhaps it only came with others that need more
            self.columns = self.columns.like(new)
        self.columns.put(rows, new)
