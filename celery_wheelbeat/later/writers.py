"""Write one-off runs: insert, cancel, find. Every call is part of the caller's transaction.

A cancelled run leaves a tombstone in its second: the beat may have read the row already, and follows each open second
until nobody can write into it any more. Never: an UPDATE. A row that was written is never written again.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from celery_wheelbeat.later.ring import due_ms_of, part_of, parts_between, parts_of, table_of
from celery_wheelbeat.later.run import LaterRun
from celery_wheelbeat.runtime.statements import read_statements

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.later.connections import Caller

IN_FORCE_MS = 2_000
"""A run can be cancelled or moved until this long before it is due."""
COPY_ROWS = 50
"""From this many runs in one call on, they are written by COPY where the driver has it."""


class Cancelled(Enum):
    """What became of a request to cancel a run."""

    CANCELLED = "cancelled"
    """The run will not be sent, if the caller's transaction commits before it is due."""
    TOO_LATE = "too_late"
    """It was sent, or is due within two seconds."""
    UNKNOWN = "unknown"
    """The store has no such run: it was cancelled before, was sent days ago, or never existed."""


class Found(NamedTuple):
    """A row of the store."""

    run: LaterRun
    too_late: bool
    """True if it is due within two seconds, or was due."""


class Wanted(NamedTuple):
    """Which rows are listed: those of the seconds ``from_s`` to ``until_s`` (exclusive), at most ``limit``."""

    from_s: int
    until_s: int
    limit: int
    key: str | None = None
    """None: every key."""
    task: str | None = None
    """None: every task."""


class LaterWriter(Protocol):
    """The store of one-off runs as an application uses it."""

    def insert(self, runs: Sequence[LaterRun]) -> None:
        """Insert ``runs``; each lies in the second it is due in, or in the next one if that has passed."""

    def cancel(self, run_id: str) -> bool:
        """Delete a run that is due in more than two seconds and leave a tombstone; returns whether it did."""

    def of_id(self, run_id: str, *, lock: bool) -> Found | None:
        """Return the run with this task id. ``lock``: this transaction is going to write."""

    def of_key(self, key: str, *, lock: bool) -> Found | None:
        """Return the run with ``key`` that is due last.

        ``lock``: this transaction is going to write, and other writers of the key wait for it.
        """

    def count(self, from_s: int, until_s: int) -> int:
        """Return how many runs lie in the seconds ``from_s`` to ``until_s`` (exclusive), sent ones included."""

    def listed(self, wanted: Wanted) -> Sequence[Found]:
        """Return the first rows that are ``wanted``, by due time, sent ones included."""


def writer_of(caller: Caller) -> LaterWriter:
    """Return the writer for the application's connection."""
    return PostgresWriter(caller) if caller.vendor == "postgresql" else SqliteWriter(caller)


class PostgresWriter:
    """``LaterWriter`` on PostgreSQL."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._statements = read_statements("celery_wheelbeat.later", "sql/postgresql.sql")

    def insert(self, runs: Sequence[LaterRun]) -> None:
        """See ``LaterWriter``."""
        if len(runs) >= COPY_ROWS and self._caller.copy(self._statements["copy"], self._placed(runs)):
            return
        columns: Sequence[Sequence[Any]] = list(zip(*runs, strict=True))
        names = ("ids", "at_ms", "keys", "tasks", "args", "kwargs", "options")
        if runs:
            self._run("insert", dict(zip(names, map(list, columns), strict=True)))

    def cancel(self, run_id: str) -> bool:
        """See ``LaterWriter``."""
        due_ms = due_ms_of(run_id)
        return due_ms is not None and bool(self._of_second("cancel", due_ms // 1000, run_id))

    def of_id(self, run_id: str, *, lock: bool) -> Found | None:  # noqa: ARG002 - to write an id takes no lock before
        """See ``LaterWriter``; a run that was due when it was inserted lies in a later second and is not found."""
        due_ms = due_ms_of(run_id)
        return None if due_ms is None else _found(self._of_second("of_id", due_ms // 1000, run_id))

    def of_key(self, key: str, *, lock: bool) -> Found | None:
        """See ``LaterWriter``."""
        if lock:
            self._run("lock_key", {"key": key})
        return _found(self._run("of_key", {"key": key, "in_force_ms": IN_FORCE_MS}))

    def count(self, from_s: int, until_s: int) -> int:
        """See ``LaterWriter``."""
        return int(self._of_parts("count", {"from_s": from_s, "until_s": until_s})[0][0])

    def listed(self, wanted: Wanted) -> Sequence[Found]:
        """See ``LaterWriter``."""
        return _by_due_time(self._of_parts("list", {**wanted._asdict(), "in_force_ms": IN_FORCE_MS}))

    def _placed(self, runs: Sequence[LaterRun]) -> list[tuple[Any, ...]]:
        """Return the rows of a COPY. The transaction has its id before the clock is read, as in ``insert``."""
        now_s = int(self._run("clock", {})[0][0]) // 1000
        seconds = [max(run.at_ms // 1000, now_s + 1) for run in runs]
        return [(part_of(second, now_s), second, *run) for second, run in zip(seconds, runs, strict=True)]

    def _of_second(self, name: str, second: int, run_id: str) -> list[Sequence[Any]]:
        day, month, _ = map(table_of, parts_of(second))
        statement = self._statements[name].replace("{day_table}", day).replace("{month_table}", month)
        return self._caller.rows(statement, {"second": second, "id": run_id, "in_force_ms": IN_FORCE_MS})

    def _of_parts(self, name: str, parameters: Mapping[str, Any]) -> list[Sequence[Any]]:
        """Run a statement on the parts of a range of seconds, each addressed by its name."""
        tables = map(table_of, parts_between(parameters["from_s"], parameters["until_s"]))
        parts = " UNION ALL ".join(self._statements["all_of_part"].replace("{table}", table) for table in tables)
        return self._caller.rows(self._statements[name].replace("{parts}", parts), parameters)

    def _run(self, name: str, parameters: Mapping[str, Any]) -> list[Sequence[Any]]:
        return self._caller.rows(self._statements[name], parameters)


class SqliteWriter:
    """``LaterWriter`` on SQLite, which has one writer at a time."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._statements = read_statements("celery_wheelbeat.later", "sql/sqlite.sql")

    def insert(self, runs: Sequence[LaterRun]) -> None:
        """See ``LaterWriter``."""
        for run in runs:
            self._run("insert", run._asdict())

    def cancel(self, run_id: str) -> bool:
        """See ``LaterWriter``."""
        due_ms = due_ms_of(run_id)
        if due_ms is None:
            return False
        place = {"second": due_ms // 1000, "id": run_id}
        if not self._run("tombstone", {**place, "in_force_ms": IN_FORCE_MS}):
            return False
        self._run("delete", place)
        return True

    def of_id(self, run_id: str, *, lock: bool) -> Found | None:
        """See ``LaterWriter``."""
        if lock:
            self._run("lock", {})
        due_ms = due_ms_of(run_id)
        if due_ms is None:
            return None
        return _found(self._run("of_id", {"second": due_ms // 1000, "id": run_id, "in_force_ms": IN_FORCE_MS}))

    def of_key(self, key: str, *, lock: bool) -> Found | None:
        """See ``LaterWriter``."""
        if lock:
            self._run("lock", {})
        return _found(self._run("of_key", {"key": key, "in_force_ms": IN_FORCE_MS}))

    def count(self, from_s: int, until_s: int) -> int:
        """See ``LaterWriter``."""
        return int(self._run("count", {"from_s": from_s, "until_s": until_s})[0][0])

    def listed(self, wanted: Wanted) -> Sequence[Found]:
        """See ``LaterWriter``."""
        return _by_due_time(self._run("list", {**wanted._asdict(), "in_force_ms": IN_FORCE_MS}))

    def _run(self, name: str, parameters: Mapping[str, Any]) -> list[Sequence[Any]]:
        return self._caller.rows(self._statements[name], parameters)


def _by_due_time(rows: Sequence[Sequence[Any]]) -> Sequence[Found]:
    return sorted(map(found_in, rows), key=lambda found: found.run.at_ms)


def _found(rows: Sequence[Sequence[Any]]) -> Found | None:
    return found_in(rows[0]) if rows else None


def found_in(row: Sequence[Any]) -> Found:
    """Return a row of ``of_key``, ``of_id`` or ``list``."""
    *columns, too_late = row
    return Found(LaterRun(*columns), bool(too_late))
