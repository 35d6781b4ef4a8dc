"""The connection of a call that names none: Django's if the Django app is installed, else one of its own.

A connection that is opened here is used for one call, commits it and is closed.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from celery import current_app

from celery_wheelbeat.errors import InvalidRequest, SourceError, WheelbeatError, reason_of
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.settings.urls import conninfo_of, scheme_of, split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

BUSY_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5
_URL = "wheelbeat_database_url"

_lend: Callable[[str | None], AbstractContextManager[Any]] | None = None


def register(lend: Callable[[str | None], AbstractContextManager[Any]] | None) -> None:
    """Register ``lend(alias)``, which yields the application's connection (alias None: the monitors' database).

    The block is in the transaction that is open on the connection, or in one of its own.
    """
    global _lend  # noqa: PLW0603 - one process has one framework; Django registers itself in ready()
    _lend = lend


@contextmanager
def application_connection(using: str | None) -> Iterator[Any]:
    """Yield the connection of a call that names none; raises ``InvalidRequest`` if there is no database."""
    if _lend is not None:
        with _lend(using) as lent:
            yield lent
        return
    if using is not None:
        raise InvalidRequest(f"using: {using!r}: aliases are Django's, and django_wheelbeat is not installed")
    url = Settings.from_conf(current_app.conf).database_url
    if not url:
        raise InvalidRequest(f"one-off runs need a database: pass connection=, install django_wheelbeat, or set {_URL}")
    with _opened(url) as connection:
        yield connection


@contextmanager
def command_connection(app: Any) -> Iterator[Any]:
    """Yield a connection to the database that the beats of ``app`` read, for one command, and commit at the end.

    Every error of a driver becomes a ``SourceError``.
    """
    url = Settings.from_conf(app.conf).database_url
    try:
        with _opened(url) if url else application_connection(None) as connection:
            yield connection
    except WheelbeatError:
        raise
    except Exception as error:
        raise SourceError(f"one-off runs: {reason_of(error)}") from error


@contextmanager
def _opened(url: str) -> Iterator[Any]:
    scheme = scheme_of(url)
    if scheme == "sqlite":
        path = unquote(split_url(_URL, url).path.removeprefix("/"))
        connection: Any = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level="IMMEDIATE")
    elif scheme in ("postgres", "postgresql"):
        connection = _postgres(url)
    else:
        raise InvalidRequest(f"{_URL}: one-off runs cannot be stored in {scheme!r}: expected PostgreSQL or SQLite")
    try:
        yield connection
        connection.commit()
    finally:
        connection.close()  # rolls back what is not committed


def _postgres(url: str) -> Any:
    try:
        import psycopg  # noqa: PLC0415 - only who stores in PostgreSQL has the driver
    except ImportError as error:
        raise SourceError(f"no driver for postgresql: {error}; pip install 'celery-wheelbeat[postgres]'") from error
    given = dict(conninfo_of(_URL, url))
    given.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    return psycopg.connect(given.pop("conninfo", ""), **given)
