"""Connections to MariaDB and SQLite, with bounded waits."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class CursorLink:
    """See ``SqlLink``; one statement after the other through a cursor."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, statements: str, values: Mapping[str, Any]) -> list[list[Sequence[Any]]]:
        """See ``SqlLink``."""
        found = []
        with closing(self._connection.cursor()) as cursor:
            for statement in statements.split(";\n"):
                cursor.execute(statement, values)
                if cursor.description:
                    found.append(list(cursor.fetchall()))
        return found

    def close(self) -> None:
        """See ``SqlLink``."""
        with suppress(Exception):  # the connection is discarded
            self._connection.close()


def connect_mariadb(parameters: Mapping[str, Any], wait_s: float) -> CursorLink:
    """Open a connection in autocommit mode; its time-outs are whole seconds."""
    import MySQLdb  # noqa: PLC0415 - an optional extra

    seconds = math.ceil(wait_s)
    bounds = {"connect_timeout": seconds, "read_timeout": seconds, "write_timeout": seconds, "autocommit": True}
    connection = MySQLdb.connect(**{**parameters, **bounds})
    try:
        with closing(connection.cursor()) as cursor:
            cursor.execute(
                "SET time_zone = '+00:00', innodb_lock_wait_timeout = %(s)s, lock_wait_timeout = %(s)s",
                {"s": seconds},
            )
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    except BaseException:
        connection.close()
        raise
    return CursorLink(connection)


def connect_sqlite(parameters: Mapping[str, Any], wait_s: float) -> CursorLink:
    """Open the file in autocommit mode; ``wait_s`` bounds the wait for another writer."""
    given = {name: value for name, value in parameters.items() if name not in ("detect_types", "factory")}
    fixed = {"isolation_level": None, "check_same_thread": False, "timeout": wait_s}
    return CursorLink(sqlite3.connect(**{**given, **fixed}))
