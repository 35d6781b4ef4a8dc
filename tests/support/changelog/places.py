"""Databases of the change log's tests, and a beat reduced to what reads them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.sources.databases.open import open_database
from support.site.databases import as_default

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_wheelbeat.jobs.rows import MonitorRow
    from celery_wheelbeat.sources import MonitorDatabase


class Place:
    """One database: the connection that Django writes through, and the beat's own way in."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.vendor = connection.vendor

    def open(self) -> MonitorDatabase:
        """The beat's source and store, on a new connection."""
        return open_database(self.vendor, self.connection.get_connection_params)

    def execute(self, statement: str, *parameters: Any) -> list[Any]:
        """Run plain SQL behind Django's models."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall()) if cursor.description else []

    @contextmanager
    def another_writer(self) -> Iterator[Any]:
        """A second connection of Django's, the default inside the block."""
        second = type(self.connection)({**self.connection.settings_dict}, "default")
        try:
            with as_default(second):
                yield second
        finally:
            second.close()


class Reader:
    """A beat as far as the change log is concerned: a cursor that moves on."""

    def __init__(self, place: Place) -> None:
        self.database = place.open()
        self.source = self.database.source
        self.cursor = self.source.snapshot().cursor

    def news(self) -> dict[int, MonitorRow | None]:
        """Poll and fetch: changed id → its row now, None where it was deleted."""
        poll = self.source.poll(self.cursor)
        self.cursor = poll.cursor
        rows = {row.id: row for row in self.source.fetch(poll.ids)}
        return {job_id: rows.get(job_id) for job_id in poll.ids.tolist()}

    def close(self) -> None:
        """Drop the connection."""
        self.source.close()


def monitor(name: str = "a", **columns: Any) -> Any:
    """Create one monitor."""
    from django_wheelbeat.models import Monitor

    return Monitor.objects.create(**{"name": name, "task": "proj.check", "interval_ms": 60_000, **columns})


def many(count: int, prefix: str = "m") -> list[Any]:
    """Build monitors for ``bulk_create``."""
    from django_wheelbeat.models import Monitor

    return [Monitor(name=f"{prefix}{n}", task="proj.check", interval_ms=60_000) for n in range(count)]


def fill(connection: Any, count: int, prefix: str = "m") -> None:
    """Insert monitors with one plain statement, which is faster than the ORM."""
    values = ", ".join(f"('{prefix}{n}', 'proj.check', 60000)" for n in range(count))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO wheelbeat_monitor (name, task, interval_ms) VALUES {values}")
