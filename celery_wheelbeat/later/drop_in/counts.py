"""What became of the tasks of one process that were due late enough to be stored."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING

from celery_wheelbeat.errors import reason_of
from celery_wheelbeat.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger("celery_wheelbeat.later")

STORED = "stored"
AWAY = "store_away"
"""The store did not answer; Celery sent the task with its own eta."""
COMPLAIN_S = 60.0
"""Failures of the store are logged once in this time."""


class Counts:
    """Counts by reason, and a line in the log for failures. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._logged_s = float("-inf")
        self._unlogged = 0

    def add(self, reason: str) -> None:
        """Count a task."""
        with self._lock:
            self._counts[reason] += 1

    def add_failure(self, error: Exception) -> None:
        """Count a task that Celery sent itself because of ``error`` of the store."""
        self.add(AWAY)
        now_s = SystemClock().monotonic_s()
        with self._lock:
            self._unlogged += 1
            if now_s - self._logged_s < COMPLAIN_S:
                return
            tasks, self._unlogged, self._logged_s = self._unlogged, 0, now_s
        logger.error(
            "wheelbeat: %d tasks with an eta were sent by Celery itself; the store of one-off runs failed: %s",
            tasks,
            reason_of(error),
        )

    def totals(self) -> Mapping[str, int]:
        """Return reason → number of tasks."""
        with self._lock:
            return dict(self._counts)
