"""``manage.py wheelbeat_export``: monitors as JSON lines or CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_wheelbeat.database.migrated import refuse_unmigrated
from django_wheelbeat.database.opening import monitor_alias
from django_wheelbeat.models import Monitor
from django_wheelbeat.transfer.files import FORMATS, export, format_of


class Command(BaseCommand):
    """Streams, so memory does not grow with the number of monitors."""

    help = "Write monitors to a file, or to the standard output, as JSON lines or CSV."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("path", nargs="?", default="-", help="file to write (default: standard output)")
        parser.add_argument("--format", choices=FORMATS, default=None, help="default: from the file name, else jsonl")
        parser.add_argument("--tag", default=None, help="only monitors with this tag")
        parser.add_argument("--database", default=None, help="alias of the database (default: the router's)")

    def handle(self, *_args: Any, path: str, tag: str | None, database: str | None, **options: Any) -> None:
        """Write the file."""
        alias = database or monitor_alias()
        refuse_unmigrated(alias)
        monitors = Monitor.objects.using(alias)
        pieces = export(monitors.tagged(tag) if tag else monitors.all(), options["format"] or format_of(path))
        if path == "-":
            self.stdout.ending = ""
            for piece in pieces:
                self.stdout.write(piece)
            return
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            file.writelines(pieces)
        self.stderr.write(f"Written to {path}.")
