"""Open SQL claim stores with the databases' own drivers, imported on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from celery_wheelbeat.errors import InvalidSetting
from celery_wheelbeat.settings.urls import conninfo_of, scheme_of, split_url
from celery_wheelbeat.worker.stores.connection import CursorLine
from celery_wheelbeat.worker.stores.sql import MARIADB, SQLITE, SqlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from urllib.parse import SplitResult

TIMEOUT_S = 2


def sql_store(url: str) -> SqlStore:
    """Open the store at a ``postgresql://``, ``sqlite:///`` or ``mysql://`` URL; ``+driver`` is ignored."""
    scheme = scheme_of(url).partition("+")[0]
    if scheme in ("postgresql", "postgres"):
        from celery_wheelbeat.worker.stores.postgres import postgres_store  # noqa: PLC0415 - an optional extra

        given = conninfo_of("claim store", "postgresql" + url[url.index("://") :])
        return postgres_store(lambda: given)
    if scheme == "sqlite":
        path = unquote(url.partition("://")[2].partition("?")[0]).removeprefix("/")
        if not path or path == ":memory:":
            raise InvalidSetting(f"claim store ({scheme}): a database in memory is not shared between processes")
        return sqlite_store(path)
    if scheme in ("mysql", "mariadb"):
        parts = split_url("claim store", url)
        return mariadb_store(lambda: _mysql_parameters(parts))
    raise InvalidSetting(
        f"claim store ({scheme}): expected a redis://, rediss://, sentinel://, postgresql://, sqlite:///, mysql:// "
        "or memcached:// URL"
    )


def sqlite_store(path: str, *, uri: bool = False) -> SqlStore:
    """Keep claims in the SQLite file at ``path``; with ``uri``, ``path`` is a URI."""
    import sqlite3  # noqa: PLC0415 - a Python may be built without it

    def connect() -> CursorLine:
        return CursorLine(
            sqlite3.connect(path, timeout=TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=uri)
        )

    return SqlStore(f"sqlite {path}", SQLITE, connect, (sqlite3.Error, OSError))


def mariadb_store(parameters: Callable[[], Mapping[str, Any]]) -> SqlStore:
    """Keep claims in MariaDB; ``parameters()`` returns those of ``MySQLdb.connect``, called for each connection."""
    import MySQLdb  # noqa: PLC0415 - an optional extra
    from MySQLdb.constants import CLIENT  # noqa: PLC0415

    def connect() -> CursorLine:
        fixed = {"autocommit": True, "connect_timeout": TIMEOUT_S, "read_timeout": TIMEOUT_S, "charset": "utf8mb4"}
        # count matched, not changed, rows: a mark that changes nothing still succeeds
        connection = MySQLdb.connect(**{**parameters(), **fixed, "client_flag": CLIENT.FOUND_ROWS})
        cursor = connection.cursor()
        # UTC has no repeated hour; READ COMMITTED keeps the purge from locking gaps into which claims are inserted
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.close()
        return CursorLine(connection)

    return SqlStore("mariadb", MARIADB, connect, (MySQLdb.Error, OSError))


def _mysql_parameters(parts: SplitResult) -> dict[str, Any]:
    named = {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path.lstrip("/")),
    }
    return {**named, **{key: value for key, value in parse_qsl(parts.query) if key in ("unix_socket", "ssl_mode")}}
