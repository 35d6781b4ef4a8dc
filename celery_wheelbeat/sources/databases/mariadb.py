"""Monitors in MariaDB. The cursor is the highest id read and the gaps below it.

InnoDB assigns an id at the insert and makes it visible at the commit, in any order; a rollback leaves it unused. Each
poll therefore reads every id missing below the highest again, until no open transaction is older than the gap. That
check needs the PROCESS privilege; without it a gap is dropped after ``GAP_TIMEOUT_S``.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import MySQLdb

from celery_wheelbeat.errors import CursorLost, SourceError
from celery_wheelbeat.sources import Poll, RowBlock, Snapshot
from celery_wheelbeat.sources.databases.driver_rows import changed_ids, to_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from celery_wheelbeat.jobs.rows import MonitorRow
    from celery_wheelbeat.sources.databases.session import Session

GAP_TIMEOUT_S = 3_600.0
CLOCK_MARGIN_S = 2.0
"""The server reports ages of transactions in whole seconds."""
ACCESS_DENIED = 1227


MAX_GAPS = 64


class MariadbCursor(NamedTuple):
    """Position in the change log, and the identity of the log that makes it valid."""

    high: int
    gaps: tuple[IdGap, ...]
    last_row: str | None
    """The row with id ``high`` as text; None if the log was empty."""
    installation: str


class MariadbSource:
    """``MonitorSource`` of a MariaDB database."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._may_see_transactions = True

    def snapshot(self) -> Snapshot:
        """Take the cursor that a read of the whole table begins with."""
        oldest_s = self._oldest_transaction_s()
        with self._session.transaction("begin_read"):
            high = self._state(0)[0]
            _, installation, _, last_row = self._state(high)
            gaps = self._gaps_below(high, oldest_s)
        cursor = MariadbCursor(high, bounded(gaps), last_row, installation)
        count, text_bytes = self._session.rows("estimate")[0]
        return Snapshot(cursor, int(count), float(text_bytes or 0))

    def poll(self, cursor: MariadbCursor) -> Poll:
        """Look what changed since ``cursor``; raises ``CursorLost``."""
        oldest_s = self._oldest_transaction_s()
        with self._session.transaction("begin_read"):
            return self._changes(cursor, oldest_s)

    def fetch(self, ids: Sequence[int]) -> Sequence[MonitorRow]:
        """Read the current rows of ``ids``."""
        return to_rows(self._session.rows("fetch", {"ids": [int(job_id) for job_id in ids]})) if len(ids) else []

    def block(self, after_id: int, limit: int, cursor: MariadbCursor) -> RowBlock:
        """Read up to ``limit`` rows after ``after_id`` and poll, in one snapshot."""
        oldest_s = self._oldest_transaction_s()
        with self._session.transaction("begin_read"):
            poll = self._changes(cursor, oldest_s)
            rows = to_rows(self._session.rows("block", {"after_id": after_id, "limit": limit}))
        return RowBlock(rows, len(rows) < limit, poll)

    def logged(self, ids: Sequence[int], within_s: float) -> set[int]:
        """Return those of ``ids`` that the change log mentions in the last ``within_s`` seconds."""
        parameters = {"ids": [int(job_id) for job_id in ids], "within_s": within_s}
        return {row[0] for row in self._session.rows("logged", parameters)} if len(ids) else set()

    def close(self) -> None:
        """Drop the connection."""
        self._session.close()

    def _changes(self, cursor: MariadbCursor, oldest_s: float | None) -> Poll:
        """Read the log in the open snapshot, which must be taken after ``oldest_s`` was read."""
        high, installation, pruned_id, last_row = self._state(cursor.high)
        _refuse_lost(cursor, high, installation, pruned_id, last_row)
        now_s = time.monotonic()
        new = self._session.rows("changes", {"low": cursor.high + 1, "high": high}) if high > cursor.high else []
        gaps = missing_between(cursor.high + 1, (row[0] for row in new), now_s)
        changes = list(new)
        for gap in cursor.gaps:
            filled = self._session.rows("changes", {"low": gap.low, "high": gap.high})
            changes += filled
            gaps += without(gap, (row[0] for row in filled))
        head = cursor._replace(
            high=high,
            gaps=bounded([gap for gap in gaps if now_s - gap.since_s <= _longest_wait_s(oldest_s)]),
            last_row=self._state(high)[3] if high > cursor.high else cursor.last_row,
        )
        return Poll(changed_ids([row[1:] for row in changes]), head, (oldest_s or 0.0) if gaps else 0.0)

    def _gaps_below(self, high: int, oldest_s: float | None) -> list[IdGap]:
        """Return the gaps that open transactions may still fill: those among rows younger than the oldest of them."""
        reach_s, since_s = _longest_wait_s(oldest_s), time.monotonic()
        ids: list[int] = []
        low = high
        while low > 0:
            recent = self._session.rows("recent", {"high": low})
            young = [row[0] for row in recent if row[1] <= reach_s]
            ids += young
            if len(young) < len(recent) or not recent:
                break
            low = recent[-1][0] - 1
        ids.reverse()
        return missing_between(ids[0], ids, since_s) if ids else []

    def _oldest_transaction_s(self) -> float | None:
        """Return the age in s of the oldest other open transaction; 0 if there is none, None without the privilege."""
        if not self._may_see_transactions:
            return None
        try:
            return float(self._session.rows("oldest_transaction")[0][0] or 0)
        except SourceError as error:
            if isinstance(error.__cause__, MySQLdb.Error) and error.__cause__.args[0] == ACCESS_DENIED:
                self._may_see_transactions = False
                return None
            raise

    def _state(self, high: int) -> Any:
        found = self._session.rows("state", {"high": high})
        if not found:
            raise SourceError("wheelbeat_installation is empty: run `manage.py migrate wheelbeat`")
        return found[0]


def _longest_wait_s(oldest_s: float | None) -> float:
    return GAP_TIMEOUT_S if oldest_s is None else oldest_s + CLOCK_MARGIN_S


def _refuse_lost(cursor: MariadbCursor, high: int, installation: str, pruned_id: int, last_row: str | None) -> None:
    if installation != cursor.installation or high < cursor.high:
        raise CursorLost("replaced")
    if cursor.high < pruned_id < high:  # a pruned id above every id comes from another log
        raise CursorLost("pruned")
    if cursor.last_row is not None and last_row != cursor.last_row:
        raise CursorLost("replaced")


def connector(parameters: Callable[[], Mapping[str, Any]]) -> Callable[[], Any]:
    """Return a function that opens a connection: autocommit regardless of the options, UTC, every wait bounded."""

    def connect() -> Any:
        given = dict(parameters())
        given.pop("autocommit", None)
        given.setdefault("connect_timeout", 5)
        given.setdefault("read_timeout", 60)
        given.setdefault("write_timeout", 60)
        connection = MySQLdb.connect(**given)
        connection.autocommit(True)
        cursor = connection.cursor()
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SET time_zone = '+00:00', innodb_lock_wait_timeout = 2, group_concat_max_len = 1073741824")
        cursor.close()
        return connection

    return connect


class IdGap(NamedTuple):
    """Ids ``low … high`` (inclusive), missing since ``since_s`` on a monotonic clock."""

    low: int
    high: int
    since_s: float


def missing_between(low: int, ids: Iterable[int], since_s: float) -> list[IdGap]:
    """Return the ranges from ``low`` on that the ascending ``ids`` leave out, up to the last of them."""
    gaps = []
    for found in ids:
        if found > low:
            gaps.append(IdGap(low, found - 1, since_s))
        low = found + 1
    return gaps


def without(gap: IdGap, ids: Iterable[int]) -> list[IdGap]:
    """Return the remaining gaps after the ascending ``ids`` inside ``gap`` were found."""
    return [left for left in missing_between(gap.low, [*ids, gap.high + 1], gap.since_s) if left.low <= left.high]


def bounded(gaps: Sequence[IdGap], limit: int = MAX_GAPS) -> tuple[IdGap, ...]:
    """Merge the closest neighbours until at most ``limit`` gaps remain; a merged gap is as young as its youngest."""
    merged = sorted(gaps)
    while len(merged) > limit:
        distances = [right.low - left.high for left, right in pairwise(merged)]
        at = distances.index(min(distances))
        left, right = merged[at], merged[at + 1]
        merged[at : at + 2] = [IdGap(left.low, right.high, max(left.since_s, right.since_s))]
    return tuple(merged)
