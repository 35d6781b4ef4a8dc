"""Counters of the outcomes of messages, summed over the pool processes of a worker.

The counters are in memory shared across forks. Each pool process adds to its own column: processes never wait for each
other, and the counts of a killed process stay.
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
    """Sums by name; spawned (not forked) pool processes count for themselves only."""

    def __init__(self) -> None:
        self._columns = memoryview(mmap.mmap(-1, COLUMNS * len(NAMES) * 8)).cast("Q")
        self._at = {name: index for index, name in enumerate(NAMES)}
        self._start = 0
        self._lock = threading.Lock()

    def use_column(self, index: int) -> None:
        """Use column ``index`` from now on: 0 for the main process, 1 + n for the n-th pool process."""
        self._start = (index % COLUMNS) * len(NAMES)
        self._lock = threading.Lock()  # the fork may have copied a held lock

    def add(self, name: str, count: int = 1) -> None:
        """Add ``count`` to ``name``."""
        with self._lock:
            self._columns[self._start + self._at[name]] += count

    def totals(self) -> dict[str, int]:
        """Return the sums over all columns."""
        return {name: sum(self._columns[index :: len(NAMES)]) for name, index in self._at.items()}
