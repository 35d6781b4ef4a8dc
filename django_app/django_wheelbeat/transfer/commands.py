"""Shared by the import commands: options, the two passes, and the report as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_wheelbeat.database.migrated import refuse_unmigrated
from django_wheelbeat.database.opening import monitor_alias
from django_wheelbeat.transfer.imports import ERRORS_SHOWN, Importer, import_all
from django_wheelbeat.transfer.sources import delete, missing_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django_wheelbeat.transfer.imports import Difference, Given, Report
    from django_wheelbeat.transfer.sources import Source

ACTOR = "manage.py"
MISSING_SHOWN = 50


class ImportCommand(BaseCommand):
    """Base of the commands; subclasses call ``run_import``, and ``report_missing`` if their source supports it."""

    prunes = False
    """Whether the command has the option ``--prune``."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        if self.prunes:
            parser.add_argument(
                "--prune", action="store_true", help="delete monitors of earlier imports that the source no longer has"
            )
        parser.add_argument("--dry-run", action="store_true", help="only show what would change")
        parser.add_argument("--reason", default="", help="reason stored with each change")
        parser.add_argument("--database", default=None, help="alias of the database (default: the router's)")

    def run_import(
        self, given: Callable[[], Iterable[Given]], options: dict[str, Any], *, despite_errors: bool, source: str = ""
    ) -> Report:
        """Import the records of ``given()`` and print the report; raises ``CommandError`` if errors prevented it."""
        refuse_unmigrated(_alias(options))
        importer = Importer(_alias(options), ACTOR, options["reason"], source)
        dry_run = options["dry_run"]
        report, applied = import_all(importer, given, dry_run=dry_run, despite_errors=despite_errors)
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
            raise CommandError("Nothing was imported because of the errors above; correct them, or use --skip-errors.")
        return report

    def report_missing(self, source: Source, report: Report, options: dict[str, Any]) -> None:
        """Print monitors imported from ``source`` that no longer exist there; with ``--prune`` delete them."""
        using, prune = _alias(options), options["prune"]
        count = deleted = 0
        refused: dict[str, str] = {}
        for monitors in missing_at(source, using=using):
            for _, name in monitors[: max(0, MISSING_SHOWN - count)]:
                self.stdout.write(f"- {name}: no longer in the source")
            count += len(monitors)
            if prune and not options["dry_run"] and report.found:
                stay = delete([pk for pk, _ in monitors], ACTOR, options["reason"], using=using)
                refused |= stay
                deleted += len(monitors) - len(stay)
        for name, reason in refused.items():
            self.stderr.write(f"{name}: {reason}")
        if count > MISSING_SHOWN:
            self.stdout.write(f"- … and {count - MISSING_SHOWN} more")
        if not count:
            return
        if prune and not report.found:
            self.stderr.write("The source is empty, so no monitor is deleted: check that it is the right source.")
        elif not prune:
            self.stdout.write(
                f"{count} monitors of earlier imports are no longer in the source and still run; --prune deletes them."
            )
        else:
            self.stdout.write(f"Would delete: {count}." if options["dry_run"] else f"Deleted: {deleted}.")


def _alias(options: dict[str, Any]) -> str:
    return options["database"] or monitor_alias()


def in_words(difference: Difference) -> str:
    """Return one line: the new monitor, or the changes of each column."""
    if difference.is_new:
        return f"+ {difference.name}"
    columns = ", ".join(f"{name}: {before!r} → {after!r}" for name, (before, after) in difference.columns.items())
    return f"~ {difference.name}: {columns}"
