"""Read one-off runs from PostgreSQL: what a poll has not seen is found by the snapshots of transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.later.checks import LaterRow
from celery_wheelbeat.later.open_seconds import OpenSeconds, Resume, TransactionSnapshot
from celery_wheelbeat.later.readers import (
    BACK_S,
    MAX_TEXTS,
    NO_LIMIT,
    PIECE,
    SECONDS_AT_ONCE,
    Read,
    ReadConnection,
    size_of,
)
from celery_wheelbeat.later.ring import DAY_S, day_part, parts_of, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_wheelbeat.later.open_seconds import Plan


class _Query(NamedTuple):
    """One statement of a poll."""

    name: str
    table: str
    parameters: Mapping[str, Any]


class _PostgresPoll:
    """A poll that may take several calls: its snapshot, what it has to read, and how far it is."""

    def __init__(self, now_s: int, snapshot: TransactionSnapshot, plan: Plan, queries: Sequence[_Query]) -> None:
        self.now_s = now_s
        self.snapshot = snapshot
        self.plan = plan
        self._queries = list(queries)
        """The first one is being read."""
        self._after: tuple[int, str, str] | None = None
        """(second, xid, id) of the last row that was read with the first query."""
        self._has_cursor = False

    def pause(self) -> None:
        """Note that the transaction has ended, and the cursor with it."""
        self._has_cursor = False

    def piece(self, connection: ReadConnection, room: int) -> tuple[list[LaterRow], bool]:
        """Read about ``room`` bytes; returns the rows and whether there are more."""
        rows: list[LaterRow] = []
        while self._queries:
            found = self._fetch(connection)
            rows += [LaterRow._make(row[:-1]) for row in found]
            room -= sum(map(size_of, found))
            if len(found) == PIECE:
                self._after = (found[-1][0], found[-1][-1], found[-1][1])
            else:
                self._next(connection)
            if room <= 0 and self._queries:
                return rows, True
        return rows, False

    def _fetch(self, connection: ReadConnection) -> list[Any]:
        if self._has_cursor:
            return connection.rows("fetch")
        query, texts = self._queries[0], connection.statements
        if self._after is None:  # most polls find few rows: one statement returns them
            rest = {"rest": "", "end": texts["limit"]}
            return connection.rows(query.name, {**query.parameters, "rows": PIECE}, query.table, **rest)
        second, xid, run_id = self._after
        place = {"second": second, "xid": xid, "id": run_id, "snapshot": str(self.snapshot)}
        rest = {"rest": texts["after"], "head": texts["declare"]}
        connection.rows(query.name, {**query.parameters, **place}, query.table, **rest)
        self._has_cursor = True
        return connection.rows("fetch")

    def _next(self, connection: ReadConnection) -> None:
        if self._has_cursor:
            connection.rows("close_cursor")
        del self._queries[0]
        self._after, self._has_cursor = None, False


class PostgresReader:
    """``LaterReader`` on PostgreSQL: what a poll has not seen is found by the snapshots of transactions."""

    def __init__(self, connect: Callable[[], Any], resume: Resume | None, most_bytes: int = MAX_TEXTS) -> None:
        """``most_bytes``: larger texts are not read."""
        self._connection = ReadConnection(connect, "postgresql")
        self._open = None if resume is None else OpenSeconds(resume)
        """None before the first poll of a first start, which begins with the oldest row."""
        self._most_bytes = most_bytes
        self._poll: _PostgresPoll | None = None
        """The poll that is not complete."""
        self._now_s = 0
        """The database's clock at the last complete poll."""
        self._in_transaction = False

    def poll(self, ahead_s: int, room: int = NO_LIMIT) -> Read:
        """See ``LaterReader``."""
        try:
            return self._read(ahead_s, room)
        except BaseException:
            self.close()  # the server rolls back
            raise

    def pause(self) -> None:
        """See ``LaterReader``."""
        if self._in_transaction:
            self._end()  # also if the connection is lost: the next call begins a transaction
            self._connection.rows("commit")

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
        self._end()
        self._connection.close()

    def _read(self, ahead_s: int, room: int) -> Read:
        poll, seconds = self._begun(ahead_s)
        before = None if seconds.snapshot is None else seconds.state()
        rows, more = poll.piece(self._connection, room)
        if more:
            return Read(poll.now_s, rows, before, more=True)
        self._connection.rows("commit")
        self._end()
        self._poll, self._now_s = None, poll.now_s
        seconds.polled(poll.plan, poll.snapshot)
        return Read(poll.now_s, rows, seconds.state())

    def _begun(self, ahead_s: int) -> tuple[_PostgresPoll, OpenSeconds]:
        """Return the poll to go on with, in a transaction; a new one unless one is incomplete."""
        if self._in_transaction and self._poll is not None and self._open is not None:
            return self._poll, self._open
        passed = [] if self._open is None else self._open.passed(self._now_s)
        if self._open is not None and passed:
            self._open.note_passed(passed, int(self._connection.rows("next_id")[0][0]))
        now_s, text, history = self._connection.rows("begin_poll")[0]
        self._in_transaction = True
        snapshot = TransactionSnapshot.of(text)
        if self._open is None:
            self._open = OpenSeconds(self._first(now_s))
        seconds = self._open
        if seconds.continues(snapshot, history) and self._poll is not None:
            return self._poll, seconds
        plan = seconds.plan(min(now_s + ahead_s, seconds.opened_s + SECONDS_AT_ONCE))
        self._poll = _PostgresPoll(now_s, snapshot, plan, self._queries(seconds.snapshot, plan))
        return self._poll, seconds

    def _end(self) -> None:
        self._in_transaction = False
        if self._poll is not None:
            self._poll.pause()

    def _first(self, now_s: int) -> Resume:
        oldest = self._connection.rows("first_second", {"from_s": now_s - BACK_S})[0][0]
        before_s = min(now_s if oldest is None else oldest, now_s) - 1
        return Resume(before_s, before_s, None)

    def _queries(self, seen: TransactionSnapshot | None, plan: Plan) -> list[_Query]:
        """Return what a poll reads: one statement for late rows and one for new seconds, whatever parts they lie in."""
        every = {"most_bytes": self._most_bytes}
        found = []
        if seen is not None and plan.late_s:
            unseen = {**every, "xmax": str(seen.xmax), "in_progress": list(map(str, seen.in_progress))}
            found.append(_Query("read_late", self._union(plan.late_s), {**unseen, "seconds": plan.late_s}))
        if plan.new_s:
            found.append(_Query("read", self._union(plan.new_s), {**every, "seconds": plan.new_s}))
        return found

    def _union(self, seconds: Sequence[int]) -> str:
        parts = sorted({part for second in seconds for part in parts_of(second)})
        one = self._connection.statements["all_of_part"]
        return f"({' UNION ALL '.join(one.replace('{table}', table_of(part)) for part in parts)}) AS parts"
