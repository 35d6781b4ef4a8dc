"""``manage.py wheelbeat_import_celery_beat``: take over the periodic tasks of django-celery-beat."""

from __future__ import annotations

from typing import Any

from celery import current_app
from django.apps import apps
from django.core.management.base import CommandError, CommandParser

from django_wheelbeat.database import monitor_alias
from django_wheelbeat.transfer.celery_beat import periodic_tasks
from django_wheelbeat.transfer.commands import ImportCommand


class Command(ImportCommand):
    """May be repeated until the switch: it changes what differs, and the other scheduler's tables never."""

    help = "Import the periodic tasks of django-celery-beat as monitors; run it again to keep both in step."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--from-database", default=None, help="alias of its database (default: that of monitors)")
        super().add_arguments(parser)

    def handle(self, *_args: Any, from_database: str | None, **options: Any) -> None:
        """Import, and say what needs a look."""
        if not apps.is_installed("django_celery_beat"):
            raise CommandError("django_celery_beat is not in INSTALLED_APPS: leave it there until everything is moved.")
        using = from_database or options["database"] or monitor_alias()
        current_app.finalize(auto=True)
        entry_names = frozenset(current_app.conf.beat_schedule or {})
        notes: dict[tuple[str, str], None] = {}
        options["reason"] = options["reason"] or "from django-celery-beat"

        def note(name: str, text: str) -> None:
            notes.setdefault((name, text))

        self.run_import(lambda: periodic_tasks(using, entry_names, note), options, despite_errors=True)
        for name, text in notes:
            self.stdout.write(f"Note: {name}: {text}.")
