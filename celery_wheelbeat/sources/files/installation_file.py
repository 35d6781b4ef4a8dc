"""Remembers the installation's UUID beside Celery's schedule file, in ``<path of -s>.wheelbeat-installation``.

Run ids are made from it, and a beat that starts while its database is away would have to invent others. It is a copy:
the database decides, and where the file cannot be read or written, such a start waits for the database.
"""

from __future__ import annotations

import logging
import os
import uuid
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

SUFFIX = ".wheelbeat-installation"


class InstallationFile:
    """Used by the I/O thread only."""

    def __init__(self, schedule_path: str | os.PathLike[str]) -> None:
        """``schedule_path``: what ``-s`` names; the file lies beside it."""
        self.path = Path(f"{os.fspath(schedule_path)}{SUFFIX}")

    def read(self) -> str | None:
        """Return the UUID; None where there is no file that holds one."""
        try:
            return str(uuid.UUID(self.path.read_text(encoding="ascii").strip()))
        except (OSError, ValueError):
            return None

    def write(self, installation: str) -> None:
        """Replace the file."""
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            partial.write_text(f"{installation}\n", encoding="ascii")
            partial.replace(self.path)
        except OSError as error:
            logger.info("installation.write: %s; a start without the database will wait for it", error)
            with suppress(OSError):
                partial.unlink(missing_ok=True)
