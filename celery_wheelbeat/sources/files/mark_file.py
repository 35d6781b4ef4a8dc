"""Mark file: the marks of a beat that has no database, in ``<path of -s>.wheelbeat``.

JSON, replaced atomically: a reader sees the old or the new document. Celery's own schedule file is never opened. A path
that cannot be written causes one warning.
"""

from __future__ import annotations

import contextlib
import glob
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

SUFFIX = ".wheelbeat"
ABANDONED_S = 60
"""A temporary file older than the mark file by this is abandoned."""


class MarkFile:
    """The marks of all destinations of one beat, by destination, in one file."""

    def __init__(self, schedule_path: str | os.PathLike[str]) -> None:
        """``schedule_path``: the value of ``-s``; the file is beside it."""
        self.path = Path(f"{os.fspath(schedule_path)}{SUFFIX}")
        self._warned = False

    def read(self) -> dict[str, dict[str, Any]]:
        """Return destination → stored mark; empty without a file, and (with a warning) if it is not readable."""
        self._remove_abandoned()
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("wheelbeat: mark file %s cannot be read (%s): treated as a first start", self.path, error)
            return {}
        marks = stored.get("marks") if isinstance(stored, dict) else None
        if not isinstance(marks, dict):
            logger.warning("wheelbeat: mark file %s holds no marks: treated as a first start", self.path)
            return {}
        return {str(name): mark for name, mark in marks.items() if isinstance(mark, dict)}

    def _remove_abandoned(self) -> None:
        """Remove temporary files of beats that were killed during a write, as embedded beats always are."""
        with contextlib.suppress(OSError):
            written_s = self.path.stat().st_mtime
            for partial in self.path.parent.glob(f"{glob.escape(self.path.name)}.*"):
                if partial.suffix[1:].isdigit() and partial.stat().st_mtime < written_s - ABANDONED_S:
                    partial.unlink()

    def row(self) -> dict[str, Any] | None:
        """Return the last document written, marks included; None without a readable file."""
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return stored if isinstance(stored, dict) and "status" in stored else None

    def write(self, marks: Mapping[str, Mapping[str, Any]], row: Mapping[str, Any] | None = None) -> bool:
        """Replace the file; returns whether that worked. Warns once per series of failures.

        ``row``: the other values of a status row, for the command ``status``.
        """
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            try:
                with partial.open("w", encoding="utf-8") as stream:
                    json.dump({**(row or {}), "marks": marks}, stream)
                    stream.flush()
                    os.fsync(stream.fileno())
                partial.replace(self.path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    partial.unlink()
        except OSError as error:
            if not self._warned:
                logger.warning(
                    "wheelbeat: mark file %s cannot be written (%s): a restart will not know which runs were missed; "
                    "point -s to a writable path",
                    self.path,
                    error,
                )
            self._warned = True
            return False
        self._warned = False
        return True
