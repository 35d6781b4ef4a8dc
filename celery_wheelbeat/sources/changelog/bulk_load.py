"""Initial load of a large table: ``READERS`` threads read blocks in parallel, ``take`` returns them in id order.

Readers run ahead of ``take``, so a block may be older than the cursor of the change log. The caller must apply every
change of a block after the block itself. An error in a reader ends the load; the caller starts another one after the
last block taken.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

from celery_wheelbeat.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_wheelbeat.jobs.compile_columns import Shapes
    from celery_wheelbeat.jobs.definitions import DefinitionBatch
    from celery_wheelbeat.jobs.rows import MonitorRow
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

READERS = 2
BLOCK_ROWS = 16_384
TOGETHER = 6
"""Blocks read in one transaction and handed over as one; the engine's cost per batch hardly depends on its size."""
AHEAD = 4
"""Upper bound of ranges (of ``TOGETHER`` blocks) that are read or being read and not taken yet."""
CLOSE_S = 5.0


class ColumnBlock(NamedTuple):
    """One range of the table, or a set of its rows, seen in one snapshot of the database."""

    batch: DefinitionBatch
    prints: UInt32s
    """Fingerprints of the definitions in ``batch``."""
    rows: Sequence[MonitorRow]
    """Monitors of the range to compile row by row."""


class ColumnReader(Protocol):
    """Reads monitors as columns, on its own connection. Every method raises ``SourceError``."""

    def cuts(self, after_id: int, block_rows: int) -> list[int]:
        """Return ascending ids that cut the table above ``after_id`` into blocks; the last is the greatest id."""

    def named(self, names: Sequence[str]) -> Int64s:
        """Return the ids of the monitors with these names."""

    def read(self, bounds: Sequence[int], shapes: Shapes, excluded: Int64s) -> ColumnBlock:
        """Read and compile ids in (``bounds[0]``, ``bounds[-1]``]; the bounds between cut the range into blocks."""

    def read_ids(self, ids: Int64s, shapes: Shapes, excluded: Int64s) -> ColumnBlock:
        """Read and compile the existing monitors among ``ids`` (ascending)."""

    def close(self) -> None:
        """Drop the connection."""


class Taken(NamedTuple):
    """One block and its range of ids: (``after_id``, ``up_to_id``]."""

    after_id: int
    up_to_id: int
    block: ColumnBlock
    last: bool


class BulkLoad:
    """One load. The I/O thread calls ``take`` and ``close``; each reader runs on a thread of its own."""

    def __init__(
        self,
        open_reader: Callable[[], ColumnReader],
        shapes: Shapes,
        *,
        after_id: int,
        cuts: Sequence[int],
        excluded: Int64s,
    ) -> None:
        self._open_reader = open_reader
        self._shapes = shapes
        bounds = [after_id, *cuts]
        self._ranges = [bounds[start : start + TOGETHER + 1] for start in range(0, len(cuts), TOGETHER)]
        self._excluded = excluded
        self._changed = threading.Condition()
        self._read: dict[int, ColumnBlock] = {}
        self._next = self._taken = 0
        self._error: SourceError | None = None
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"wheelbeat-load-{number}", daemon=True)
            for number in range(READERS)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, timeout_s: float) -> Taken | None:
        """Return the next block; None if it is not read within ``timeout_s``.

        Raises a reader's ``SourceError`` once the blocks before the failed one are taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._taken in self._read, timeout_s)
            bounds = self._ranges[self._taken]
            block = self._read.pop(self._taken, None)
            if block is None:
                if self._error:
                    raise self._error
                return None
            self._taken += 1
            self._changed.notify_all()
        return Taken(bounds[0], bounds[-1], block, self._taken == len(self._ranges))

    def close(self) -> None:
        """Stop the readers and drop blocks that were not taken; waits up to ``CLOSE_S`` per thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _work(self) -> None:
        reader = self._open_reader()
        try:
            while (number := self._claim()) is not None:
                block = reader.read(self._ranges[number], self._shapes, self._excluded)
                with self._changed:
                    self._read[number] = block
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self._error = error if isinstance(error, SourceError) else SourceError(f"load: {error!r}")
                self._error.__cause__ = error
                self._changed.notify_all()
        finally:
            reader.close()

    def _claim(self) -> int | None:
        """Return the number of the next range to read; None at the end, on close and after an error."""
        with self._changed:
            self._changed.wait_for(self._may_go_on)
            if self._closing or self._error or self._next == len(self._ranges):
                return None
            self._next += 1
            return self._next - 1

    def _may_go_on(self) -> bool:
        done = self._closing or self._error is not None or self._next == len(self._ranges)
        return done or self._next - self._taken < AHEAD
