"""Read one-off runs from MariaDB: what a poll has not seen is found by comparing ids.

Rows of a second are only inserted, or replaced by their tombstones, so the numbers of both show whether anything is
new in it. Ids are compared then. A second is closed once every transaction that was open when it had passed has ended.

The server's list of transactions is a copy, which it renews only when nobody has read it for 0.1 s. A list is current
if it shows the statement that reads it.
"""

from __future__ import annotations

import uuid
from collections import deque
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.later.checks import LaterRow
from celery_wheelbeat.later.open_seconds import MARGIN_S, Resume
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
from celery_wheelbeat.later.ring import DAY_S, day_part, parts_between, parts_of, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

RECENT_S = 60
"""Seconds that passed less than this ago are compared in each poll."""
OLDER_EVERY_S = 30
"""All other open seconds are compared once in this time: a transaction has been open for a minute then."""
UNKNOWN_AGE_S = 3_600
"""Where the list of transactions cannot be seen or is not current, one of this age is assumed: the time-out of a
writer."""
SECONDS_OF_STATEMENT = 500
ACCESS_DENIED = 1227
CLOCK_MARGIN_S = 2
"""The server reports ages of transactions in whole seconds."""


class _MariadbSecond:
    """An open second: what was read of it."""

    def __init__(self) -> None:
        self.rows: dict[str, bool] = {}
        """Id → whether it is a tombstone."""
        self.passed_s: int | None = None
        """The database's clock at the first complete poll when the second had passed."""

    @property
    def numbers(self) -> tuple[int, int]:
        """Rows, and tombstones among them."""
        return len(self.rows), sum(self.rows.values())


class _MariadbPoll:
    """A poll that may take several calls."""

    def __init__(self, now_s: int, oldest_s: int, until_s: int, *, is_full: bool) -> None:
        self.now_s = now_s
        self.oldest_s = oldest_s
        """When the oldest open transaction began, at the latest."""
        self.until_s = until_s
        self.is_full = is_full
        """Whether every open second is compared."""
        self.wanted: deque[tuple[int, list[str]]] = deque()
        """(second, ids to be read)."""


class MariadbReader:
    """``LaterReader`` on MariaDB."""

    def __init__(self, connect: Callable[[], Any], resume: Resume | None, most_bytes: int = MAX_TEXTS) -> None:
        """``most_bytes``: larger texts are not read."""
        self._connection = ReadConnection(connect, "mysql")
        self._most_bytes = most_bytes
        self._closed_s: int | None = None if resume is None else resume.closed_s
        """None before the first poll of a first start, which begins with the oldest row."""
        self._opened_s = 0 if resume is None else resume.closed_s
        self._open: dict[int, _MariadbSecond] = {}
        self._full_s = 0
        self._sees_transactions = True
        self._poll: _MariadbPoll | None = None
        """The poll that is not complete."""
        self._state: Resume | None = None
        """After the last complete poll."""

    def poll(self, ahead_s: int, room: int = NO_LIMIT) -> Read:
        """See ``LaterReader``; each call has a transaction of its own."""
        oldest_age_s = self._oldest_age_s()  # before the snapshot: what has ended by now is visible in it
        poll, self._poll = self._poll, None  # after an error, ids are compared again
        rows: list[LaterRow] = []
        with self._connection.transaction("begin_poll"):
            poll = poll or self._begun(ahead_s, oldest_age_s)
            while poll.wanted and room > 0:
                second, ids = poll.wanted[0]
                found = self._piece(second, ids[:PIECE])
                rows += found
                room -= sum(map(size_of, found))
                del ids[:PIECE]
                if not ids:
                    poll.wanted.popleft()
        for row in rows:
            self._open[row.second].rows[row.id] = row.task == ""
        if poll.wanted:
            self._poll = poll
            return Read(poll.now_s, rows, self._state, more=True)
        self._complete(poll)
        return Read(poll.now_s, rows, self._state)

    def pause(self) -> None:
        """See ``LaterReader``; no transaction is open between calls."""

    def drop(self, day: int) -> bool:
        """See ``LaterReader``. Two beats may truncate the same part: the second one finds it empty."""
        part = day_part(day)
        last = self._connection.rows("last_second", {"part": part})[0][0]
        if last is None or last >= (day + 1) * DAY_S:
            return False
        self._connection.rows("truncate", table=table_of(part))
        return True

    def close(self) -> None:
        """See ``LaterReader``."""
        self._connection.close()

    def _begun(self, ahead_s: int, oldest_age_s: int) -> _MariadbPoll:
        now_s = int(self._connection.rows("clock")[0][0])
        if self._closed_s is None:
            period = {"from_s": now_s - BACK_S, "until_s": now_s, "parts": parts_between(now_s - BACK_S, now_s)}
            oldest = self._connection.rows("first_second", period)[0][0]
            self._closed_s = self._opened_s = min(now_s if oldest is None else int(oldest), now_s) - 1
        is_full = now_s - self._full_s >= OLDER_EVERY_S
        until_s = max(self._opened_s, min(now_s + ahead_s, self._opened_s + SECONDS_AT_ONCE))
        poll = _MariadbPoll(now_s, now_s - oldest_age_s, until_s, is_full=is_full)
        new = range(self._opened_s + 1, until_s + 1)
        compared = [second for second in self._open if is_full or second > now_s - RECENT_S]
        self._open.update({second: _MariadbSecond() for second in new if second not in self._open})
        for second in self._changed([*compared, *new]):
            found = self._connection.rows("ids", {"parts": parts_of(second), "second": second})
            known = self._open[second].rows
            ids = [run_id for run_id, gone in found if known.get(run_id) is not bool(gone)]
            if ids:
                poll.wanted.append((second, ids))
        return poll

    def _changed(self, seconds: Sequence[int]) -> Iterable[int]:
        """Yield those of ``seconds`` whose numbers of rows and tombstones are not those that were read."""
        for first in range(0, len(seconds), SECONDS_OF_STATEMENT):
            some = seconds[first : first + SECONDS_OF_STATEMENT]
            parts = sorted({part for second in some for part in parts_of(second)})
            for second, rows, gone in self._connection.rows("counts", {"parts": parts, "seconds": some}):
                if (rows, int(gone)) != self._open[second].numbers:
                    yield second

    def _piece(self, second: int, ids: Sequence[str]) -> list[LaterRow]:
        asked: Mapping[str, Any] = {"parts": parts_of(second), "second": second, "ids": ids}
        return [LaterRow._make(row) for row in self._connection.rows("rows", {**asked, "most_bytes": self._most_bytes})]

    def _complete(self, poll: _MariadbPoll) -> None:
        self._opened_s = poll.until_s
        if poll.is_full:
            self._full_s = poll.now_s
        for second in sorted(self._open):
            state = self._open[second]
            compared = poll.is_full or second > poll.now_s - RECENT_S
            if state.passed_s is None and compared and poll.now_s >= second + MARGIN_S:
                state.passed_s = poll.now_s
            if not compared or state.passed_s is None or poll.oldest_s < state.passed_s + CLOCK_MARGIN_S:
                break
            del self._open[second]
            self._closed_s = second
        closed_s = self._closed_s or 0
        self._state = Resume(closed_s, max(closed_s, poll.until_s), None)

    def _oldest_age_s(self) -> int:
        """Return the age in s of the oldest other open transaction, below 0 if there is none."""
        if not self._sees_transactions:
            return UNKNOWN_AGE_S
        try:
            with self._connection.transaction("begin_poll"):
                ((found, is_current),) = self._connection.rows("oldest_transaction", {"nonce": uuid.uuid4().hex})
        except SourceError as error:
            if error.__cause__ is not None and error.__cause__.args[:1] == (ACCESS_DENIED,):
                self._sees_transactions = False
                return UNKNOWN_AGE_S
            raise
        if not is_current:
            return UNKNOWN_AGE_S
        return -CLOCK_MARGIN_S if found is None else int(found)
