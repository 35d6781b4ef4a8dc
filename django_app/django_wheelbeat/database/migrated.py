"""Whether a database has the tables and columns of this release."""

from __future__ import annotations

from django.core.management.base import CommandError
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

APP_LABEL = "wheelbeat"


def refuse_unmigrated(alias: str) -> None:
    """Raise ``CommandError`` if database ``alias`` lacks a migration of this app."""
    executor = MigrationExecutor(connections[alias])
    targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == APP_LABEL]
    missing = [migration.name for migration, _ in executor.migration_plan(targets) if migration.app_label == APP_LABEL]
    if missing:
        raise CommandError(
            f"Database {alias!r} lacks {len(missing)} migrations of wheelbeat, the first is {missing[0]}: "
            f"run `manage.py migrate wheelbeat --database {alias}`."
        )
