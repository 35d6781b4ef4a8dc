"""``manage.py wheelbeat_triggers``: check and install the triggers of change log and audit."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from django_wheelbeat.database import triggers
from django_wheelbeat.database.migrated import refuse_unmigrated
from django_wheelbeat.database.opening import monitor_alias


class Command(BaseCommand):
    """For databases that were restored or altered by hand; ``migrate`` installs the triggers, too."""

    help = "Check or install the triggers that make edits of monitors reach the beat."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        action = parser.add_mutually_exclusive_group(required=True)
        action.add_argument("--check", action="store_true", help="exit with an error when one is missing or disabled")
        action.add_argument("--install", action="store_true", help="install what is missing, and enable it")
        parser.add_argument("--database", default=None, help="alias of the database (default: the router's)")

    def handle(self, *_args: Any, install: bool, database: str | None, **_options: Any) -> None:
        """Check or install."""
        alias = database or monitor_alias()
        connection = connections[alias]
        if not triggers.supported(connection.vendor):
            raise CommandError(f"Database {alias!r} is {connection.vendor}: expected PostgreSQL, MariaDB or SQLite.")
        refuse_unmigrated(alias)
        if install:
            installed = triggers.install(connection)
            self.stdout.write(f"Installed: {', '.join(installed)}." if installed else "Everything is in place.")
            return
        missing = triggers.missing(connection)
        if missing:
            raise CommandError(
                f"Missing, disabled or of another version on {alias!r}: {', '.join(missing)}. "
                f"Run `manage.py wheelbeat_triggers --install`."
            )
        self.stdout.write("Everything is in place.")
