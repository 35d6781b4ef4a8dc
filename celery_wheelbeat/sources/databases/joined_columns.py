"""Read monitors in SQLite and MariaDB as columns: one row of joined texts for thousands of monitors.

Fetching rows costs a Python object per column, and in SQLite a GIL acquisition per row. Joined, a block is one step of
the database, and its texts are split here. Each block is read in one short snapshot: SQLite blocks writers meanwhile.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.jobs.compile_columns import RowColumns
from celery_wheelbeat.jobs.definitions import DefinitionBatch
from celery_wheelbeat.sources.changelog.bulk_load import ColumnBlock
from celery_wheelbeat.sources.databases.driver_rows import to_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_wheelbeat.jobs.compile_columns import Shapes
    from celery_wheelbeat.jobs.rows import MonitorRow
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s
    from celery_wheelbeat.sources.databases.session import Session

BLOCK_BYTES = 6 << 20
"""Bound of names and arguments per block: MariaDB truncates a joined text at ``max_allowed_packet`` (default 16 MB)."""
_END = b"\x1f"
"""Terminates each text. A block with a text that contains it is read row by row; valid JSON never contains it."""


class JoinedColumns:
    """``ColumnReader`` of a SQLite file or a MariaDB database, on its own connection."""

    def __init__(self, session: Session, listed: Callable[[Sequence[Any]], Any]) -> None:
        """``listed`` converts ids or names (at least one) to the driver's parameter for a list."""
        self._session = session
        self._listed = listed

    def cuts(self, after_id: int, block_rows: int) -> list[int]:
        """Return ascending ids that cut the table above ``after_id`` into blocks; the last is the greatest id.

        Exact: walks the primary key once. Blocks are smaller where rows are long.
        """
        text_bytes = float(self._session.rows("text_bytes")[0][0] or 1)
        skip = max(1, min(block_rows, round(BLOCK_BYTES / text_bytes))) - 1
        cuts: list[int] = []
        while found := self._session.rows("cut", {"after_id": after_id, "skip": skip}):
            after_id = found[0][0]
            cuts.append(after_id)
        last = self._session.rows("last")[0][0]
        return cuts if last is None or last <= after_id else [*cuts, last]

    def named(self, names: Sequence[str]) -> Int64s:
        """Return the ids of the monitors with these names."""
        found = self._session.rows("named", {"names": self._listed(names)}) if names else []
        return np.array([row[0] for row in found], np.int64)

    def read(self, bounds: Sequence[int], shapes: Shapes, excluded: Int64s) -> ColumnBlock:
        """Read and compile the monitors in (``bounds[0]``, ``bounds[-1]``], block by block."""
        blocks = [self._range(after_id, up_to_id, shapes, excluded) for after_id, up_to_id in pairwise(bounds)]
        return ColumnBlock(
            DefinitionBatch.merged([block.batch for block in blocks]),
            np.concatenate([block.prints for block in blocks]),
            [row for block in blocks for row in block.rows],
        )

    def read_ids(self, ids: Int64s, shapes: Shapes, excluded: Int64s) -> ColumnBlock:
        """Read and compile the existing monitors among ``ids``."""
        with self._session.transaction("begin_read"):
            joined = self._joined("column_rows", {"ids": self._listed(ids.tolist())})
            return self._compiled(joined, np.setdiff1d(ids, joined.ids), shapes, excluded)

    def close(self) -> None:
        """Drop the connection."""
        self._session.close()

    def _range(self, after_id: int, up_to_id: int, shapes: Shapes, excluded: Int64s) -> ColumnBlock:
        between = {"after_id": after_id, "up_to_id": up_to_id}
        with self._session.transaction("begin_read"):
            joined = self._joined("column_block", between)
            alone = np.empty(0, np.int64)
            if self._session.rows("count", between)[0][0] != len(joined.ids):
                ids = np.array([row[0] for row in self._session.rows("ids", between)], np.int64)
                alone = np.setdiff1d(ids, joined.ids)
            return self._compiled(joined, alone, shapes, excluded)

    def _joined(self, statement: str, parameters: Mapping[str, Any]) -> _Joined:
        return _Joined.of(*self._session.rows(statement, parameters)[0])

    def _compiled(self, joined: _Joined, alone: Int64s, shapes: Shapes, excluded: Int64s) -> ColumnBlock:
        """Compile the columns; read as rows the monitors ``alone`` and those that cannot be compiled as columns."""
        columns = joined.columns(shapes)
        unknown = shapes.unknown(columns)
        by_id = {row.id: row for row in self._rows(list(unknown.values()))}
        shapes.learn({number: by_id[job_id] for number, job_id in unknown.items()})
        split = shapes.compile(columns, excluded)
        rows = self._rows([*alone.tolist(), *joined.ids[~split.plain].tolist()])
        return ColumnBlock(split.batch, joined.prints()[split.plain], rows)

    def _rows(self, ids: Sequence[int]) -> list[MonitorRow]:
        return to_rows(self._session.rows("fetch", {"ids": self._listed(ids)})) if ids else []


class _Joined(NamedTuple):
    """Plain monitors, ascending by id, with their texts in UTF-8."""

    ids: Int64s
    interval_ms: Int64s
    effective_from_ms: Int64s
    shapes: Sequence[bytes]
    names: Sequence[bytes]
    args: Sequence[bytes]
    kwargs: Sequence[bytes]

    @classmethod
    def of(cls, numbers: str | None, *texts: str | None) -> _Joined:
        """Split the texts of one statement; empty if the numbers of texts differ, as after a truncation."""
        pieces = [(text or "").encode().split(_END) for text in texts]
        whole = (numbers or " ")[-1] == " " and not any(cut.pop() for cut in pieces)
        table = np.fromstring(numbers or "", np.int64, sep=" ")
        if whole and {len(table)} == {3 * len(cut) for cut in pieces}:
            ids, interval_ms, effective_from_ms = np.ascontiguousarray(table.reshape(-1, 3).T)
            if (ids[1:] > ids[:-1]).all():
                return cls(ids, interval_ms, effective_from_ms, *pieces)
        none = np.empty(0, np.int64)
        return cls(none, none, none, [], [], [], [])

    def columns(self, known: Shapes) -> RowColumns:
        """Return the columns to compile."""
        count = len(self.ids)
        args_lengths = np.fromiter(map(len, self.args), np.int64, count)
        kwargs_lengths = np.fromiter(map(len, self.kwargs), np.int64, count)
        return RowColumns(
            ids=self.ids,
            shape=known.numbers_of(self.shapes),
            interval_ms=self.interval_ms,
            effective_from_ms=self.effective_from_ms,
            names=b"".join(self.names),
            name_lengths=np.fromiter(map(len, self.names), np.int64, count),
            payload=b"".join(map(b"[%b, %b]".__mod__, zip(self.args, self.kwargs, strict=True))),
            lengths=args_lengths + kwargs_lengths + len("[, ]"),
            args_lengths=args_lengths,
        )

    def prints(self) -> UInt32s:
        """Return the fingerprint of each definition, the same as ``to_rows`` gives it."""
        texts = zip(self.shapes, self.names, self.args, self.kwargs, strict=True)
        content = np.fromiter(map(hash, texts), np.int64, len(self.ids))
        return (content ^ self.interval_ms ^ self.effective_from_ms).astype(np.uint32)
