"""A table of monitors of a given size on a private server, for ``coldstart`` and ``edits``.

Written by plain SQL with triggers disabled, and vacuumed, like a restored dump. Arguments are distinct, with 100 bytes.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "django_app"))

import psycopg
from services import PrivatePostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = {
    "shared_buffers": "1GB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "8GB",
    "maintenance_work_mem": "512MB",
    "autovacuum": "off",
}
PIECE = 1_000_000
COLUMNS = "name, task, kwargs, interval_ms, queue"
KWARGS = "'{{\"url\": \"https://customer-' || n || '.example.com/health/live?p=' || {hash} || '\", \"timeout_s\": 10}}'"


@contextmanager
def postgres_table(monitors: int) -> Iterator[str]:
    """Yield the URL of a private server whose monitor table is filled."""
    from support.site.databases import set_up_django, site_database

    set_up_django()
    with PrivatePostgres(**SETTINGS) as server:
        with site_database(server.url):
            pass
        with psycopg.connect(server.url, autocommit=True) as connection:
            fill_postgres(connection, monitors)
        yield server.url


def fill_postgres(connection: psycopg.Connection[Any], monitors: int) -> None:
    """Write the rows, then create the secondary indexes."""
    with filled_by_sql(connection):
        for first in range(1, monitors + 1, PIECE):
            connection.execute(
                f"INSERT INTO wheelbeat_monitor ({COLUMNS})"
                f" SELECT 'check ' || n, 'bench.check', {KWARGS.format(hash='left(md5(n::text), 20)')},"
                " (array[60000, 60000, 300000, 900000, 3600000, 86400000, 86400000])[1 + n % 7],"
                " CASE WHEN n % 3 = 0 THEN 'checks' ELSE '' END"
                f" FROM generate_series({first}, {min(monitors, first + PIECE - 1)}) n"
            )


@contextmanager
def filled_by_sql(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Disable triggers and drop secondary indexes of the monitor table during the block; restore both after it."""
    execute = connection.execute
    execute("ALTER TABLE wheelbeat_monitor DISABLE TRIGGER USER")
    indexes = execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'wheelbeat_monitor'"
        " AND indexname NOT IN (SELECT conname FROM pg_constraint WHERE contype IN ('p', 'u'))"
    ).fetchall()
    for name, _ in indexes:
        execute(f'DROP INDEX "{name}"')
    yield
    for _, definition in indexes:
        execute(definition)
    triggers = execute(
        "SELECT tgname FROM pg_trigger WHERE tgrelid = 'wheelbeat_monitor'::regclass AND NOT tgisinternal"
    ).fetchall()
    execute("ALTER TABLE wheelbeat_monitor " + ", ".join(f'ENABLE ALWAYS TRIGGER "{name}"' for (name,) in triggers))
    execute("VACUUM (FREEZE, ANALYZE) wheelbeat_monitor")


@contextmanager
def small_table(vendor: str, monitors: int, folder: Path) -> Iterator[str]:
    """Yield the URL of a filled SQLite file or MariaDB database."""
    from services import mysql_database
    from support.site.databases import as_default, set_up_django, site_database

    set_up_django()
    if vendor == "sqlite":
        url = f"sqlite:///{folder / 'monitors.sqlite3'}"
        with site_database(url) as connection, as_default(connection):
            _fill_small(monitors)
        yield url
        return
    with mysql_database() as url:
        with site_database(url) as connection, as_default(connection):
            _fill_small(monitors)
        yield url


def _fill_small(monitors: int) -> None:
    from django_wheelbeat.models import Monitor

    intervals = (60_000, 60_000, 300_000, 900_000, 3_600_000, 86_400_000, 86_400_000)
    for first in range(1, monitors + 1, 10_000):
        Monitor.objects.bulk_create(
            [
                Monitor(
                    name=f"check {n}",
                    task="bench.check",
                    kwargs=f'{{"url": "https://customer-{n}.example.com/health?p=0123456789abcdef", "timeout_s": 10}}',
                    interval_ms=intervals[n % 7],
                )
                for n in range(first, min(monitors, first + 9_999) + 1)
            ],
            batch_size=1_000,
        )
