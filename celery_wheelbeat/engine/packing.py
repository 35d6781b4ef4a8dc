"""Packing: compiled definitions encoded as the stored columns of a table, and decoded again.

Pure. Ids, intervals and routes are stored *narrow* if every value of the table fits, see ``Rows``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.jobs.definitions import Flag
from celery_wheelbeat.jobs.identity import interval_offset_ms
from celery_wheelbeat.schedules.columns import NOT_CRON, ScheduleColumns
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.jobs.definitions import DefinitionBatch
    from celery_wheelbeat.schedules.kinds import Int64s, Positions, UInt32s

    Integers = NDArray[np.integer[Any]]
    Unsigned = NDArray[np.unsignedinteger[Any]]

ENABLED = Flag.ENABLED
RARE = 1 << 8
"""The job has a record in ``rare``."""
ON_GRID = 1 << 9
"""The phase is 0 instead of the default jitter."""
DEAD = 1 << 11
"""Deleted; the row keeps its id until ``renumber``."""
POLLED = 1 << 12
"""The poll lane, not the wheel, supplies the fire times."""
ONCE = 1 << 13

OFFSET_BITS = 32
"""The interval column of a cron job holds ``~(cron_index << 32 | offset_ms)``, which is negative."""
IN_MS_END = 1 << 30
"""Narrow intervals ≥ this (12 days) hold ``IN_MS_END`` + whole seconds; smaller ones hold milliseconds."""
_NARROW_OFFSET_BITS = 13
_NARROW_CRONS = 1 << (31 - _NARROW_OFFSET_BITS)


class Rare(NamedTuple):
    """Attributes that few jobs have; named like the fields of ``ScheduleColumns``."""

    phase_ms: int
    offset_ms: int
    start_ms: int
    end_ms: int
    incident_interval_ms: int
    incident_until_ms: int


class Nearest(NamedTuple):
    """The stored columns that ``Table.nearest`` returns."""

    ids: Int64s | UInt32s
    flags: NDArray[np.uint16]
    route: Unsigned
    ref: UInt32s
    interval: Int64s | NDArray[np.int32]


class Rows(NamedTuple):
    """Stored columns of ``n`` jobs.

    ``ids``, ``interval`` and ``route`` are narrow if all values fit. Narrow ids and routes keep their values. A narrow
    interval keeps its sign, which distinguishes intervals from crons; ``widened`` restores its value. Narrow columns
    take 24 bytes a job, wide ones 34: of 156 at 25 million jobs, 10 are saved, 4 of them by the intervals.
    """

    ids: Int64s | UInt32s
    """Narrow: uint32, no negative ids."""
    interval: Int64s | NDArray[np.int32]
    """> 0: interval in ms; < 0: cron index and offset; 0: once or polled. Narrow: see ``narrowed``."""
    next_fire: Int64s
    flags: NDArray[np.uint16]
    route: Unsigned
    """Narrow: uint16, else uint32."""
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
            np.empty(capacity, np.uint16),
            np.empty(capacity, np.uint32),
        )

    def narrow(self) -> Rows:
        """Return the same jobs, each of the three columns as narrow as its values allow."""
        return self._replace(
            ids=_unsigned(self.ids, (np.uint32,)),
            interval=narrowed(self.interval),
            route=_unsigned(self.route, (np.uint16,)),
        )

    def wider_than(self, other: Rows) -> bool:
        """Return whether any column is wider than its counterpart in ``other``."""
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
        """Write ``values`` to ``positions``; no column of ``values`` may be wider than its counterpart here."""
        same = self.interval.itemsize == values.interval.itemsize
        self.ids[positions] = values.ids
        self.interval[positions] = values.interval if same else widened(values.interval)
        self.next_fire[positions] = values.next_fire
        self.flags[positions] = values.flags
        self.route[positions] = values.route
        self.ref[positions] = values.ref


def narrowed(interval: Int64s | NDArray[np.int32]) -> Int64s | NDArray[np.int32]:
    """Return the intervals as int32 if all of them fit, else unchanged.

    These fit: intervals below 12 days, longer ones in whole seconds up to 34 years, and crons with an index up to
    262,143 and an offset in whole seconds up to 8,191.
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
    """Return the intervals as int64; the inverse of ``narrowed``."""
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
    """Return ``values`` in the first of ``widths`` that is narrower than now and holds all of them, else unchanged."""
    low, high = values.min(initial=0), values.max(initial=0)
    for width in widths:
        if np.dtype(width).itemsize < values.itemsize and low >= 0 and high <= np.iinfo(width).max:
            return values.astype(width)
    return values


def encode(batch: DefinitionBatch, refs: UInt32s) -> tuple[Rows, dict[int, Rare]]:
    """Encode ``batch`` as stored columns, unarmed (``next_fire`` is NEVER_MS), and the rare attributes by id."""
    kind, interval = batch.kind, batch.interval_ms
    is_interval, polled = kind == Kind.INTERVAL, kind == Kind.POLLED
    if not is_interval.all():
        is_cron, interval = kind == Kind.CRON, interval.copy()
        interval[is_cron] = ~((batch.cron_index[is_cron].astype(np.int64) << OFFSET_BITS) | batch.offset_ms[is_cron])
        interval[~(is_interval | is_cron)] = 0
    jittered, on_grid = _phases(batch, is_interval)
    rare = (batch.start_ms != ALWAYS_MS) | (batch.end_ms != NEVER_MS) | (kind == Kind.ONCE)
    rare |= (batch.incident_interval_ms > 0) | (is_interval & ~jittered & ~on_grid)
    flags = batch.flags | (rare * np.uint16(RARE)) | (on_grid * np.uint16(ON_GRID))
    flags |= (polled * np.uint16(POLLED)) | ((kind == Kind.ONCE) * np.uint16(ONCE))
    attributes = {}
    if rare.any():
        schedules = batch.schedules().take(np.flatnonzero(rare))
        columns = (getattr(schedules, name).tolist() for name in Rare._fields)
        attributes = dict(zip(batch.ids[rare].tolist(), map(Rare, *columns), strict=True))
    next_fire = np.full(len(batch), NEVER_MS)
    rows = Rows(batch.ids, interval, next_fire, flags.astype(np.uint16), batch.route_index, refs)
    return rows.narrow(), attributes


def _phases(batch: DefinitionBatch, is_interval: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two masks: interval jobs with the default jitter, and interval jobs with phase 0."""
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
    """Decode the schedules from stored columns; the inverse of ``encode``."""
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
