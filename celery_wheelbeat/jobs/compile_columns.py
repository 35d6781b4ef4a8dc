"""Compiles thousands of rows at once, with the same result as ``jobs.compile``.

The rows of a large table differ in id, name, arguments and interval. All other columns together are the *shape* of a
row, and many rows share it. Each shape is compiled once, by ``compile_rows``, from one of its rows, so both ways
agree. Two shapes must never be confused: their values, or digests of them, are compared. Rows with a rare column, and
rows that might have a problem, are not compiled here but reported, for ``compile_rows``. The database guarantees that
arguments are valid JSON.
"""

from __future__ import annotations

import threading
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.jobs import json_fields as json_texts
from celery_wheelbeat.jobs.compile import window_s
from celery_wheelbeat.jobs.definitions import DefinitionBatch, Route
from celery_wheelbeat.jobs.identity import LATER_IDS_FROM, cron_offset_ms
from celery_wheelbeat.jobs.rows import MonitorRow
from celery_wheelbeat.jobs.text_columns import valid_names, valid_payloads
from celery_wheelbeat.jobs.validation import MAX_TEXT
from celery_wheelbeat.schedules.intervals import INTERVAL_MAX_MS
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.jobs.compile import Compiled
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

RARE = 0
"""Shape number of rows that have a rare column, and so no shape."""
SHAPES_MAX = 65_536
"""Greatest number of shapes kept; rows of further shapes are compiled one by one."""
_WHOLE_INTERVAL = -1
"""``window_s`` of an interval shape whose jobs are spread over their whole interval."""
_NO_TEXTS = (b"", b"", b"")
_INT64 = 1 << 63
_RARE_NAMES = (
    "once_at_ms", "solar_event", "start_at_ms", "end_at_ms", "incident_interval_ms", "incident_until_ms",
    "finished_at_ms",
)  # fmt: skip
_RARE_COLUMNS = itemgetter(*map(MonitorRow._fields.index, _RARE_NAMES))
_NOTHING_RARE = (None,) * len(_RARE_NAMES)
_COMMON_COLUMNS = slice(MonitorRow._fields.index("cron"), MonitorRow._fields.index("incident_interval_ms"))


class RowColumns(NamedTuple):
    """``n`` rows of ``wheelbeat_monitor``, ascending by id."""

    ids: Int64s
    shape: Int64s
    """Equal, together with ``shape_rest``, if and only if all columns that are not listed here are equal. ``RARE``: the
    row must be compiled by ``compile_rows``."""
    interval_ms: Int64s
    """0 for rows without an interval."""
    effective_from_ms: Int64s
    names: bytes
    """UTF-8, concatenated; empty for rare rows."""
    name_lengths: Int64s
    payload: bytes
    """``[args, kwargs]`` in UTF-8, concatenated; empty for rare rows."""
    lengths: Int64s
    args_lengths: Int64s
    """Length in bytes of ``args`` within each payload."""
    looked_at: bool = False
    """True if the database has already validated the arguments; rows that failed have shape ``RARE``."""
    shape_rest: Int64s | None = None
    """Second half of a digest; None if ``shape`` alone is unique for each shape."""

    def whole(self) -> bool:
        """Return whether the lengths add up to the texts and the ids ascend."""
        adds_up = self.lengths.sum() == len(self.payload) and self.name_lengths.sum() == len(self.names)
        return bool(adds_up and (self.ids[1:] > self.ids[:-1]).all())


class ShapeKey(NamedTuple):
    """Identifies a shape. Anyone can compute such a digest, but nobody can construct a collision."""

    number: int
    rest: int = 0


class Shape(NamedTuple):
    """The compiled columns that all rows of one shape share."""

    kind: int
    cron_index: int
    flags: int
    route: Route
    window_s: int


class Split(NamedTuple):
    """The result of ``Shapes.compile``."""

    batch: DefinitionBatch
    plain: NDArray[np.bool_]
    """Mask of the rows in ``batch``; the others must be compiled by ``compile_rows``."""


class Shapes:
    """The known shapes. Thread-safe: a learned shape never changes."""

    def __init__(
        self,
        compile_rows: Callable[[Sequence[MonitorRow]], Compiled],
        *,
        cron_jitter_s: int = 30,
        max_payload_bytes: int = 262_144,
        min_interval_ms: int = 100,
    ) -> None:
        """``compile_rows`` must not refuse taken names: it is called with placeholder names."""
        self._compile_rows = compile_rows
        self._cron_jitter_s = cron_jitter_s
        self._max_payload_bytes = max_payload_bytes
        self._min_interval_ms = max(1, min_interval_ms)
        self._lock = threading.Lock()
        self._known: dict[int, tuple[int, Shape | None]] = {}
        """Number → rest and shape. The first key with a number is kept; rows of others go to ``compile_rows``."""
        self._table = _Table.of({})
        self._numbers: dict[object, int] = {}

    def unknown(self, columns: RowColumns) -> Mapping[ShapeKey, int]:
        """Return the shapes that are not known yet, each with the id of one of its rows."""
        unseen = np.flatnonzero(~self._table.holds(columns.shape) & (columns.shape != RARE))
        if not len(unseen) or len(self._known) >= SHAPES_MAX:
            return {}
        _, first = np.unique(columns.shape[unseen], return_index=True)
        at = unseen[first[: SHAPES_MAX - len(self._known)]]
        rests = [0] * len(at) if columns.shape_rest is None else columns.shape_rest[at].tolist()
        return dict(zip(map(ShapeKey, columns.shape[at].tolist(), rests), columns.ids[at].tolist(), strict=True))

    def learn(self, rows: Mapping[ShapeKey, MonitorRow]) -> None:
        """Compile new shapes. ``rows``: shape → one of its rows, read in the same snapshot as the shape."""
        learned = {key: self._compile(row) for key, row in rows.items() if key.number not in self._known}
        if learned:
            with self._lock:
                new = {key.number: (key.rest, shape) for key, shape in learned.items()}
                known = {**new, **self._known}
                self._table = _Table.of(known)  # first: a thread that finds a shape known compiles with the table
                self._known = known

    def numbers_of(self, shapes: Sequence[object | None]) -> Int64s:
        """Return a number for each shape given as a value, such as a text; equal values have equal numbers.

        ``RARE`` for None, and for new shapes beyond ``SHAPES_MAX``.
        """
        known = self._numbers
        numbers = (RARE if shape is None else known.get(shape) or self._numbered(shape) for shape in shapes)
        return np.fromiter(numbers, np.int64, len(shapes))

    def _numbered(self, shape: object) -> int:
        with self._lock:
            if len(self._numbers) >= SHAPES_MAX:
                return self._numbers.get(shape, RARE)
            return self._numbers.setdefault(shape, -2 - len(self._numbers))

    def compile(self, columns: RowColumns, excluded: Int64s) -> Split:
        """Compile the rows of known shapes that have no problem and whose ids are not in ``excluded``."""
        table = self._table
        common = table.of_shapes(columns.shape, columns.shape_rest)
        whole_s = columns.interval_ms // 1000
        spread = common.window_s == _WHOLE_INTERVAL
        window = np.where(spread, whole_s, common.window_s)
        plain = common.known & (columns.ids >= 0) & (columns.ids < LATER_IDS_FROM)
        plain &= columns.lengths <= self._max_payload_bytes + len("[, ]")
        plain &= valid_names(columns.names, columns.name_lengths, MAX_TEXT)
        if not columns.looked_at:
            plain &= valid_payloads(columns.payload, columns.lengths, columns.args_lengths)
        possible = (
            (columns.interval_ms >= self._min_interval_ms)
            & (columns.interval_ms <= INTERVAL_MAX_MS)
            & (window <= whole_s)
        )
        plain &= possible | (common.kind != Kind.INTERVAL)
        if len(excluded):
            plain &= ~np.isin(columns.ids, excluded)
        count = len(columns.ids)
        none = np.broadcast_to(np.int64(0), count)
        batch = DefinitionBatch(
            ids=columns.ids,
            kind=common.kind,
            interval_ms=columns.interval_ms,
            anchor_ms=none,
            offset_ms=cron_offset_ms(columns.ids, window),
            cron_index=common.cron_index,
            flags=common.flags,
            route_index=common.place,
            routes=table.routes,
            start_ms=np.broadcast_to(np.int64(ALWAYS_MS), count),
            end_ms=np.broadcast_to(np.int64(NEVER_MS), count),
            incident_interval_ms=none,
            incident_until_ms=none,
            effective_from_ms=columns.effective_from_ms,
            payload=columns.payload,
            lengths=columns.lengths.astype(np.uint32),
            names=columns.names,
            name_lengths=columns.name_lengths.astype(np.uint16),
            spread=spread,
        )
        return Split(batch if plain.all() else batch.take(np.flatnonzero(plain)), plain)

    def columns_of(self, rows: Sequence[MonitorRow], taken_names: Collection[str] = ()) -> RowColumns:
        """Turn rows (ascending by id) into columns; rows with invalid JSON or an improper name are ``RARE``."""
        shape = self.numbers_of([_value_of_shape(row, taken_names) for row in rows]).tolist()
        texts = [
            _NO_TEXTS if number == RARE else (row.name.encode(), (row.args or "").encode(), (row.kwargs or "").encode())
            for row, number in zip(rows, shape, strict=True)
        ]
        payloads = [b"[%b, %b]" % (args, kwargs) if kwargs else b"" for _, args, kwargs in texts]
        count = len(rows)
        return RowColumns(
            ids=np.fromiter((row.id for row in rows), np.int64, count),
            shape=np.array(shape, np.int64),
            interval_ms=np.fromiter(
                (row.interval_ms or 0 if number != RARE else 0 for row, number in zip(rows, shape, strict=True)),
                np.int64,
                count,
            ),
            effective_from_ms=np.fromiter(
                (row.effective_from_ms if number != RARE else 0 for row, number in zip(rows, shape, strict=True)),
                np.int64,
                count,
            ),
            names=b"".join(name for name, _, _ in texts),
            name_lengths=np.fromiter((len(name) for name, _, _ in texts), np.int64, count),
            payload=b"".join(payloads),
            lengths=np.fromiter(map(len, payloads), np.int64, count),
            args_lengths=np.fromiter((len(args) for _, args, _ in texts), np.int64, count),
        )

    def _compile(self, row: MonitorRow) -> Shape | None:
        """Compile the shape of ``row``; None if it has a problem."""
        common = row._replace(id=0, name="-", args="[]", kwargs="{}", effective_from_ms=0)
        if row.interval_ms is not None:
            common = common._replace(interval_ms=INTERVAL_MAX_MS)
        batch = self._compile_rows([common]).batch
        if not len(batch):
            return None
        own_window = row.interval_ms is not None and row.jitter_s is None
        return Shape(
            int(batch.kind[0]),
            int(batch.cron_index[0]),
            int(batch.flags[0]),
            batch.route_at(0),
            _WHOLE_INTERVAL if own_window else window_s(row, self._cron_jitter_s),
        )


def _value_of_shape(row: MonitorRow, taken_names: Collection[str]) -> object | None:
    """Return the values and types of the shared columns; None if the row has a rare column or a problem."""
    try:
        if not _may_have_shape(row, taken_names):
            return None
        if row.args != "[]":
            json_texts.parse_list("args", row.args)
        if row.kwargs != "{}":
            json_texts.parse_object("kwargs", row.kwargs)
    except Exception:  # compile_rows reports the reason
        return None
    common = tuple(row)[_COMMON_COLUMNS]
    return row.task, row.interval_ms is None, common, tuple(type(value) for value in common)


def _may_have_shape(row: MonitorRow, taken_names: Collection[str]) -> bool:
    """Return whether the row has no rare column, and its own columns have the right types."""
    numbers = (row.interval_ms or 0, row.effective_from_ms)
    return (
        _RARE_COLUMNS(row) == _NOTHING_RARE
        and isinstance(row.name, str)
        and row.name not in taken_names
        and bool(row.args and row.kwargs)
        and all(isinstance(number, int) and -_INT64 <= number < _INT64 for number in numbers)
        and row.name.isprintable()
    )


_NO_SHAPE = Shape(int(Kind.INTERVAL), -1, 0, Route(""), 0)


class _Common(NamedTuple):
    """The shapes of ``n`` rows as columns."""

    known: NDArray[np.bool_]
    kind: NDArray[np.uint8]
    cron_index: NDArray[np.int32]
    flags: NDArray[np.uint16]
    window_s: Int64s
    place: UInt32s
    """Position of the shape in its ``_Table``, also that of its route."""


class _Table(NamedTuple):
    """Known shapes as columns, ascending by number. Immutable: ``learn`` replaces the whole table."""

    numbers: Int64s
    rests: Int64s
    common: _Common
    routes: Sequence[Route]

    @classmethod
    def of(cls, known: Mapping[int, tuple[int, Shape | None]]) -> _Table:
        numbers = np.array(sorted(known), np.int64)
        rests = np.array([known[number][0] for number in numbers.tolist()], np.int64)
        shapes = [known[number][1] for number in numbers.tolist()]
        filled = [shape or _NO_SHAPE for shape in shapes] or [_NO_SHAPE]
        kind, cron_index, flags, routes, windows_s = zip(*filled, strict=True)
        common = _Common(
            known=np.array([shape is not None for shape in shapes] or [False], np.bool_),
            kind=np.array(kind, np.uint8),
            cron_index=np.array(cron_index, np.int32),
            flags=np.array(flags, np.uint16),
            window_s=np.array(windows_s, np.int64),
            place=np.arange(len(filled), dtype=np.uint32),
        )
        return cls(numbers, rests, common, routes)

    def holds(self, shape: Int64s) -> NDArray[np.bool_]:
        """Return a mask of the shape numbers that are known, including shapes with a problem."""
        if not len(self.numbers):
            return np.zeros(len(shape), np.bool_)
        found: NDArray[np.bool_] = self.numbers[self._places(shape)] == shape
        return found

    def of_shapes(self, shape: Int64s, rest: Int64s | None) -> _Common:
        """Return the shape of each row; ``known`` is false for unknown shapes and for shapes with a problem."""
        at = self._places(shape)
        known, kind, cron_index, flags, windows_s, place = self.common
        if len(self.numbers):
            learned = (self.numbers[at] == shape) & (self.rests[at] == (0 if rest is None else rest))
        else:
            learned = np.zeros(len(shape), np.bool_)
        return _Common(known[at] & learned, kind[at], cron_index[at], flags[at], windows_s[at], place[at])

    def _places(self, shape: Int64s) -> NDArray[np.intp]:
        return np.minimum(np.searchsorted(self.numbers, shape), max(0, len(self.numbers) - 1))
