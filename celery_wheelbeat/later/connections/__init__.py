"""The application's own connection, as the writers use it: statements join the transaction that is open there.

Known are connections of psycopg, ``sqlite3``, MySQLdb, Django and SQLAlchemy. Never: commit, roll back or close what
the application opened.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

from celery_wheelbeat.errors import InvalidRequest
from celery_wheelbeat.later.connections.redis import RedisSession

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NAMED = re.compile(r"(?<![:\w]):([a-z_]+)\b")


class Caller(Protocol):
    """A connection of the application."""

    vendor: str
    """``postgresql``, ``mysql``, ``sqlite`` or ``redis``."""

    def rows(self, statement: str, parameters: Mapping[str, Any]) -> list[Sequence[Any]]:
        """Run one statement with named parameters and return its rows; errors of the driver are not wrapped."""

    def copy(self, statement: str, rows: Iterable[Sequence[Any]]) -> bool:
        """Write ``rows`` with a ``COPY … FROM STDIN``; returns False if the driver has no COPY."""


class _Cursors:
    """Everything that has ``cursor()``: connections of drivers and of Django."""

    def __init__(self, vendor: str, connection: Any, *, colons: bool) -> None:
        self.vendor = vendor
        self._connection = connection
        self._colons = colons
        """Whether named parameters are written ``:name``, as in ``sqlite3``."""

    def rows(self, statement: str, parameters: Mapping[str, Any]) -> list[Sequence[Any]]:
        text = statement if self._colons or self.vendor != "sqlite" else _NAMED.sub(r"%(\1)s", statement)
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(text, *([parameters] if parameters else []))  # without any, a % is a %
            return list(cursor.fetchall()) if cursor.description else []

    def copy(self, statement: str, rows: Iterable[Sequence[Any]]) -> bool:
        with closing(self._connection.cursor()) as cursor:
            copy = getattr(cursor, "copy", None)
            if self.vendor != "postgresql" or copy is None:
                return False
            with copy(statement) as lines:
                for row in rows:
                    lines.write_row(row)
            return True


class _SqlAlchemy:
    """A ``Connection`` of SQLAlchemy, which begins its transaction with the first statement."""

    def __init__(self, vendor: str, connection: Any) -> None:
        self.vendor = vendor
        self._connection = connection

    def rows(self, statement: str, parameters: Mapping[str, Any]) -> list[Sequence[Any]]:
        result = self._connection.exec_driver_sql(statement, dict(parameters) or None)
        return list(result.fetchall()) if result.returns_rows else []

    def copy(self, statement: str, rows: Iterable[Sequence[Any]]) -> bool:  # noqa: ARG002 - the driver may be any
        return False


def caller_of(connection: Any) -> Caller:
    """Return ``connection`` as the writers use it; raises ``InvalidRequest`` for an unknown kind or vendor."""
    if isinstance(connection, RedisSession):
        return connection
    if isinstance(connection, sqlite3.Connection):
        return _Cursors("sqlite", connection, colons=True)
    if hasattr(connection, "vendor") and hasattr(connection, "settings_dict"):
        return _Cursors(_supported(connection.vendor, connection), connection, colons=False)
    if hasattr(connection, "get_bind") and hasattr(connection, "connection"):  # a Session of SQLAlchemy
        connection = connection.connection()
    if hasattr(connection, "exec_driver_sql"):
        return _SqlAlchemy(_supported(connection.dialect.name, connection), connection)
    if type(connection).__module__.partition(".")[0] == "psycopg":
        return _Cursors("postgresql", connection, colons=False)
    if type(connection).__module__.partition(".")[0] == "MySQLdb":
        return _Cursors("mysql", connection, colons=False)
    raise InvalidRequest(
        f"connection: {type(connection).__module__}.{type(connection).__qualname__}: expected a connection of psycopg, "
        "sqlite3, MySQLdb, Django or SQLAlchemy"
    )


def _supported(vendor: str, connection: Any) -> str:
    vendor = "mysql" if vendor == "mariadb" else vendor  # a dialect of SQLAlchemy
    if vendor not in ("postgresql", "sqlite", "mysql"):
        raise InvalidRequest(
            f"connection: one-off runs cannot be stored through {type(connection).__qualname__} in {vendor}: "
            "expected PostgreSQL, MariaDB or SQLite"
        )
    return vendor
