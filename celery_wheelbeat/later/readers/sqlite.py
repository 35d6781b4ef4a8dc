"""Read one-off runs from SQLite: its one writer at a time numbers the rows in the order of commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.later.checks import LaterRow
from celery_wheelbeat.later.open_seconds import Resume, TransactionSnapshot
from celery_wheelbeat.later.readers import (
    BACK_S,
    DROP_ROWS,
    MAX_TEXTS,
    NO_LIMIT,
    PIECE,
    SECONDS_AT_ONCE,
    Read,
    ReadConnection,
    size_of,
)
from celery_wheelbeat.later.ring import DAY_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class _SqlitePoll(NamedTuple):
    """A poll that may take several calls."""

    high: int
    """Greatest number of a row."""
    opened_s: int
    until_s: int
    late: bool
    """Whether it is still reading what is late."""
    seq: int
    second: int
    """The last row that was read."""


class SqliteReader:
    """``LaterReader`` on SQLite: its one writer at a time numbers the rows in the order of commits."""

    def __init__(self, connect: Callable[[], Any], resume: Resume | None, most_bytes: int = MAX_TEXTS) -> None:
        """``most_bytes``: larger texts are not read."""
        self._connection = ReadConnection(connect, "sqlite")
        self._most_bytes = most_bytes
        self._poll: _SqlitePoll | None = None
        """The poll that is not complete."""
        self._state: Resume | None = None
        """After the last complete poll."""
        self._seq: int | None = None
        """Greatest number seen; None before the first poll of a first start."""
        self._opened_s = 0
        if resume is not None and resume.snapshot is not None:
            self._seq, self._opened_s = TransactionSnapshot.of(resume.snapshot).xmax, resume.done_s
            self._state = resume

    def poll(self, ahead_s: int, room: int = NO_LIMIT) -> Read:
        """See ``LaterReader``."""
        rows: list[LaterRow] = []
        with self._connection.transaction("begin_poll"):
            now_s, high, oldest = self._connection.rows("head", {"back_s": BACK_S})[0]
            poll = self._poll or self._begin(now_s, high, oldest, ahead_s)
            while room > 0:
                name = "read_late" if poll.late else "read"
                given = {**poll._asdict(), "most_bytes": self._most_bytes, "rows": PIECE}
                found = self._connection.rows(name, given)
                rows += map(_of_sqlite, found)
                room -= sum(map(size_of, found))
                if len(found) == PIECE:
                    poll = poll._replace(seq=found[-1][-1], second=found[-1][0])
                elif poll.late:
                    poll = poll._replace(late=False, second=poll.opened_s, seq=poll.high)
                else:
                    self._poll, self._seq, self._opened_s = None, poll.high, poll.until_s
                    seen = str(TransactionSnapshot(poll.high, poll.high))
                    self._state = Resume(poll.until_s, poll.until_s, seen)
                    return Read(now_s, rows, self._state)
        self._poll = poll
        return Read(now_s, rows, self._state, more=True)

    def pause(self) -> None:
        """See ``LaterReader``; every call has a transaction of its own."""

    def drop(self, day: int) -> bool:
        """See ``LaterReader``."""
        return bool(self._connection.rows("drop_before", {"before_s": (day + 1) * DAY_S, "limit": DROP_ROWS}))

    def close(self) -> None:
        """See ``LaterReader``."""
        self._connection.close()

    def _begin(self, now_s: int, high: int, oldest: int | None, ahead_s: int) -> _SqlitePoll:
        seq, opened_s = self._seq, self._opened_s
        if seq is None or high < seq:  # a first start, or another file
            seq, opened_s = high, min(now_s if oldest is None else oldest, now_s) - 1
        until_s = max(opened_s, min(now_s + ahead_s, opened_s + SECONDS_AT_ONCE))
        return _SqlitePoll(high, opened_s, until_s, late=True, seq=seq, second=opened_s)


def _of_sqlite(row: Sequence[Any]) -> LaterRow:
    """Return a row whose texts were read as octets; what is not UTF-8 becomes lone surrogates, which are refused."""
    texts = [value.decode(errors="surrogateescape") if isinstance(value, bytes) else value for value in row[:-1]]
    return LaterRow._make(texts)
