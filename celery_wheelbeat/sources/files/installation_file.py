"""Installation file: a copy of the installation's UUID, in ``<path of -s>.wheelbeat-installation``.

Run ids depend on the UUID. With the file, a beat can start and send while its database is down. The database decides;
without a readable file, such a start waits for the database.
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
    """Reads and replaces the file."""

    def __init__(self, schedule_path: str | os.PathLike[str]) -> None:
        """``schedule_path``: the value of ``-s``; the file is beside it."""
        self.path = Path(f"{os.fspath(schedule_path)}{SUFFIX}")

    def read(self) -> str | None:
        """Return the UUID; None if no file holds one."""
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
            logger.info("installation.write: %s; without this file, a start waits for the database", error)
            with suppress(OSError):
                partial.unlink(missing_ok=True)
