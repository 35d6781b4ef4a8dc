"""Mark file: the marks of a beat that has no database, in ``<path of -s>.wheelbeat``.

JSON, replaced atomically, so a reader sees the old or the new document and never half of one. Celery's own schedule
file is never opened. A place that cannot be written is one warning, not a reason to stop.
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
"""Nobody is writing any more what is older than the whole file by this."""


class MarkFile:
    """The marks of all destinations of one beat, by destination, in one file."""

    def __init__(self, schedule_path: str | os.PathLike[str]) -> None:
        """``schedule_path``: what ``-s`` names; the file lies beside it."""
        self.path = Path(f"{os.fspath(schedule_path)}{SUFFIX}")
        self._warned = False

    def read(self) -> dict[str, dict[str, Any]]:
        """Return destination → stored mark; empty where there is no file, or (warned about) no readable one."""
        self._remove_abandoned()
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("wheelbeat: mark file %s cannot be read (%s): taken as a first start", self.path, error)
            return {}
        marks = stored.get("marks") if isinstance(stored, dict) else None
        if not isinstance(marks, dict):
            logger.warning("wheelbeat: mark file %s holds no marks: taken as a first start", self.path)
            return {}
        return {str(name): mark for name, mark in marks.items() if isinstance(mark, dict)}

    def _remove_abandoned(self) -> None:
        """Remove what beats that were killed in the middle of a write have left; embedded ones always end like that."""
        with contextlib.suppress(OSError):
            written_s = self.path.stat().st_mtime
            for partial in self.path.parent.glob(f"{glob.escape(self.path.name)}.*"):
                if partial.suffix[1:].isdigit() and partial.stat().st_mtime < written_s - ABANDONED_S:
                    partial.unlink()

    def row(self) -> dict[str, Any] | None:
        """Return everything that was last written, the marks included; None where there is no readable file."""
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return stored if isinstance(stored, dict) and "status" in stored else None

    def write(self, marks: Mapping[str, Mapping[str, Any]], row: Mapping[str, Any] | None = None) -> bool:
        """Replace the file; says whether it is written. Warns once until a write has gone well again.

        ``row``: what else a status row holds, for the command that shows it.
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
                    "wheelbeat: mark file %s cannot be written (%s): a restart will not know what was missed; "
                    "let -s name a place that beat may write to",
                    self.path,
                    error,
                )
            self._warned = True
            return False
        self._warned = False
        return True
