"""Read the seconds that come due, and whatever is still written into them; used by one thread of a beat.

A second is found by equality, so dead rows of a range cost nothing. Never: a write, except that whole days are dropped
long after they were settled.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.later.checks import ROW_BYTES, LaterRow
from celery_wheelbeat.later.ring import DAY_S
from celery_wheelbeat.runtime.statements import read_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from celery_wheelbeat.later.open_seconds import Resume

SECONDS_AT_ONCE = 600
"""Most seconds that one poll opens: after a long outage several polls catch up, each in a snapshot of its own."""
BACK_S = 32 * DAY_S
"""A first start reads what came due within this time; the ring of days is as long."""
PIECE = 256
"""Rows of one fetch."""
NO_LIMIT = 1 << 62
NO_NEW_SECOND = -(1 << 40)
"""As ``ahead_s`` of a poll: it opens no second, and reads what is new in those that are open."""
MAX_TEXTS = 1 << 20
"""Default of the most bytes of texts that are read of a row."""
DROP_ROWS = 10_000
"""Rows of one DELETE where there is no TRUNCATE."""


class Read(NamedTuple):
    """Result of one poll, or of one piece of it."""

    now_s: int
    """The database's clock."""
    rows: Sequence[LaterRow]
    """New since the last poll; a row may come again after a failover, with the same id."""
    state: Resume | None
    """Where the next poll goes on if every run that was read so far is settled; None: as before the first poll."""
    more: bool = False
    """Whether the poll goes on with the next call."""


class LaterReader(Protocol):
    """The store of one-off runs as a beat uses it. Every method raises ``SourceError`` if it does not answer."""

    def poll(self, ahead_s: int, room: int = ...) -> Read:
        """Read what is due within ``ahead_s`` seconds and was not read before; about ``room`` bytes of it.

        A poll that finds more goes on with the next calls, in its own snapshot.
        """

    def pause(self) -> None:
        """End the transaction of a poll that is not complete; the next call goes on."""

    def drop(self, day: int) -> bool:
        """Drop the rows that were due on day number ``day``, which every mark of the namespace has passed.

        Returns False if nothing was dropped: another beat does it, or there are rows of later days.
        """

    def close(self) -> None:
        """Drop the connection; the next call opens a new one."""


class ReadConnection:
    """One connection in autocommit mode, dropped at the first error."""

    def __init__(self, connect: Callable[[], Any], dialect: str) -> None:
        self._connect = connect
        self._connection: Any = None
        self.statements = read_statements("celery_wheelbeat.later", f"sql/{dialect}.sql")

    def rows(
        self,
        name: str,
        parameters: Mapping[str, Any] | None = None,
        table: str = "",
        *,
        rest: str = "",
        head: str = "",
        end: str = "",
    ) -> list[Any]:
        statement = self.statements[name].replace("{table}", table).replace("{rest}", rest)
        statement = f"{head} {statement} {end}".strip()
        try:
            if self._connection is None:
                self._connection = self._connect()
            cursor = self._connection.cursor()
            try:
                cursor.execute(statement, *(() if parameters is None else (parameters,)))
                while ";" in statement and not cursor.description and cursor.nextset():
                    pass  # of several statements, the first one that returns rows
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


def size_of(row: Sequence[Any]) -> int:
    """Return about how many bytes of memory a row of ``read`` needs."""
    return ROW_BYTES + len(row[4] or "") + len(row[5] or "") + len(row[6] or "")
