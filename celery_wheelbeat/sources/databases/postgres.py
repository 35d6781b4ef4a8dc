"""Monitors in PostgreSQL. The cursor is a snapshot: each poll reads the log rows that the last snapshot did not see.

``id > cursor`` would lose a row whose transaction commits late; waiting for the oldest transaction would delay all
edits. Log rows carry the id of their transaction (``xid8``), so "invisible then, visible now" is two index scans.
Transaction ids are valid within one history of one server: each poll compares system identifier, timeline, database and
tables, because a promoted standby reuses ids that the old primary had assigned.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import psycopg

from celery_wheelbeat.errors import CursorLost, SourceError
from celery_wheelbeat.jobs.rows import MonitorRow
from celery_wheelbeat.sources import Poll, RowBlock, Snapshot
from celery_wheelbeat.sources.databases.packed import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from celery_wheelbeat.schedules.kinds import Int64s
    from celery_wheelbeat.sources.databases.session import Session

CONNECT_TIMEOUT_S = 5
DEAD_PEER_MS = 15_000
"""How long sent bytes may stay unacknowledged before the connection counts as dead."""


class History(NamedTuple):
    """Identity of the server and its history; if it differs, the cursor is lost."""

    system_identifier: int
    timeline: int
    statistics_since_us: int | None
    """Last reset of the server's statistics, by a crash recovery or by hand."""
    database: int
    monitor_table: int
    changelog_table: int
    changelog_file: int
    installation: str


class PostgresCursor(NamedTuple):
    """A snapshot of transactions: those below ``xmax`` are visible unless they were in progress.

    A standby does not list transactions in progress: ``xmax`` is ``xmin`` there, and rows above are read in each poll.
    """

    xmin: int
    xmax: int
    in_progress: tuple[int, ...]
    history: History


class PostgresSource:
    """``MonitorSource`` of a PostgreSQL database."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._oldest = (0, 0.0)  # xmin of the last poll, and the instant since which it has not changed

    def snapshot(self) -> Snapshot:
        """Take the cursor that a read of the whole table begins with."""
        cursor, _ = self._head()
        count, text_bytes = self._session.rows("estimate")[0]
        return Snapshot(cursor, int(count), float(text_bytes or 0))

    def poll(self, cursor: PostgresCursor) -> Poll:
        """Look what changed since ``cursor``; raises ``CursorLost``."""
        with self._session.transaction("begin_read"):
            return self._changes(cursor)

    def fetch(self, ids: Sequence[int]) -> Sequence[MonitorRow]:
        """Read the current rows of ``ids``."""
        with self._session.transaction("begin_rows"):
            return self._rows("fetch", {"ids": [int(job_id) for job_id in ids]})

    def block(self, after_id: int, limit: int, cursor: PostgresCursor) -> RowBlock:
        """Read up to ``limit`` rows after ``after_id`` and poll, in one snapshot."""
        with self._session.transaction("begin_rows"):
            poll = self._changes(cursor)
            rows = self._rows("block", {"after_id": after_id, "limit": limit})
        return RowBlock(rows, len(rows) < limit, poll)

    def logged(self, ids: Sequence[int], within_s: float) -> set[int]:
        """Return those of ``ids`` that the change log mentions in the last ``within_s`` seconds."""
        parameters = {"ids": [int(job_id) for job_id in ids], "within_s": within_s}
        return {row[0] for row in self._session.rows("logged", parameters)}

    def close(self) -> None:
        """Drop the connection."""
        self._session.close()

    def _rows(self, statement: str, parameters: Mapping[str, Any]) -> list[MonitorRow]:
        return rows_of(self._session.rows(statement, parameters))

    def _head(self) -> tuple[PostgresCursor, int]:
        """Return the cursor of the current snapshot and the greatest pruned transaction id."""
        found = self._session.rows("head")
        if not found:
            raise SourceError("wheelbeat_installation is empty: run `manage.py migrate wheelbeat`")
        text, standby, *history, pruned_xid = found[0]
        xmin, xmax, in_progress = parse_snapshot(text)
        self._watch_oldest(xmin, xmax)
        return PostgresCursor(xmin, xmin if standby else xmax, in_progress, History(*history)), pruned_xid

    def _changes(self, cursor: PostgresCursor) -> Poll:
        """Compare the current snapshot with ``cursor``; both statements need one REPEATABLE READ transaction."""
        head, pruned_xid = self._head()
        _refuse_lost(cursor, head, pruned_xid)
        packed, whole_table = self._session.rows(
            "changes", {"xmax": str(cursor.xmax), "in_progress": "{" + ",".join(map(str, cursor.in_progress)) + "}"}
        )[0]
        if whole_table is not None:
            raise CursorLost("manual" if whole_table == "R" else "truncated")
        return Poll(np.unique(unpack_int64s(packed)), head, time.monotonic() - self._oldest[1])

    def _watch_oldest(self, xmin: int, xmax: int) -> None:
        """Track the age of the oldest writing transaction by xmin: needs no right to see other sessions."""
        if xmin == xmax or xmin != self._oldest[0]:
            self._oldest = (xmin, time.monotonic())


def _refuse_lost(cursor: PostgresCursor, head: PostgresCursor, pruned_xid: int) -> None:
    if head.history != cursor.history:
        same_server = head.history[:3] == cursor.history[:3]
        raise CursorLost("replaced" if same_server else "failover")
    if head.xmax < cursor.xmax or head.xmin < cursor.xmin:
        raise CursorLost("failover")
    if cursor.xmin <= pruned_xid < head.xmin:  # a greater pruned_xid comes from a restored dump
        raise CursorLost("pruned")


def parse_snapshot(text: str) -> tuple[int, int, tuple[int, ...]]:
    """Split ``xmin:xmax:xid,xid…``, the text form of PostgreSQL's ``pg_snapshot``."""
    xmin, xmax, in_progress = text.split(":")
    return int(xmin), int(xmax), tuple(map(int, in_progress.split(","))) if in_progress else ()


def rows_of(found: Iterable[Sequence[Any]]) -> list[MonitorRow]:
    """Convert the statements' ``columns`` to rows; only the fingerprint of ``packed`` is kept."""
    return [MonitorRow._make((*values[:-1], fingerprint(values[-1]))) for values in found]


def unpack_int64s(packed: bytes | None) -> Int64s:
    """Read the bytes of ``array_send(bigint[])``: a 20-byte head, then length (always 8) and value of each element."""
    if not packed:
        return np.empty(0, np.int64)
    elements = np.frombuffer(packed, np.dtype([("length", ">i4"), ("value", ">i8")]), offset=20)
    return elements["value"].astype(np.int64)


def connector(parameters: Callable[[], Mapping[str, Any]]) -> Callable[[], Any]:
    """Return a function that opens a connection: autocommit, no prepared statements, dead peers detected."""

    def connect() -> Any:
        given = dict(parameters())
        for name in ("cursor_factory", "context", "row_factory", "autocommit"):
            given.pop(name, None)
        given.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
        given.setdefault("tcp_user_timeout", DEAD_PEER_MS)
        given.setdefault("keepalives_idle", 10)
        given.setdefault("application_name", "wheelbeat")
        given["prepare_threshold"] = None
        return psycopg.connect(given.pop("conninfo", ""), autocommit=True, **given)

    return connect
