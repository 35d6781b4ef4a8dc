"""What the commands that import have in common: options, the passes, and the report as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_wheelbeat.database import monitor_alias
from django_wheelbeat.transfer.imports import ERRORS_SHOWN, Importer, import_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django_wheelbeat.transfer.imports import Difference, Given, Report


class ImportCommand(BaseCommand):
    """Base of the commands; a sub-class calls ``run_import``."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--dry-run", action="store_true", help="only say what would change")
        parser.add_argument("--reason", default="", help="kept with each change")
        parser.add_argument("--database", default=None, help="alias of the database (default: the router's)")

    def run_import(
        self, source: Callable[[], Iterable[Given]], options: dict[str, Any], *, despite_errors: bool
    ) -> Report:
        """Import what ``source()`` yields, print the report, and fail where errors have kept it from being done."""
        importer = Importer(options["database"] or monitor_alias(), "manage.py", options["reason"])
        dry_run = options["dry_run"]
        report, applied = import_all(importer, source, dry_run=dry_run, despite_errors=despite_errors)
        for problem in report.problems:
            self.stderr.write(f"{problem.line}: {problem.name}: {problem.reason}" if problem.name else
                              f"{problem.line}: {problem.reason}")  # fmt: skip
        if report.refused > ERRORS_SHOWN:
            self.stderr.write(f"… and {report.refused - ERRORS_SHOWN} more.")
        if dry_run:
            for difference in report.differences:
                self.stdout.write(in_words(difference))
        verb = "Imported" if applied else "Would import"
        self.stdout.write(
            f"{verb}: {report.created} new, {report.changed} changed, {report.unchanged} unchanged, "
            f"{report.refused} refused."
        )
        if report.refused and not applied and not dry_run:
            raise CommandError("Nothing was imported because of the errors above; correct them, or --skip-errors.")
        return report


def in_words(difference: Difference) -> str:
    """Return one line: what is new, or column by column what changes."""
    if difference.is_new:
        return f"+ {difference.name}"
    columns = ", ".join(f"{name}: {before!r} → {after!r}" for name, (before, after) in difference.columns.items())
    return f"~ {difference.name}: {columns}"
