"""Names read so far by an import, on disk, so that memory does not grow with their number."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class Names:
    """Maps each name to its first line. A context manager; closing it deletes the data."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None)  # a temporary file behind a small cache
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("CREATE TABLE met (name TEXT PRIMARY KEY, line INTEGER) WITHOUT ROWID")
        self._connection.execute("BEGIN")

    def first_line(self, name: str, line: int) -> int:
        """Return the first line of ``name``; ``line`` if the name is new."""
        if self._connection.execute("INSERT OR IGNORE INTO met VALUES (?, ?)", (name, line)).rowcount:
            return line
        return int(self._connection.execute("SELECT line FROM met WHERE name = ?", (name,)).fetchone()[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
