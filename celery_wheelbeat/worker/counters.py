"""Counters of what became of messages, summed over the processes of a worker's pool.

They live in memory that a fork shares. Each pool process adds to a column of its own, so that none ever waits for
another, and one that is killed leaves what it has counted.
"""

from __future__ import annotations

import mmap
import threading

COLUMNS = 256
NAMES = (
    "elected",
    "mine",
    "taken_over",
    "reopened",
    "dropped_other",
    "dropped_finished",
    "dropped_stale",
    "skipped_overlap",
    "waited",
    "unlike",
    "stale",
    "outage_open",
    "outage_closed",
    "marks_lost",
    "leases_lost",
    "not_put_back",
)


class Counters:
    """Sums by name; pool processes that were not forked (spawn) count for themselves only."""

    def __init__(self) -> None:
        self._columns = memoryview(mmap.mmap(-1, COLUMNS * len(NAMES) * 8)).cast("Q")
        self._at = {name: index for index, name in enumerate(NAMES)}
        self._start = 0
        self._lock = threading.Lock()

    def use_column(self, index: int) -> None:
        """Count in column ``index`` from now on: 0 for the main process, 1 + n for the n-th pool process."""
        self._start = (index % COLUMNS) * len(NAMES)
        self._lock = threading.Lock()  # the fork may have copied a lock that was held

    def add(self, name: str, count: int = 1) -> None:
        """Add ``count`` to ``name``."""
        with self._lock:
            self._columns[self._start + self._at[name]] += count

    def totals(self) -> dict[str, int]:
        """Return the sums over all columns."""
        return {name: sum(self._columns[index :: len(NAMES)]) for name, index in self._at.items()}
