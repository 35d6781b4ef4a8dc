"""Monitors in PostgreSQL, read as columns: one row of arrays and joined texts for thousands of monitors.

Aggregating on the server costs it less than sending rows, and costs the client next to nothing. Everything about one
block is read in one snapshot: columns, one row for each shape that was never seen, and the rows that have to be
compiled by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg

from celery_wheelbeat.columns import RARE, Columns
from celery_wheelbeat.monitors import MonitorRow
from celery_wheelbeat.sources.bulk import ColumnBlock
from celery_wheelbeat.sources.postgres import unpack_int64s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_wheelbeat.columns import Shapes
    from celery_wheelbeat.jobs import Int64s
    from celery_wheelbeat.sources.session import Session

SMALL_BYTES = 32 << 20
"""Up to here (some 200,000 rows) every id is looked at to cut the table into blocks, beyond only a sample."""
SAMPLE_PERCENT = 3.0
BLOCK_BYTES = 8 << 20
"""Above this the server is slower per row: its buffers no longer stay in the cache of a core."""
_EPOCH_MS = 946_684_800_000
"""2000-01-01, from where PostgreSQL counts."""
_NAME_SHIFT, _ARGS_SHIFT = 40, 20
_LENGTH = (1 << _ARGS_SHIFT) - 1


class PostgresColumns:
    """``ColumnReader`` of a PostgreSQL database, on a connection of its own."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def cuts(self, after_id: int, block_rows: int) -> list[int]:
        """Return ascending ids that cut the table above ``after_id`` into blocks; the last one is its greatest.

        Cut by a sample, so blocks differ in size; smaller ones where rows are long.
        """
        own_bytes, all_bytes, last = self._session.rows("extent")[0]
        if last is None or last <= after_id:
            return []
        percent = 100.0 if own_bytes < SMALL_BYTES else SAMPLE_PERCENT
        sample = unpack_int64s(self._session.rows("sample", {"percent": percent}, binary=True)[0][0])
        step = max(1, min(round(block_rows * percent / 100), len(sample) * BLOCK_BYTES // all_bytes))
        sample = sample[sample > after_id]
        return [*sample[step - 1 :: step][:-1].tolist(), last]

    def named(self, names: Sequence[str]) -> Int64s:
        """Return the ids of the monitors with these names."""
        return np.array([row[0] for row in self._session.rows("named", {"names": list(names)})], np.int64)

    def read(self, after_id: int, up_to_id: int, shapes: Shapes, excluded: Int64s) -> ColumnBlock:
        """Read and compile the monitors above ``after_id``, up to ``up_to_id``."""
        return self._compiled("column_block", (str(after_id), str(up_to_id)), shapes, excluded)

    def read_ids(self, ids: Int64s, shapes: Shapes, excluded: Int64s) -> ColumnBlock:
        """Read and compile those of ``ids`` that are there."""
        return self._compiled("column_rows", ("{" + ",".join(map(str, ids.tolist())) + "}",), shapes, excluded)

    def close(self) -> None:
        """Drop the connection."""
        self._session.close()

    def _compiled(self, statement: str, parameters: Sequence[str], shapes: Shapes, excluded: Int64s) -> ColumnBlock:
        with self._session.transaction("begin_columns"):
            columns, content = self._columns(statement, parameters)
            unknown = shapes.unknown(columns)
            representatives = self._rows(list(unknown.values()))
            by_id = {row.id: row for row in representatives}
            shapes.learn({number: by_id[job_id] for number, job_id in unknown.items()})
            split = shapes.compile(columns, excluded)
            rows = self._rows(columns.ids[~split.plain].tolist())
        prints = (columns.shape ^ columns.interval_ms ^ content)[split.plain]
        return ColumnBlock(split.batch, prints, rows)

    def _columns(self, statement: str, parameters: Sequence[str]) -> tuple[Columns, Int64s]:
        found = self._session.call(statement, lambda connection, text: _one_row(connection, text, parameters))
        ids, shape, interval_ms, effective_us, lengths, content = map(unpack_int64s, found[:6])
        names, payload = found[6] or b"", found[7]
        args_lengths = (lengths >> _ARGS_SHIFT) & _LENGTH
        columns = Columns(
            ids=ids,
            shape=shape,
            interval_ms=interval_ms,
            effective_from_ms=effective_us // 1000 + _EPOCH_MS,
            names=names,
            name_lengths=lengths >> _NAME_SHIFT,
            payload=b"" if payload is None else b"[" + payload + b"]",
            lengths=np.where(shape == RARE, 0, (lengths & _LENGTH) + len("[]")),
            args_lengths=args_lengths,
        )
        if columns.whole():
            return columns, content
        return _without_texts(columns), content

    def _rows(self, ids: Sequence[int]) -> list[MonitorRow]:
        if not ids:
            return []
        return [MonitorRow._make(values) for values in self._session.rows("fetch", {"ids": ids})]


def _one_row(connection: psycopg.Connection[Any], statement: str, parameters: Sequence[str]) -> list[bytes | None]:
    """Run a statement in one call of libpq and return its only row, in binary.

    psycopg's own cursors come back to Python for every buffer that arrives, and wait for the interpreter each time;
    beside a thread that computes, the server then waits for us.
    """
    result = connection.pgconn.exec_params(
        statement.encode(),
        [parameter.encode() for parameter in parameters],
        result_format=psycopg.pq.Format.BINARY,
    )
    if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
        raise psycopg.OperationalError(connection.pgconn.get_error_message())
    return [result.get_value(0, column) for column in range(result.nfields)]


def _without_texts(columns: Columns) -> Columns:
    """Give up on the texts: their lengths, in the encoding of the database, are not those in UTF-8."""
    order = np.argsort(columns.ids)
    none = np.zeros(len(order), np.int64)
    return Columns(columns.ids[order], none, none, none, b"", none, b"", none, none)
