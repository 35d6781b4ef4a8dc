"""Write one-off runs: insert, cancel, find. Every call is part of the caller's transaction.

A cancelled run leaves a tombstone in its second: the beat may have read the row already, and follows each open second
until nobody can write into it any more. Never: an UPDATE. A row that was written is never written again.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from celery_wheelbeat.later.connections.redis import RedisSession
from celery_wheelbeat.later.run import LaterRun

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    if isinstance(caller, RedisSession):
        from celery_wheelbeat.later.writers.redis import RedisWriter  # noqa: PLC0415 - it imports this module

        return RedisWriter(caller)
    if caller.vendor == "postgresql":
        from celery_wheelbeat.later.writers.postgres import PostgresWriter  # noqa: PLC0415 - it imports this module

        return PostgresWriter(caller)
    if caller.vendor == "mysql":
        from celery_wheelbeat.later.writers.mariadb import MariadbWriter  # noqa: PLC0415 - same

        return MariadbWriter(caller)
    from celery_wheelbeat.later.writers.sqlite import SqliteWriter  # noqa: PLC0415 - same

    return SqliteWriter(caller)


def by_due_time(rows: Sequence[Sequence[Any]]) -> Sequence[Found]:
    return sorted(map(found_in, rows), key=lambda found: found.run.at_ms)


def first_found(rows: Sequence[Sequence[Any]]) -> Found | None:
    return found_in(rows[0]) if rows else None


def found_in(row: Sequence[Any]) -> Found:
    """Return a row of ``of_key``, ``of_id`` or ``list``."""
    *columns, too_late = row
    return Found(LaterRun(*columns), bool(too_late))
