"""One database connection of our own: opened on demand, dropped at the first error, used by one thread.

Never a connection of Django's. Whatever goes wrong below comes out as ``SourceError``; the next call connects anew.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.sources.databases.statements import read_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_ABSENT = ("no such table", "does not exist", "doesn't exist")
"""How SQLite, PostgreSQL and MariaDB say that there is no such table, column or database."""


class Session:
    """Runs the named statements of one vendor. Connections are in autocommit mode, so a statement stands alone."""

    def __init__(self, vendor: str, connect: Callable[[], Any]) -> None:
        self.vendor = vendor
        self._connect = connect
        self._connection: Any = None
        self._statements = read_statements("celery_wheelbeat.sources.databases", f"sql/{vendor}.sql")

    def rows(self, name: str, parameters: Mapping[str, Any] | None = None, **options: Any) -> list[Any]:
        """Run one statement and return all its rows. ``options`` are the driver's own, as psycopg's ``binary``."""
        with self._errors(name):
            cursor = self._connected().cursor()
            try:
                cursor.execute(self._statements[name], *(() if parameters is None else (parameters,)), **options)
                return list(cursor.fetchall()) if cursor.description else []
            finally:
                cursor.close()

    def call(self, name: str, function: Callable[[Any, str], Any]) -> Any:
        """Return what ``function`` makes of the connection and one statement: for what only one driver can do."""
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
        """Run the block in one transaction, begun by the statements called ``begin``."""
        self.rows(begin)
        try:
            yield
            self.rows("commit")
        except BaseException:
            self.close()  # whatever was open is rolled back by the server
            raise

    def close(self) -> None:
        """Drop the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is being thrown away; its state says nothing any more
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
            hint = " (was manage.py migrate run here?)" if any(map(str(error).__contains__, _ABSENT)) else ""
            raise SourceError(f"{self.vendor}: statement {name!r} failed: {error}{hint}") from error
