"""``manage.py wheelbeat_prune``: delete old rows of change log, audit and status."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from django_wheelbeat.database.migrated import refuse_unmigrated
from django_wheelbeat.database.opening import monitor_alias
from django_wheelbeat.database.retention import prune_audit, prune_beats, prune_changelog


class Command(BaseCommand):
    """Run it daily, for example as a monitor of its own."""

    help = "Delete old rows of the change log and the audit, and status rows of beats that stopped long ago."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--days", type=float, default=7.0, help="retention in days (default: 7)")
        parser.add_argument(
            "--audit-days", type=float, default=365.0, help="retention of the audit in days (default: 365)"
        )
        parser.add_argument("--database", default=None, help="alias of the database (default: the router's)")

    def handle(self, *_args: Any, days: float, audit_days: float, database: str | None, **_options: Any) -> None:
        """Prune and print the numbers."""
        for option, value in (("--days", days), ("--audit-days", audit_days)):
            if value < 0:
                raise CommandError(f"{option} {value}: expected zero or more")
        alias = database or monitor_alias()
        refuse_unmigrated(alias)
        connection = connections[alias]
        changes = prune_changelog(connection, timedelta(days=days))
        beats = prune_beats(connection, timedelta(days=max(days, 1.0)))
        audit = prune_audit(connection, timedelta(days=audit_days))
        self.stdout.write(f"Deleted {changes} rows of the change log, {audit} of the audit and {beats} status rows.")
