"""Monitors as columns: the compilation of ``monitors`` for thousands of rows at once.

Rows of a large table differ in few things: id, name, arguments, interval. Everything else they have in common with
many others; that combination is their *shape*. A shape is compiled once, by the compiler of single rows, from one row
that has it, so there is one meaning. Rows with anything rare, and rows that might have a problem, are named to be
compiled one by one. Arguments are only looked at from outside: a text that is no JSON inside is found when its first
message is rendered.
"""

from __future__ import annotations

import threading
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat import json_texts
from celery_wheelbeat.checks import MAX_TEXT
from celery_wheelbeat.jobs import ALWAYS_MS, NEVER_MS, DefinitionBatch, Kind, Route
from celery_wheelbeat.monitors import window_s
from celery_wheelbeat.rows import MonitorRow
from celery_wheelbeat.runs import cron_offset_ms
from celery_wheelbeat.schedules import INTERVAL_MAX_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.jobs import Int64s, UInt32s
    from celery_wheelbeat.monitors import Compiled

RARE = 0
"""The number that stands for "has something rare": no shape."""
SHAPES_MAX = 65_536
"""Shapes that are kept; a table with more distinct combinations is compiled row by row from there on."""
_WHOLE_INTERVAL = -1
"""``window_s`` of an interval shape that spreads its jobs over their own interval."""
_MARKER = b'"__type__"'
_NO_TEXTS = (b"", b"", b"")
_INT64 = 1 << 63
_RARE_NAMES = (
    "once_at_ms", "solar_event", "start_at_ms", "end_at_ms", "incident_interval_ms", "incident_until_ms",
    "finished_at_ms",
)  # fmt: skip
_RARE_COLUMNS = itemgetter(*map(MonitorRow._fields.index, _RARE_NAMES))
_NOTHING_RARE = (None,) * len(_RARE_NAMES)
_COMMON_COLUMNS = slice(MonitorRow._fields.index("cron"), MonitorRow._fields.index("incident_interval_ms"))
_OPENING = (ord("["), ord("{"))
_CLOSING = (ord("]"), ord("}"))


class Columns(NamedTuple):
    """``n`` rows of ``wheelbeat_monitor``, ascending by id."""

    ids: Int64s
    shape: Int64s
    """Equal where everything is equal that is no column here; ``RARE`` where a row has to be compiled by itself."""
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
    """Whoever wrote the rows has looked at names and arguments from outside already; what is odd is rare."""

    def whole(self) -> bool:
        """Say whether the lengths add up to the texts, and the ids ascend."""
        adds_up = self.lengths.sum() == len(self.payload) and self.name_lengths.sum() == len(self.names)
        return bool(adds_up and (self.ids[1:] > self.ids[:-1]).all())


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
        self._known: dict[int, Shape | None] = {}
        self._table = _Table.of({})
        self._numbers: dict[tuple[object, ...], int] = {}

    def unknown(self, columns: Columns) -> Mapping[int, int]:
        """Return the shapes that were never seen, each with the id of a row that has it."""
        unseen = np.flatnonzero(~self._table.holds(columns.shape) & (columns.shape != RARE))
        if not len(unseen) or len(self._known) >= SHAPES_MAX:
            return {}
        numbers, first = np.unique(columns.shape[unseen], return_index=True)
        room = SHAPES_MAX - len(self._known)
        return dict(zip(numbers[:room].tolist(), columns.ids[unseen[first[:room]]].tolist(), strict=True))

    def learn(self, rows: Mapping[int, MonitorRow]) -> None:
        """Compile the shapes of ``rows``, shape → a row that has it, read in the same snapshot as the shape."""
        learned = {number: self._compile(row) for number, row in rows.items() if number not in self._known}
        if learned:
            with self._lock:
                self._known.update(learned)
                self._table = _Table.of(self._known)

    def compile(self, columns: Columns, excluded: Int64s) -> Split:
        """Compile what is plain: of a known shape, without a problem, and not among the ids ``excluded``."""
        table = self._table
        common = table.of_shapes(columns.shape)
        whole_s = columns.interval_ms // 1000
        spread = common.window_s == _WHOLE_INTERVAL
        window = np.where(spread, whole_s, common.window_s)
        plain = common.known & (columns.ids >= 0) & (columns.lengths <= self._max_payload_bytes + len("[, ]"))
        if not columns.looked_at:
            plain &= _proper_texts(columns)
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
        shape = [self._number(row, taken_names) for row in rows]
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

    def _number(self, row: MonitorRow, taken_names: Collection[str]) -> int:
        """Return the number of the row's shape, ``RARE`` where it has none."""
        try:
            if not _may_have_shape(row, taken_names):
                return RARE
            if row.args != "[]":
                json_texts.parse_list("args", row.args)
            if row.kwargs != "{}":
                json_texts.parse_object("kwargs", row.kwargs)
        except Exception:  # whatever it is, the compiler of single rows says it
            return RARE
        common = (row.task, row.interval_ms is None, row[_COMMON_COLUMNS])
        if common not in self._numbers and len(self._numbers) >= SHAPES_MAX:
            return RARE
        return self._numbers.setdefault(common, -2 - len(self._numbers))

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
    common: _Common
    routes: Sequence[Route]

    @classmethod
    def of(cls, known: Mapping[int, Shape | None]) -> _Table:
        numbers = np.array(sorted(known), np.int64)
        shapes = [known[number] for number in numbers.tolist()]
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
        return cls(numbers, common, routes)

    def holds(self, shape: Int64s) -> NDArray[np.bool_]:
        """Say which of ``shape`` were learned, with or without a problem."""
        if not len(self.numbers):
            return np.zeros(len(shape), np.bool_)
        found: NDArray[np.bool_] = self.numbers[self._places(shape)] == shape
        return found

    def of_shapes(self, shape: Int64s) -> _Common:
        """Return the columns for rows of these shapes."""
        at = self._places(shape)
        known, kind, cron_index, flags, windows_s, place = self.common
        learned = self.numbers[at] == shape if len(self.numbers) else np.zeros(len(shape), np.bool_)
        return _Common(known[at] & learned, kind[at], cron_index[at], flags[at], windows_s[at], place[at])

    def _places(self, shape: Int64s) -> NDArray[np.intp]:
        return np.minimum(np.searchsorted(self.numbers, shape), max(0, len(self.numbers) - 1))


def _proper_texts(columns: Columns) -> NDArray[np.bool_]:
    """Say whose name and arguments look as they should, from outside."""
    proper = (columns.name_lengths > 0) & (columns.name_lengths <= MAX_TEXT)
    proper &= (columns.args_lengths >= 2) & (columns.lengths - columns.args_lengths >= 6)
    if not proper.any():
        return proper
    name_at = np.cumsum(columns.name_lengths) - columns.name_lengths
    first = _bytes_at(columns.names, name_at)
    proper &= (first > ord(" ")) & (first < 0x7F)  # a name of unprintable or blank characters only begins otherwise
    ends = np.cumsum(columns.lengths)
    args_at = ends - columns.lengths + 1
    kwargs_at = args_at + columns.args_lengths + 2
    proper &= _bytes_at(columns.payload, args_at) == _OPENING[0]
    proper &= _bytes_at(columns.payload, kwargs_at - 3) == _CLOSING[0]
    proper &= _bytes_at(columns.payload, kwargs_at) == _OPENING[1]
    proper &= _bytes_at(columns.payload, ends - 2) == _CLOSING[1]
    for text, text_ends, mark in (
        (columns.payload, ends, _MARKER),
        (columns.payload, ends, b"\0"),
        (columns.names, name_at + columns.name_lengths, b"\0"),
    ):
        found = text.find(mark)
        while found >= 0:
            proper[np.searchsorted(text_ends, found, side="right")] = False
            found = text.find(mark, found + 1)
    return proper


def _bytes_at(text: bytes, positions: Int64s) -> NDArray[np.uint8]:
    """Return the byte at each position; positions of rows without a text may lie outside."""
    return np.frombuffer(text, np.uint8)[np.clip(positions, 0, len(text) - 1)]
