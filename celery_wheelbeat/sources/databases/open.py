"""Open the database of monitors, from a vendor and connection parameters or from ``wheelbeat_database_url``.

Drivers are imported on demand: a beat on PostgreSQL does not need MariaDB's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from celery_wheelbeat.errors import InvalidSetting, SourceError
from celery_wheelbeat.settings.urls import conninfo_of, mysql_parameters, scheme_of, split_url
from celery_wheelbeat.sources import MonitorDatabase, monitor_database
from celery_wheelbeat.sources.databases.session import Session
from celery_wheelbeat.sources.databases.store import SqlBeatStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_wheelbeat.settings import Settings
    from celery_wheelbeat.sources import MonitorSource
    from celery_wheelbeat.sources.changelog.bulk_load import ColumnReader

SCHEMES = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "sqlite": "sqlite",
    "mysql": "mysql",
    "mariadb": "mysql",
}
"""Scheme of a URL → vendor."""


def open_database(vendor: str, parameters: Callable[[], Mapping[str, Any]]) -> MonitorDatabase:
    """Return source and store of a database of ``vendor`` (``postgresql sqlite mysql``); nothing connects yet.

    ``parameters()`` returns the driver's connection parameters; it is called before each connect.
    """

    def database(
        connect: Callable[[], Any],
        source_of: Callable[[Session], MonitorSource],
        reader_of: Callable[[Session], ColumnReader],
    ) -> MonitorDatabase:
        session = Session(vendor, connect)
        return MonitorDatabase(
            vendor,
            source_of(session),
            SqlBeatStore(session),
            lambda: reader_of(Session(vendor, connect)),
            connect,
            parameters,
        )

    try:
        if vendor == "sqlite":
            from celery_wheelbeat.sources.databases import joined_columns, sqlite  # noqa: PLC0415 - see above

            return database(
                sqlite.connector(parameters),
                lambda session: sqlite.SqliteSource(session, sqlite.file_identity(parameters)),
                lambda session: joined_columns.JoinedColumns(session, sqlite.listed),
            )
        if vendor == "postgresql":
            from celery_wheelbeat.sources.databases import postgres, postgres_columns  # noqa: PLC0415 - see above

            return database(postgres.connector(parameters), postgres.PostgresSource, postgres_columns.PostgresColumns)
        if vendor == "mysql":
            from celery_wheelbeat.sources.databases import joined_columns, mariadb  # noqa: PLC0415 - see above

            return database(
                mariadb.connector(parameters),
                mariadb.MariadbSource,
                lambda session: joined_columns.JoinedColumns(session, list),
            )
    except ImportError as error:
        extra = "postgres" if vendor == "postgresql" else vendor
        raise SourceError(f"no driver for {vendor}: {error}; pip install 'celery-wheelbeat[{extra}]'") from error
    raise SourceError(f"monitors cannot be stored in a database of vendor {vendor!r}: use postgresql, sqlite or mysql")


def database_of(app: Any, settings: Settings) -> MonitorDatabase | None:
    """Return the database of the monitors: that of ``wheelbeat_database_url``, else the registered one, else None."""
    return from_url(settings.database_url) if settings.database_url else monitor_database(app)


def from_url(url: str) -> MonitorDatabase:
    """Return the database that ``wheelbeat_database_url`` names; raises ``InvalidSetting`` for an unknown scheme."""
    expected = "postgresql://user:password@host:5432/name, mysql://… or sqlite:///path"
    scheme = scheme_of(url)
    vendor = SCHEMES.get(scheme)
    if vendor is None:
        raise InvalidSetting(f"wheelbeat_database_url: unknown scheme {scheme!r}; expected {expected}")
    database = open_database(vendor, lambda: _parameters(vendor, url))
    _parameters(vendor, url)  # reject unreadable values now instead of at each connect
    return database


def _parameters(vendor: str, url: str) -> Mapping[str, Any]:
    if vendor == "postgresql":
        return conninfo_of("wheelbeat_database_url", url)
    if vendor == "sqlite":
        return {"database": unquote(split_url("wheelbeat_database_url", url).path.removeprefix("/"))}
    return mysql_parameters("wheelbeat_database_url", url)
