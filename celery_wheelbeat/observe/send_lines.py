"""Keeps ``Scheduler: Sending due task …`` readable: one line per run up to a limit, one summary line above it.

Celery writes the line inside ``apply_entry``, which must run for each entry because extensions are hooked there; so the
lines are dropped where they are logged. Only the lane's own thread is concerned, and only those two messages.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LINES_MAX = 100
"""Runs of one hand-over that get a line each."""
_PER_RUN = ("Scheduler: Sending due task", "%s sent.")


class SendLines(logging.Filter):
    """Filter on the logger ``celery.beat``; ``of`` says how many runs follow."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.local()
        self._logger = logging.getLogger("celery.beat")

    def install(self) -> None:
        """Begin to filter."""
        self._logger.addFilter(self)

    def remove(self) -> None:
        """Leave the logger as it was."""
        self._logger.removeFilter(self)

    @contextmanager
    def of(self, runs: int) -> Iterator[None]:
        """Sum up in one line instead of one per run while more than ``LINES_MAX`` runs are sent by this thread."""
        if runs <= LINES_MAX:
            yield
            return
        self._logger.info("Scheduler: Sending %d due tasks (one line each up to %d)", runs, LINES_MAX)
        self._thread.quiet = True
        try:
            yield
        finally:
            self._thread.quiet = False

    @contextmanager
    def none(self) -> Iterator[None]:
        """Write no line at all for what this thread does: a message is recorded, not sent."""
        self._thread.quiet = True
        try:
            yield
        finally:
            self._thread.quiet = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop the lines of single runs while this thread is quiet."""
        return not (getattr(self._thread, "quiet", False) and str(record.msg).startswith(_PER_RUN))
