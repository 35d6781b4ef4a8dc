"""Limits the log lines ``Scheduler: Sending due task …``: one per run up to a limit, then a summary.

Celery writes the line inside ``apply_entry``, which must run for each entry because extensions hook into it; so the
lines are dropped by a filter. It concerns only the lane's own thread, Celery's two messages per run, and the traceback
of a failed run, which ``RunSender`` logs in Celery's place, once a minute. All lanes of a beat share the limit, so the
log grows by at most ``LINES_MAX`` lines and a summary per tick, at any rate of sending.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LINES_MAX = 100
"""Most runs of one tick that are logged with a line each."""
_PER_RUN = ("Scheduler: Sending due task", "%s sent.")
_FAILED = "Message Error: %s\n%s"
"""Format string in Celery's ``apply_entry``."""


class SendLog(logging.Filter):
    """Filter on the logger ``celery.beat``; any thread may ask for lines, the scheduling thread counts the ticks."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.local()
        self._logger = logging.getLogger("celery.beat")
        self._lock = threading.Lock()
        self._tick = 0
        self._single = 0
        """Runs of this tick with a line each."""
        self._summed = 0
        """Runs of this tick without one, for the summary."""

    def admit(self, runs: int) -> bool:
        """Return whether ``runs`` more of this tick are logged with a line each; if not, they go to the summary."""
        with self._lock:
            if self._single + runs <= LINES_MAX:
                self._single += runs
                return True
            self._summed += runs
            return False

    def turn(self, tick: int) -> None:
        """Log the summary of the last tick when ``tick`` is a new one."""
        if tick != self._tick:
            self._tick = tick
            self._sum_up()

    def install(self) -> None:
        """Add the filter to the logger."""
        self._logger.addFilter(self)

    def remove(self) -> None:
        """Log the last summary and remove the filter."""
        self._sum_up()
        self._logger.removeFilter(self)

    @contextmanager
    def of(self, runs: int) -> Iterator[None]:
        """Inside the context, drop this thread's lines per run if ``runs`` more exceed the limit of this tick."""
        self._thread.sends, self._thread.quiet = True, not self.admit(runs)
        try:
            yield
        finally:
            self._thread.sends = self._thread.quiet = False

    @contextmanager
    def none(self) -> Iterator[None]:
        """Inside the context, drop all of this thread's lines per run: a message is recorded, not sent."""
        self._thread.sends = self._thread.quiet = True
        try:
            yield
        finally:
            self._thread.sends = self._thread.quiet = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop lines of single runs while this thread is quiet, and Celery's tracebacks while it sends."""
        if getattr(self._thread, "sends", False) and str(record.msg) == _FAILED:
            return False
        return not (getattr(self._thread, "quiet", False) and str(record.msg).startswith(_PER_RUN))

    def _sum_up(self) -> None:
        with self._lock:
            summed, self._single, self._summed = self._summed, 0, 0
        if summed:
            self._logger.info("Scheduler: Sending %d due tasks (one line each up to %d)", summed, LINES_MAX)
