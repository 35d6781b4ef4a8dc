"""Opens SQL claim stores with the databases' own drivers. Nothing is imported before it is needed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from celery_wheelbeat.errors import InvalidSetting
from celery_wheelbeat.worker.stores.sql import MARIADB, POSTGRES, SQLITE, SqlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

TIMEOUT_S = 2
STATEMENT_TIMEOUT_MS = 2_000
ANSWER_S = 2.5
"""A server that was frozen enforces no time-out of its own: then the worker gives up."""
DIRECT = "wheelbeat.direct"
"""A parameter that only a server which has read our options knows: there is no pooler in between that drops them."""
DJANGO_OBJECTS = ("cursor_factory", "context", "row_factory")
"""Among Django's connection parameters; they serve Django's own cursors."""


def sql_store(url: str) -> SqlStore:
    """Open the store at a ``postgresql://``, ``sqlite:///`` or ``mysql://`` URL; ``+driver`` is ignored."""
    scheme = urlsplit(url).scheme.partition("+")[0]
    if scheme in ("postgresql", "postgres"):
        conninfo = "postgresql" + url[url.index("://") :]
        return postgres_store(lambda: {"conninfo": conninfo})
    if scheme == "sqlite":
        path = unquote(url.partition("://")[2].partition("?")[0]).removeprefix("/")
        if not path or path == ":memory:":
            raise InvalidSetting(f"claim store {url!r}: a database in memory is not shared between processes")
        return sqlite_store(path)
    if scheme in ("mysql", "mariadb"):
        return mariadb_store(lambda: _mysql_parameters(url))
    raise InvalidSetting(
        f"claim store {url!r}: expected a redis://, rediss://, sentinel://, postgresql://, sqlite:///, mysql:// "
        "or memcached:// URL"
    )


def postgres_store(parameters: Callable[[], Mapping[str, Any]]) -> SqlStore:
    """Keep claims in PostgreSQL; ``parameters()`` are those of ``psycopg.connect``, asked for each connection.

    Claims are committed without waiting for the disk: a crash of the server may forget those of its last second.
    """
    import psycopg  # noqa: PLC0415 - an optional extra

    class Impatient(psycopg.Connection[Any]):
        """Fails where the server does not answer in time, instead of waiting for ever."""

        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            return super().wait(_given_up_after(ANSWER_S, gen, psycopg.OperationalError), *args, **kwargs)

    swift = f"-c synchronous_commit=off -c statement_timeout={STATEMENT_TIMEOUT_MS} -c {DIRECT}=1"

    def connect() -> psycopg.Connection[Any]:
        given = {key: value for key, value in parameters().items() if key not in DJANGO_OBJECTS}
        given = {**psycopg.conninfo.conninfo_to_dict(given.pop("conninfo", "")), **given}
        given |= {"autocommit": True, "connect_timeout": TIMEOUT_S, "prepare_threshold": None}
        given.setdefault("tcp_user_timeout", TIMEOUT_S * 1000)  # a server that vanished without a word
        try:
            connection = Impatient.connect(**{**given, "options": f"{given.get('options') or ''} {swift}".strip()})
        except psycopg.OperationalError as error:
            if "startup parameter" not in str(error):
                raise
            connection = Impatient.connect(**given)
        try:
            direct = connection.execute(f"SELECT current_setting('{DIRECT}', true)").fetchone() == ("1",)
        except BaseException:
            connection.close()
            raise
        # behind a pooler a statement that was prepared on one server connection is unknown to the next
        connection.prepare_threshold = 1 if direct else None
        return connection

    return SqlStore("postgresql", POSTGRES, connect, (psycopg.Error, OSError))


def _given_up_after(limit_s: float, conversation: Any, failure: type[Exception]) -> Generator[Any, Any, Any]:
    """Pass on what psycopg's ``conversation`` with the server waits for; raise ``failure`` when it takes too long."""
    until_s = time.monotonic() + limit_s
    try:
        wanted = next(conversation)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= until_s:
                raise failure(f"no answer within {limit_s:g} s")
            wanted = conversation.send(ready)
    except StopIteration as end:
        return end.value


def sqlite_store(path: str, *, uri: bool = False) -> SqlStore:
    """Keep claims in the SQLite file at ``path``, which is a URI where ``uri`` says so."""
    import sqlite3  # noqa: PLC0415 - a Python may be built without it

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=uri)

    return SqlStore(f"sqlite {path}", SQLITE, connect, (sqlite3.Error, OSError))


def mariadb_store(parameters: Callable[[], Mapping[str, Any]]) -> SqlStore:
    """Keep claims in MariaDB; ``parameters()`` are those of ``MySQLdb.connect``, asked for each connection."""
    import MySQLdb  # noqa: PLC0415 - an optional extra
    from MySQLdb.constants import CLIENT  # noqa: PLC0415

    def connect() -> Any:
        fixed = {"autocommit": True, "connect_timeout": TIMEOUT_S, "read_timeout": TIMEOUT_S, "charset": "utf8mb4"}
        # rows matched, not rows changed: a mark that changes nothing is still ours
        connection = MySQLdb.connect(**{**parameters(), **fixed, "client_flag": CLIENT.FOUND_ROWS})
        cursor = connection.cursor()
        # UTC has no repeated hour; READ COMMITTED keeps the purge from locking the gaps that new claims go into
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.close()
        return connection

    return SqlStore("mariadb", MARIADB, connect, (MySQLdb.Error, OSError))


def _mysql_parameters(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    named = {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path.lstrip("/")),
    }
    return {**named, **{key: value for key, value in parse_qsl(parts.query) if key in ("unix_socket", "ssl_mode")}}
