"""One database connection: opened on demand, dropped at the first error, used by one thread.

Never a connection of Django's. Every driver error is raised as ``SourceError``; the next call reconnects.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.runtime.statements import read_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_ABSENT = ("no such table", "does not exist", "doesn't exist")
"""Error codes and texts of SQLite, PostgreSQL and MariaDB for a missing table, column or database."""


class Session:
    """Runs the named statements of one vendor. Connections are in autocommit mode."""

    def __init__(self, vendor: str, connect: Callable[[], Any]) -> None:
        self.vendor = vendor
        self._connect = connect
        self._connection: Any = None
        self._statements = read_statements("celery_wheelbeat.sources.databases", f"sql/{vendor}.sql")

    def rows(self, name: str, parameters: Mapping[str, Any] | None = None, **options: Any) -> list[Any]:
        """Run one statement and return all its rows. ``options`` go to the driver, e.g. psycopg's ``binary``."""
        with self._errors(name):
            cursor = self._connected().cursor()
            try:
                cursor.execute(self._statements[name], *(() if parameters is None else (parameters,)), **options)
                return list(cursor.fetchall()) if cursor.description else []
            finally:
                cursor.close()

    def call(self, name: str, function: Callable[[Any, str], Any]) -> Any:
        """Call ``function`` with the connection and one statement, for features of a single driver."""
        with self._errors(name):
            return function(self._connected(), self._statements[name])

    def write_many(self, name: str, parameters: Sequence[Mapping[str, Any]]) -> None:
        """Run one statement for each set of parameters."""
        with self._errors(name):
            cursor = self._connected().cursor()
            try:
                cursor.executemany(self._statements[name], parameters)
            finally:
                cursor.close()

    @contextmanager
    def transaction(self, begin: str) -> Iterator[None]:
        """Run the block in one transaction, started by the statements named ``begin``."""
        self.rows(begin)
        try:
            yield
            self.rows("commit")
        except BaseException:
            self.close()  # the server rolls back an open transaction
            raise

    def close(self) -> None:
        """Drop the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # the connection is discarded; errors while closing do not matter
                connection.close()

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except SourceError:
            self.close()
            raise
        except Exception as error:
            self.close()
            absent = any(map(str(error).__contains__, _ABSENT))
            hint = " (was manage.py migrate run here, or wheelbeat migrate?)" if absent else ""
            raise SourceError(f"{self.vendor}: statement {name!r} failed: {error}{hint}") from error
