"""The connection of a call that names none: Django's if the Django app is installed, else one that is kept here.

A call writes where the beat reads, or is refused. On a connection that is kept here, a block is a whole transaction.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from celery import current_app

from celery_wheelbeat.errors import InvalidRequest, SourceError, WheelbeatError, reason_of
from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.connections.kept import KeptConnections
from celery_wheelbeat.later.connections.redis import SCHEMES, RedisKeys, RedisSession, redis_client
from celery_wheelbeat.runtime.statements import read_statements
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.settings.urls import conninfo_of, mysql_parameters, scheme_of, split_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

BUSY_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60
_URL = "wheelbeat_database_url"
_kept: dict[str, KeptConnections] = {}
"""URL → connections."""
_clients: dict[str, Any] = {}
"""URL → client of redis-py, whose pool of connections threads and forked processes may use."""
_same: dict[tuple[str, str], bool] = {}
"""(database of Django, URL) → whether the URL names that database."""


class Lend(Protocol):
    """Lends the connection of the application's framework."""

    def __call__(self, alias: str | None, *, savepoint: bool) -> AbstractContextManager[Any]:
        """Yield the connection ``alias`` (None: the one of the monitors), in its transaction or one of its own.

        ``savepoint``: an error in the block leaves the caller's transaction usable.
        """


_lend: Lend | None = None


def register(lend: Lend | None) -> None:
    """Register the framework's connections."""
    global _lend  # noqa: PLW0603 - one process has one framework; Django registers itself in ready()
    _lend = lend


@contextmanager
def application_connection(using: str | None, app: Any = None, *, savepoint: bool = False) -> Iterator[Any]:
    """Yield the connection of a call that names none; ``InvalidRequest`` if the beats of ``app`` do not read there.

    ``savepoint``: see ``Lend``.
    """
    app = app or current_app
    settings = Settings.from_conf(app.conf)
    if settings.later_url is not None:
        if using is not None:
            raise InvalidRequest(
                f"using: {using!r}: wheelbeat_later_url is set, so one-off runs do not lie in a database"
            )
        with _redis(settings, app) as session:
            yield session
        return
    url = settings.database_url
    if _lend is not None:
        with _lend(using, savepoint=savepoint) as lent:
            if url:
                _refuse_another(lent, url)
            yield lent
        return
    if using is not None:
        raise InvalidRequest(f"using: {using!r}: aliases are Django's, and django_wheelbeat is not installed")
    if not url:
        raise InvalidRequest(f"one-off runs need a database: pass connection=, install django_wheelbeat, or set {_URL}")
    with _opened(url) as connection:
        yield connection


@contextmanager
def command_connection(app: Any, *, of_monitors: bool = False) -> Iterator[Any]:
    """Yield a connection to where the beats of ``app`` read one-off runs, for one command, and commit at the end.

    ``of_monitors``: to the database of the monitors. Every error of a driver becomes a ``SourceError``.
    """
    settings = Settings.from_conf(app.conf)
    url = settings.database_url if of_monitors or not settings.later_url else None
    try:
        with _opened(url) if url else application_connection(None, app) as connection:
            yield connection
    except WheelbeatError:
        raise
    except Exception as error:
        raise SourceError(f"one-off runs: {reason_of(error)}") from error


def keys_of(settings: Settings, app: Any) -> RedisKeys:
    """Return the names of the keys in ``wheelbeat_later_url``, the same in every process of an app."""
    return RedisKeys(settings.namespace or app.main or "celery")


@contextmanager
def _redis(settings: Settings, app: Any) -> Iterator[RedisSession]:
    url = str(settings.later_url)
    if scheme_of(url) not in SCHEMES:
        raise InvalidRequest(f"wheelbeat_later_url ({scheme_of(url)}): expected redis://, rediss:// or unix://")
    if url not in _clients:
        _clients.setdefault(url, redis_client("wheelbeat_later_url", url))
    session = RedisSession(_clients[url], keys_of(settings, app))
    try:
        yield session
    finally:
        session.commit()


def is_database_of(url: str, connection: Any) -> bool:
    """Return whether ``url`` and ``connection`` lead to the same database, by one query on each side."""
    with _opened(url) as other:
        return _identity(other) == _identity(connection)


def close_all() -> None:
    """Close the connections that are kept and not in use."""
    for kept in _kept.values():
        kept.close()
    for client in _clients.values():
        client.close()
    _kept.clear()
    _clients.clear()
    _same.clear()


def _refuse_another(connection: Any, url: str) -> None:
    settings = getattr(connection, "settings_dict", {})
    place = (repr([settings.get(name) for name in ("ENGINE", "HOST", "PORT", "NAME")]), url)
    if place not in _same:
        _same[place] = is_database_of(url, connection)
    if not _same[place]:
        raise InvalidRequest(
            f"{_URL} names another database than Django's {getattr(connection, 'alias', 'default')!r}. The beat reads "
            "there, so this run would never be sent: remove the setting, or pass connection= with a connection to that "
            "database"
        )


def _identity(connection: Any) -> tuple[str, list[Any]]:
    caller = caller_of(connection)
    statements = read_statements("celery_wheelbeat.later", f"sql/{caller.vendor}.sql")
    return caller.vendor, [tuple(row) for row in caller.rows(statements["identity"], {})]


def _opened(url: str) -> AbstractContextManager[Any]:
    if url not in _kept:
        connect = _CONNECTS.get(scheme_of(url))
        if connect is None:
            raise InvalidRequest(
                f"{_URL}: one-off runs cannot be stored in {scheme_of(url)!r}: expected PostgreSQL, MariaDB or SQLite"
            )
        _kept.setdefault(url, KeptConnections(lambda: connect(url)))
    return _kept[url].lent()


def _sqlite(url: str) -> Any:
    path = unquote(split_url(_URL, url).path.removeprefix("/"))
    # One call at a time uses it, in whatever thread.
    return sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level="IMMEDIATE", check_same_thread=False)


def _postgres(url: str) -> Any:
    try:
        import psycopg  # noqa: PLC0415 - only who stores in PostgreSQL has the driver
    except ImportError as error:
        raise SourceError(f"no driver for postgresql: {error}; pip install 'celery-wheelbeat[postgres]'") from error
    given = dict(conninfo_of(_URL, url))
    given.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    return psycopg.connect(given.pop("conninfo", ""), **given)


def _mariadb(url: str) -> Any:
    try:
        import MySQLdb  # noqa: PLC0415 - only who stores in MariaDB has the driver
    except ImportError as error:
        raise SourceError(f"no driver for mysql: {error}; pip install 'celery-wheelbeat[mysql]'") from error
    times = {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": READ_TIMEOUT_S, "write_timeout": READ_TIMEOUT_S}
    return MySQLdb.connect(**{**times, **mysql_parameters(_URL, url)})


_CONNECTS = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "postgresql": _postgres,
    "mysql": _mariadb,
    "mariadb": _mariadb,
}
"""Scheme → function that opens a connection."""
