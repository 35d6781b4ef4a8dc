"""``manage.py wheelbeat_import``: monitors from JSON lines or CSV."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser

from django_wheelbeat.transfer.commands import ImportCommand
from django_wheelbeat.transfer.files import FORMATS, format_of, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_wheelbeat.transfer.imports import Given


class Command(ImportCommand):
    """Monitors are identified by name: new ones are added, differing ones are changed, none is deleted."""

    help = (
        "Import monitors from a file (or - for the standard input): JSON lines or CSV, as written by wheelbeat_export."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("path", help="file to read, or -")
        parser.add_argument("--format", choices=FORMATS, default=None, help="default: from the file name, else jsonl")
        parser.add_argument(
            "--skip-errors", action="store_true", help="import the valid lines even if others have errors"
        )
        super().add_arguments(parser)

    def handle(self, *_args: Any, path: str, skip_errors: bool, **options: Any) -> None:
        """Check the file, then import it."""
        form = options["format"] or format_of(path)
        with tempfile.NamedTemporaryFile() as kept:
            if path == "-":  # it is read twice
                shutil.copyfileobj(sys.stdin.buffer, kept)
                kept.flush()
            file = Path(kept.name if path == "-" else path)

            def records() -> Iterator[Given]:
                with file.open(encoding="utf-8-sig", newline="") as lines:
                    yield from read(lines, form)

            try:
                self.run_import(records, options, despite_errors=skip_errors)
            except (OSError, UnicodeDecodeError) as error:
                raise CommandError(f"{path} cannot be read: {error}") from error
