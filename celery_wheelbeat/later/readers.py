"""Read the seconds that come due, and whatever is still written into them; used by one thread of a beat.

A second is found by equality, so dead rows of a range cost nothing. Never: a write, except that whole days are dropped
long after they were settled.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.later.open_seconds import OpenSeconds, Resume, TransactionSnapshot
from celery_wheelbeat.later.ring import DAY_S, by_part, day_part, table_of
from celery_wheelbeat.runtime.statements import read_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SECONDS_AT_ONCE = 600
"""Most seconds that one poll opens: after a long outage several polls catch up, each in a snapshot of its own."""
DROP_ROWS = 10_000
"""Rows of one DELETE where there is no TRUNCATE."""


class LaterRow(NamedTuple):
    """A row as a beat reads it."""

    second: int
    id: str
    at_ms: int
    task: str
    """Empty for a tombstone: the run with this id was cancelled."""
    args: str
    kwargs: str
    options: str


class Read(NamedTuple):
    """Result of one poll."""

    now_s: int
    """The database's clock."""
    rows: Sequence[LaterRow]
    """New since the last poll; a row may come again after a failover, with the same id."""
    state: Resume
    """Where the next poll goes on if every run that was read so far is settled."""


class LaterReader(Protocol):
    """The store of one-off runs as a beat uses it. Every method raises ``SourceError`` if it does not answer."""

    def poll(self, ahead_s: int) -> Read:
        """Read what is due within ``ahead_s`` seconds and was not read before."""

    def drop(self, day: int) -> bool:
        """Drop the rows that were due on day number ``day``, which every mark of the namespace has passed.

        Returns False if nothing was dropped: another beat does it, or there are rows of later days.
        """

    def close(self) -> None:
        """Drop the connection; the next call opens a new one."""


class _ReadConnection:
    """One connection in autocommit mode, dropped at the first error."""

    def __init__(self, connect: Callable[[], Any], dialect: str) -> None:
        self._connect = connect
        self._connection: Any = None
        self.statements = read_statements("celery_wheelbeat.later", f"sql/{dialect}.sql")

    def rows(self, name: str, parameters: Mapping[str, Any] | None = None, table: str = "") -> list[Any]:
        statement = self.statements[name].replace("{table}", table)
        try:
            if self._connection is None:
                self._connection = self._connect()
            cursor = self._connection.cursor()
            try:
                cursor.execute(statement, *(() if parameters is None else (parameters,)))
                return list(cursor.fetchall()) if cursor.description else []
            finally:
                cursor.close()
        except Exception as error:
            self.close()
            raise SourceError(f"one-off runs: statement {name!r} failed: {error}") from error

    @contextmanager
    def transaction(self, begin: str) -> Iterator[None]:
        self.rows(begin)
        try:
            yield
            self.rows("commit")
        except BaseException:
            self.close()  # the server rolls back
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is discarded
                connection.close()


class PostgresReader:
    """``LaterReader`` on PostgreSQL: what a poll has not seen is found by the snapshots of transactions."""

    def __init__(self, connect: Callable[[], Any], resume: Resume | None) -> None:
        self._connection = _ReadConnection(connect, "postgresql")
        self._open = None if resume is None else OpenSeconds(resume)
        """None before the first poll of a first start, which begins with the oldest row."""

    def poll(self, ahead_s: int) -> Read:
        """See ``LaterReader``."""
        with self._connection.transaction("begin_poll"):
            now_s, text, history = self._connection.rows("head")[0]
            snapshot = TransactionSnapshot.of(text)
            seconds = OpenSeconds(self._first(now_s)) if self._open is None else self._open  # no second may be open
            seconds.continues(snapshot, history)
            plan = seconds.plan(min(now_s + ahead_s, seconds.opened_s + SECONDS_AT_ONCE))
            rows = self._late(seconds.snapshot, plan.late_s) + self._whole(plan.new_s)
        seconds.polled(plan, snapshot, now_s)
        self._open = seconds
        return Read(now_s, rows, seconds.state())

    def drop(self, day: int) -> bool:
        """See ``LaterReader``."""
        part = day_part(day)
        with self._connection.transaction("begin_drop"):
            if not self._connection.rows("try_lock", {"part": part})[0][0]:
                return False
            last = self._connection.rows("last_second", table=table_of(part))[0][0]
            if last is None or last >= (day + 1) * DAY_S:
                return False
            self._connection.rows("truncate", table=table_of(part))
        return True

    def close(self) -> None:
        """See ``LaterReader``."""
        self._connection.close()

    def _whole(self, seconds: Sequence[int]) -> list[LaterRow]:
        rows: list[LaterRow] = []
        for part, of_part in by_part(seconds):
            rows += map(LaterRow._make, self._connection.rows("read", {"seconds": of_part}, table_of(part)))
        return rows

    def _first(self, now_s: int) -> Resume:
        oldest = self._connection.rows("first_second")[0][0]
        before_s = min(now_s if oldest is None else oldest, now_s) - 1
        return Resume(before_s, before_s, None)

    def _late(self, seen: TransactionSnapshot | None, seconds: Sequence[int]) -> list[LaterRow]:
        if seen is None:
            return []
        unseen = {"xmax": str(seen.xmax), "in_progress": list(map(str, seen.in_progress))}
        rows: list[LaterRow] = []
        for part, of_part in by_part(seconds):
            found = self._connection.rows("read_late", {"seconds": of_part, **unseen}, table_of(part))
            rows += map(LaterRow._make, found)
        return rows


class SqliteReader:
    """``LaterReader`` on SQLite: its one writer at a time numbers the rows in the order of commits."""

    def __init__(self, connect: Callable[[], Any], resume: Resume | None) -> None:
        self._connection = _ReadConnection(connect, "sqlite")
        self._seq: int | None = None
        """Greatest number seen; None before the first poll of a first start."""
        self._opened_s = 0
        if resume is not None and resume.snapshot is not None:
            self._seq, self._opened_s = TransactionSnapshot.of(resume.snapshot).xmax, resume.done_s

    def poll(self, ahead_s: int) -> Read:
        """See ``LaterReader``."""
        with self._connection.transaction("begin_poll"):
            now_s, high, oldest = self._connection.rows("head")[0]
            seq, opened_s = self._seq, self._opened_s
            if seq is None or high < seq:  # a first start, or another file
                seq, opened_s = high, min(now_s if oldest is None else oldest, now_s) - 1
            until_s = min(now_s + ahead_s, opened_s + SECONDS_AT_ONCE)
            late = self._connection.rows("read_late", {"seq": seq, "opened_s": opened_s})
            new = self._connection.rows("read", {"opened_s": opened_s, "until_s": until_s})
        until_s = max(opened_s, until_s)
        self._seq, self._opened_s = high, until_s
        seen = str(TransactionSnapshot(high, high))
        return Read(now_s, [LaterRow._make(row) for row in (*late, *new)], Resume(until_s, until_s, seen))

    def drop(self, day: int) -> bool:
        """See ``LaterReader``."""
        return bool(self._connection.rows("drop_before", {"before_s": (day + 1) * DAY_S, "limit": DROP_ROWS}))

    def close(self) -> None:
        """See ``LaterReader``."""
        self._connection.close()
