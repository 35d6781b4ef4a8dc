"""Read monitors in PostgreSQL as columns: one row of arrays and joined texts for thousands of monitors.

Aggregating costs the server less than sending rows, and the client almost nothing. Each block is read in one snapshot:
its columns, one row per new shape, and the rows to compile one by one.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import psycopg

from celery_wheelbeat.jobs.compile_columns import RowColumns
from celery_wheelbeat.sources.changelog.bulk_load import ColumnBlock
from celery_wheelbeat.sources.databases.packed import LAYOUT, Packed
from celery_wheelbeat.sources.databases.postgres import rows_of, unpack_int64s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_wheelbeat.jobs.compile_columns import Shapes
    from celery_wheelbeat.jobs.rows import MonitorRow
    from celery_wheelbeat.schedules.kinds import Int64s
    from celery_wheelbeat.sources.databases.session import Session

SMALL_BYTES = 32 << 20
"""Up to this size (about 200,000 rows) all ids are read to cut the table into blocks; above it, a sample."""
SAMPLE_PERCENT = 3.0
BLOCK_BYTES = 8 << 20
"""Above this the server is slower per row: its buffers no longer fit the cache of a core."""
_NO_ARGS = b"[]"


class PostgresColumns:
    """``ColumnReader`` of a PostgreSQL database, on its own connection."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def cuts(self, after_id: int, block_rows: int) -> list[int]:
        """Return ascending ids that cut the table above ``after_id`` into blocks; the last is the greatest id.

        Cut by a sample, so block sizes vary. Blocks are smaller where rows are long.
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

    def read(self, bounds: Sequence[int], shapes: Shapes, excluded: Int64s) -> ColumnBlock:
        """Read and compile the monitors in (``bounds[0]``, ``bounds[-1]``], block by block."""
        blocks = [(str(after_id), str(up_to_id)) for after_id, up_to_id in pairwise(bounds)]
        return self._compiled("column_block", blocks, shapes, excluded)

    def read_ids(self, ids: Int64s, shapes: Shapes, excluded: Int64s) -> ColumnBlock:
        """Read and compile the existing monitors among ``ids``."""
        return self._compiled("column_rows", [("{" + ",".join(map(str, ids.tolist())) + "}",)], shapes, excluded)

    def close(self) -> None:
        """Drop the connection."""
        self._session.close()

    def _compiled(
        self, statement: str, asked: Sequence[Sequence[str]], shapes: Shapes, excluded: Int64s
    ) -> ColumnBlock:
        with self._session.transaction("begin_columns"):
            pieces = [self._session.call(statement, partial(_one_row, parameters)) for parameters in asked]
            packed = Packed(b"".join(piece.packed for piece in pieces))
            columns = self._columns(packed, pieces)
            rare_ids = [unpack_int64s(piece.rare_ids) for piece in pieces]
            del pieces  # a copy of all texts
            unknown = shapes.unknown(columns)
            representatives = self._rows(list(unknown.values()))
            by_id = {row.id: row for row in representatives}
            shapes.learn({number: by_id[job_id] for number, job_id in unknown.items()})
            split = shapes.compile(columns, excluded)
            rows = self._rows(np.concatenate([columns.ids[~split.plain], *rare_ids]).tolist())
        prints = packed.prints()
        return ColumnBlock(split.batch, prints if split.plain.all() else prints[split.plain], rows)

    def _columns(self, packed: Packed, pieces: Sequence[_Piece]) -> RowColumns:
        ids, args_lengths = packed.column("id"), packed.column("args_bytes")
        payload: list[bytes] = []
        first = 0
        for piece in pieces:
            if piece.packed:
                args = self._args_of(int(ids[first]), int(args_lengths[first]))
                payload += (b"[", args, b", ", piece.texts, b"]")
                first += len(piece.packed) // LAYOUT.itemsize
        columns = RowColumns(
            ids=ids,
            shape=packed.column("shape"),
            interval_ms=packed.column("interval_ms"),
            effective_from_ms=packed.effective_from_ms(),
            names=b"".join(piece.names for piece in pieces),
            name_lengths=packed.column("name_bytes"),
            payload=b"".join(payload),
            lengths=args_lengths + packed.column("kwargs_bytes") + len("[, ]"),
            args_lengths=args_lengths,
            looked_at=True,
            shape_rest=packed.column("shape_rest"),
        )
        return columns if columns.whole() else _without_texts(columns)

    def _args_of(self, job_id: int, length: int) -> bytes:
        """Return the arguments of the first monitor of a block; the columns do not contain them."""
        if length == len(_NO_ARGS):
            return _NO_ARGS
        args: str = self._session.rows("args_of", {"id": job_id})[0][0]
        return args.encode()

    def _rows(self, ids: Sequence[int]) -> list[MonitorRow]:
        return rows_of(self._session.rows("fetch", {"ids": ids})) if ids else []


class _Piece(NamedTuple):
    """The result columns of one block."""

    packed: bytes
    names: bytes
    texts: bytes
    """``kwargs][args, kwargs][args, kwargs``."""
    rare_ids: bytes


def _one_row(parameters: Sequence[str], connection: psycopg.Connection[Any], statement: str) -> _Piece:
    """Run a statement in one call of libpq and return its only row, in binary.

    psycopg's cursors return to Python for every buffer that arrives and acquire the GIL each time; beside a thread that
    computes, the server would wait for the client.
    """
    result = connection.pgconn.exec_params(
        statement.encode(),
        [parameter.encode() for parameter in parameters],
        result_format=psycopg.pq.Format.BINARY,
    )
    if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
        raise psycopg.OperationalError(connection.pgconn.get_error_message())
    return _Piece(*(result.get_value(0, column) or b"" for column in range(result.nfields)))


def _without_texts(columns: RowColumns) -> RowColumns:
    """Return the columns without texts, whose lengths in the database's encoding are not their lengths in UTF-8."""
    order = np.argsort(columns.ids)
    none = np.zeros(len(order), np.int64)
    return RowColumns(columns.ids[order], none, none, none, b"", none, b"", none, none, looked_at=True)
