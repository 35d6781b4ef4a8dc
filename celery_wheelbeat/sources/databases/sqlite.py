"""Monitors in SQLite. One writer at a time, so ids of the change log are in commit order: the cursor is one id.

``AUTOINCREMENT`` keeps that true after deletes. The cursor is lost if the file was replaced: another inode, another
installation, a smaller greatest id, or another row at the last id read.
"""

from __future__ import annotations

import json
import os
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.errors import CursorLost, SourceError
from celery_wheelbeat.sources import Poll, RowBlock, Snapshot
from celery_wheelbeat.sources.databases.driver_rows import changed_ids, to_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_wheelbeat.jobs.rows import MonitorRow
    from celery_wheelbeat.sources.databases.session import Session

BUSY_TIMEOUT_S = 5.0
"""How long a statement waits for another writer before it fails; the next step retries it."""


class SqliteCursor(NamedTuple):
    """Position in the change log, and the identity of the file that makes it valid."""

    high: int
    last_row: str | None
    """The row with id ``high`` as text; None if the log was empty."""
    installation: str
    file: tuple[int, int] | None
    """Device and inode of the file; None for a database in memory."""


class SqliteSource:
    """``MonitorSource`` of a SQLite file."""

    def __init__(self, session: Session, file: Callable[[], tuple[int, int] | None]) -> None:
        self._session = session
        self._file = file

    def snapshot(self) -> Snapshot:
        """Take the cursor that a read of the whole table begins with."""
        with self._session.transaction("begin_read"):
            cursor = self._head()
            count, text_bytes = self._session.rows("estimate")[0]
        return Snapshot(cursor, count, text_bytes or 0.0)

    def poll(self, cursor: SqliteCursor) -> Poll:
        """Look what changed since ``cursor``; raises ``CursorLost``."""
        with self._session.transaction("begin_read"):
            return self._changes(cursor)

    def fetch(self, ids: Sequence[int]) -> Sequence[MonitorRow]:
        """Read the current rows of ``ids``."""
        return to_rows(self._session.rows("fetch", {"ids": listed([int(job_id) for job_id in ids])}))

    def block(self, after_id: int, limit: int, cursor: SqliteCursor) -> RowBlock:
        """Read up to ``limit`` rows after ``after_id`` and poll, in one snapshot."""
        with self._session.transaction("begin_read"):
            poll = self._changes(cursor)
            rows = to_rows(self._session.rows("block", {"after_id": after_id, "limit": limit}))
        return RowBlock(rows, len(rows) < limit, poll)

    def logged(self, ids: Sequence[int], within_s: float) -> set[int]:
        """Return those of ``ids`` that the change log mentions in the last ``within_s`` seconds."""
        parameters = {"ids": listed([int(job_id) for job_id in ids]), "within_s": within_s}
        return {row[0] for row in self._session.rows("logged", parameters)}

    def close(self) -> None:
        """Drop the connection."""
        self._session.close()

    def _head(self) -> SqliteCursor:
        high = self._state(0)[0]
        _, installation, _, last_row = self._state(high)
        return SqliteCursor(high, last_row, installation, self._file())

    def _changes(self, cursor: SqliteCursor) -> Poll:
        if self._file() != cursor.file:
            self.close()
            raise CursorLost("replaced")
        high, installation, pruned_id, last_row = self._state(cursor.high)
        if installation != cursor.installation or high < cursor.high:
            raise CursorLost("replaced")
        if cursor.high < pruned_id < high:  # a pruned id above every id comes from another log
            raise CursorLost("pruned")
        if cursor.last_row is not None and last_row is not None and last_row != cursor.last_row:
            raise CursorLost("replaced")
        if high == cursor.high:
            return Poll(np.empty(0, np.int64), cursor)
        return Poll(
            changed_ids(self._session.rows("changes", {"high": cursor.high})),
            cursor._replace(high=high, last_row=self._state(high)[3]),
        )

    def _state(self, high: int) -> tuple[int, str, int, str | None]:
        found = self._session.rows("state", {"high": high})
        if not found:
            raise SourceError("wheelbeat_installation is empty: run `manage.py migrate wheelbeat`")
        return tuple(found[0])


def connector(parameters: Callable[[], Mapping[str, Any]]) -> Callable[[], Any]:
    """Return a function that opens the file in autocommit mode, with a bounded wait for other writers."""

    def connect() -> Any:
        given = dict(parameters())
        for name in ("detect_types", "factory"):
            given.pop(name, None)
        given |= {"isolation_level": None, "check_same_thread": False, "timeout": BUSY_TIMEOUT_S}
        connection = sqlite3.connect(**given)
        # a text that is not UTF-8 quarantines one monitor instead of failing the whole read
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        return connection

    return connect


def file_identity(parameters: Callable[[], Mapping[str, Any]]) -> Callable[[], tuple[int, int] | None]:
    """Return a function that returns device and inode of the database file; None if it is in memory or missing."""

    def identity() -> tuple[int, int] | None:
        try:
            status = os.stat(str(parameters()["database"]))
        except OSError:
            return None
        return status.st_dev, status.st_ino

    return identity


def listed(values: Sequence[Any]) -> str:
    """Return ids or texts as the list parameter of the statements."""
    return json.dumps(list(values))
