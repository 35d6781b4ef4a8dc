"""Monitors as columns: the compilation of ``monitors`` for thousands of rows at once.

Rows of a large table differ in few things: id, name, arguments, interval. Everything else they have in common with
many others; that combination is their *shape*. A shape is compiled once, by the compiler of single rows, from one row
that has it, so there is one meaning. No two shapes may be taken for one: their values are compared, or digests of them.
Rows with anything rare, and rows that might have a problem, are named to be compiled one by one. That arguments are
JSON at all is seen to by the database.
"""

from __future__ import annotations

import threading
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.jobs import json_fields as json_texts
from celery_wheelbeat.jobs.compile import window_s
from celery_wheelbeat.jobs.definitions import DefinitionBatch, Route
from celery_wheelbeat.jobs.identity import cron_offset_ms
from celery_wheelbeat.jobs.rows import MonitorRow
from celery_wheelbeat.jobs.text_columns import proper_names, proper_payloads
from celery_wheelbeat.jobs.validation import MAX_TEXT
from celery_wheelbeat.schedules.intervals import INTERVAL_MAX_MS
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.jobs.compile import Compiled
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

RARE = 0
"""The number that stands for "has something rare": no shape."""
SHAPES_MAX = 65_536
"""Shapes that are kept; a table with more distinct combinations is compiled row by row from there on."""
_WHOLE_INTERVAL = -1
"""``window_s`` of an interval shape that spreads its jobs over their own interval."""
_NO_TEXTS = (b"", b"", b"")
_INT64 = 1 << 63
_RARE_NAMES = (
    "once_at_ms", "solar_event", "start_at_ms", "end_at_ms", "incident_interval_ms", "incident_until_ms",
    "finished_at_ms",
)  # fmt: skip
_RARE_COLUMNS = itemgetter(*map(MonitorRow._fields.index, _RARE_NAMES))
_NOTHING_RARE = (None,) * len(_RARE_NAMES)
_COMMON_COLUMNS = slice(MonitorRow._fields.index("cron"), MonitorRow._fields.index("incident_interval_ms"))


class Columns(NamedTuple):
    """``n`` rows of ``wheelbeat_monitor``, ascending by id."""

    ids: Int64s
    shape: Int64s
    """With ``shape_rest`` equal where everything is equal that is no column here, and only there; ``RARE`` where a row
    has to be compiled by itself."""
    interval_ms: Int64s
    """0 where there is none."""
    effective_from_ms: Int64s
    names: bytes
    """One after the other, UTF-8; nothing for rare rows."""
    name_lengths: Int64s
    payload: bytes
    """``[args, kwargs]``, one after the other, UTF-8; nothing for rare rows."""
    lengths: Int64s
    args_lengths: Int64s
    """Bytes of ``args`` within each payload."""
    looked_at: bool = False
    """The database has looked at the arguments already; what is odd is rare."""
    shape_rest: Int64s | None = None
    """The second half of a digest; None where ``shape`` is a number of its own for each shape."""

    def whole(self) -> bool:
        """Say whether the lengths add up to the texts, and the ids ascend."""
        adds_up = self.lengths.sum() == len(self.payload) and self.name_lengths.sum() == len(self.names)
        return bool(adds_up and (self.ids[1:] > self.ids[:-1]).all())


class ShapeKey(NamedTuple):
    """What tells one shape from every other. As a digest, it can be computed by anybody, but not aimed at."""

    number: int
    rest: int = 0


class Shape(NamedTuple):
    """What the rows of one shape have in common, compiled."""

    kind: int
    cron_index: int
    flags: int
    route: Route
    window_s: int


class Split(NamedTuple):
    """Columns after compilation."""

    batch: DefinitionBatch
    plain: NDArray[np.bool_]
    """Which of the rows are in ``batch``; the others are to be compiled one by one."""


class Shapes:
    """The shapes that are known. Thread-safe: a shape, once learned, never changes."""

    def __init__(
        self,
        compile_rows: Callable[[Sequence[MonitorRow]], Compiled],
        *,
        cron_jitter_s: int = 30,
        max_payload_bytes: int = 262_144,
        min_interval_ms: int = 100,
    ) -> None:
        """``compile_rows`` must not know names that are taken: only the shape of its rows is of interest."""
        self._compile_rows = compile_rows
        self._cron_jitter_s = cron_jitter_s
        self._max_payload_bytes = max_payload_bytes
        self._min_interval_ms = max(1, min_interval_ms)
        self._lock = threading.Lock()
        self._known: dict[int, tuple[int, Shape | None]] = {}
        """Number → rest and shape: of keys with the same number the first one, the others are compiled by rows."""
        self._table = _Table.of({})
        self._numbers: dict[object, int] = {}

    def unknown(self, columns: Columns) -> Mapping[ShapeKey, int]:
        """Return the shapes that were never seen, each with the id of a row that has it."""
        unseen = np.flatnonzero(~self._table.holds(columns.shape) & (columns.shape != RARE))
        if not len(unseen) or len(self._known) >= SHAPES_MAX:
            return {}
        _, first = np.unique(columns.shape[unseen], return_index=True)
        at = unseen[first[: SHAPES_MAX - len(self._known)]]
        rests = [0] * len(at) if columns.shape_rest is None else columns.shape_rest[at].tolist()
        return dict(zip(map(ShapeKey, columns.shape[at].tolist(), rests), columns.ids[at].tolist(), strict=True))

    def learn(self, rows: Mapping[ShapeKey, MonitorRow]) -> None:
        """Compile the shapes of ``rows``, shape → a row that has it, read in the same snapshot as the shape."""
        learned = {key: self._compile(row) for key, row in rows.items() if key.number not in self._known}
        if learned:
            with self._lock:
                for key, shape in learned.items():
                    self._known.setdefault(key.number, (key.rest, shape))
                self._table = _Table.of(self._known)

    def numbers_of(self, shapes: Sequence[object | None]) -> Int64s:
        """Number shapes that are values, such as texts: equal numbers where they are equal, and only there.

        ``RARE`` for None, and where so many are known that no more are kept.
        """
        known = self._numbers
        numbers = (RARE if shape is None else known.get(shape) or self._numbered(shape) for shape in shapes)
        return np.fromiter(numbers, np.int64, len(shapes))

    def _numbered(self, shape: object) -> int:
        with self._lock:
            if len(self._numbers) >= SHAPES_MAX:
                return self._numbers.get(shape, RARE)
            return self._numbers.setdefault(shape, -2 - len(self._numbers))

    def compile(self, columns: Columns, excluded: Int64s) -> Split:
        """Compile what is plain: of a known shape, without a problem, and not among the ids ``excluded``."""
        table = self._table
        common = table.of_shapes(columns.shape, columns.shape_rest)
        whole_s = columns.interval_ms // 1000
        spread = common.window_s == _WHOLE_INTERVAL
        window = np.where(spread, whole_s, common.window_s)
        plain = common.known & (columns.ids >= 0) & (columns.lengths <= self._max_payload_bytes + len("[, ]"))
        plain &= proper_names(columns.names, columns.name_lengths, MAX_TEXT)
        if not columns.looked_at:
            plain &= proper_payloads(columns.payload, columns.lengths, columns.args_lengths)
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

    def columns_of(self, rows: Sequence[MonitorRow], taken_names: Collection[str] = ()) -> Columns:
        """Turn rows (ascending by id) into columns; those whose JSON or name is not in order count as rare."""
        shape = self.numbers_of([_value_of_shape(row, taken_names) for row in rows]).tolist()
        texts = [
            _NO_TEXTS if number == RARE else (row.name.encode(), (row.args or "").encode(), (row.kwargs or "").encode())
            for row, number in zip(rows, shape, strict=True)
        ]
        payloads = [b"[%b, %b]" % (args, kwargs) if kwargs else b"" for _, args, kwargs in texts]
        count = len(rows)
        return Columns(
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
        """Compile everything about ``row`` that is not its own; None where that has a problem."""
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
    """Return what the row has in common with others, with the types; None where it has anything rare."""
    try:
        if not _may_have_shape(row, taken_names):
            return None
        if row.args != "[]":
            json_texts.parse_list("args", row.args)
        if row.kwargs != "{}":
            json_texts.parse_object("kwargs", row.kwargs)
    except Exception:  # whatever it is, the compiler of single rows says it
        return None
    common = tuple(row)[_COMMON_COLUMNS]
    return row.task, row.interval_ms is None, common, tuple(type(value) for value in common)


def _may_have_shape(row: MonitorRow, taken_names: Collection[str]) -> bool:
    """Say whether the row has nothing rare, and what is its own is of its type."""
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
    """The shapes of ``n`` rows, as columns."""

    known: NDArray[np.bool_]
    kind: NDArray[np.uint8]
    cron_index: NDArray[np.int32]
    flags: NDArray[np.uint16]
    window_s: Int64s
    place: UInt32s
    """Of each shape in its table, where its route is, too."""


class _Table(NamedTuple):
    """Known shapes as columns, ascending by number; replaced as a whole."""

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
        """Say which of these numbers are taken, with or without a problem."""
        if not len(self.numbers):
            return np.zeros(len(shape), np.bool_)
        found: NDArray[np.bool_] = self.numbers[self._places(shape)] == shape
        return found

    def of_shapes(self, shape: Int64s, rest: Int64s | None) -> _Common:
        """Return the columns for rows of these shapes."""
        at = self._places(shape)
        known, kind, cron_index, flags, windows_s, place = self.common
        if len(self.numbers):
            learned = (self.numbers[at] == shape) & (self.rests[at] == (0 if rest is None else rest))
        else:
            learned = np.zeros(len(shape), np.bool_)
        return _Common(known[at] & learned, kind[at], cron_index[at], flags[at], windows_s[at], place[at])

    def _places(self, shape: Int64s) -> NDArray[np.intp]:
        return np.minimum(np.searchsorted(self.numbers, shape), max(0, len(self.numbers) - 1))
