"""``manage.py wheelbeat_resync``: make every beat read the whole table of monitors again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_wheelbeat.database.migrated import refuse_unmigrated
from django_wheelbeat.database.opening import monitor_alias
from django_wheelbeat.models import Change


class Command(BaseCommand):
    """For edits that fired no trigger; beats keep sending meanwhile."""

    help = "Make every running beat compare the whole monitor table with its jobs now."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--database", default=None, help="alias of the database (default: the router's)")
        parser.add_argument("--reason", default="", help="reason stored in the change log")

    def handle(self, *_args: Any, database: str | None, reason: str, **_options: Any) -> None:
        """Write the request into the change log."""
        alias = database or monitor_alias()
        refuse_unmigrated(alias)
        Change.objects.using(alias).create(operation="R", actor="wheelbeat_resync", reason=reason[:200])
        self.stdout.write("Beats will read the monitor table again at their next poll.")
