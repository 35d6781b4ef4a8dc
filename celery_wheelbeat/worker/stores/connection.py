"""A line: one connection of a SQL store, with the few operations that claims need."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any, NamedTuple, Protocol


class StoreAnswer(NamedTuple):
    """Result of one statement."""

    written: int
    """Number of rows written."""
    row: tuple[Any, ...] | None = None
    """First row of the result, or None."""


class Line(Protocol):
    """Sends statements in autocommit, each with its values."""

    def ask(self, statement: str, *values: object) -> StoreAnswer:
        """Send a statement and wait for its answer; raises the driver's errors."""

    def post(self, statement: str, *values: object) -> None:
        """Send a statement whose outcome is read with the next answer, or at once if the driver cannot defer it."""

    def close(self) -> None:
        """Close the connection."""


class CursorLine:
    """A line over a DB-API connection in autocommit."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def ask(self, statement: str, *values: object) -> StoreAnswer:
        """See ``Line``."""
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statement, values)
            return StoreAnswer(cursor.rowcount, cursor.fetchone() if cursor.description else None)

    def post(self, statement: str, *values: object) -> None:
        """See ``Line``: waits."""
        self.ask(statement, *values)

    def close(self) -> None:
        """See ``Line``."""
        self._connection.close()


class Losses:
    """Counts posted statements that failed or whose outcome stays unknown."""

    def __init__(self) -> None:
        self.count = 0
        """Losses since the last ``take``."""
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count ``count`` more."""
        with self._lock:
            self.count += count

    def take(self) -> int:
        """Return the count and reset it."""
        with self._lock:
            count, self.count = self.count, 0
            return count
