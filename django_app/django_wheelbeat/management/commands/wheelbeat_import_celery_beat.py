"""``manage.py wheelbeat_import_celery_beat``: import the periodic tasks of django-celery-beat."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery import current_app
from django.core.management.base import CommandError, CommandParser

from django_wheelbeat.database.opening import monitor_alias
from django_wheelbeat.transfer.celery_beat import periodic_tasks, source
from django_wheelbeat.transfer.celery_beat_tables import tables_missing
from django_wheelbeat.transfer.commands import ImportCommand
from django_wheelbeat.transfer.notes import Notes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_wheelbeat.transfer.imports import Given


class Command(ImportCommand):
    """May be repeated until the switch: changes only differing monitors, and never the other scheduler's tables.

    Needs only the tables; the package need not be installed.
    """

    prunes = True
    help = "Import the periodic tasks of django-celery-beat as monitors; run it again to import later changes."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--from-database", default=None, help="alias of its database (default: the database of the monitors)"
        )
        super().add_arguments(parser)

    def handle(self, *_args: Any, from_database: str | None, **options: Any) -> None:
        """Import and print the remarks."""
        using = from_database or options["database"] or monitor_alias()
        missing = tables_missing(using)
        if missing:
            raise CommandError(
                f"Database {using!r} has no table {missing[0]}; name the right database with --from-database."
            )
        current_app.finalize(auto=True)
        entry_names = frozenset(current_app.conf.beat_schedule or {})
        notes, now = Notes(), datetime.now(UTC)
        options["reason"] = options["reason"] or "from django-celery-beat"
        origin = source(using, entry_names)

        def tasks() -> Iterator[Given]:
            notes.clear()  # they are read twice
            return periodic_tasks(using, entry_names, notes.note, now)

        report = self.run_import(tasks, options, despite_errors=True, source=origin.name)
        for line in notes.lines():
            self.stdout.write(line)
        self.report_missing(origin, report, options)
