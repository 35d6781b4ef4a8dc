"""The initial load of a large table: several readers at once, blocks handed over in the order of their ids.

Reads ahead of who takes the blocks, so a block may be older than the change log is read: whoever drives it must hand
over every change to a block after the block itself. An error of a reader ends the load; it is begun anew after the
last block that was taken.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.jobs import DefinitionBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_wheelbeat.columns import Shapes
    from celery_wheelbeat.jobs import Int64s
    from celery_wheelbeat.rows import MonitorRow

READERS = 2
BLOCK_ROWS = 16_384
AHEAD = 16
"""Blocks that are read or being read and were not taken yet."""
TOGETHER = 6
"""Blocks that are handed over as one: the engine takes a hundred thousand jobs in hardly more steps than ten."""
CLOSE_S = 5.0


class ColumnBlock(NamedTuple):
    """One range of the table, or some of its rows, as one snapshot of the database shows them."""

    batch: DefinitionBatch
    prints: Int64s
    """Fingerprints of the definitions in ``batch``."""
    rows: Sequence[MonitorRow]
    """The monitors of the range that have to be compiled by themselves."""


class ColumnReader(Protocol):
    """Reads monitors as columns, on a connection of its own. Every method raises ``SourceError``."""

    def cuts(self, after_id: int, block_rows: int) -> list[int]:
        """Return ascending ids that cut the table above ``after_id`` into blocks; the last one is its greatest."""

    def named(self, names: Sequence[str]) -> Int64s:
        """Return the ids of the monitors with these names."""

    def read(self, after_id: int, up_to_id: int, shapes: Shapes, excluded: Int64s) -> ColumnBlock:
        """Read and compile one range."""

    def read_ids(self, ids: Int64s, shapes: Shapes, excluded: Int64s) -> ColumnBlock:
        """Read and compile those of ``ids`` (ascending) that are there."""

    def close(self) -> None:
        """Drop the connection."""


class Taken(NamedTuple):
    """One or more consecutive blocks, and the range of ids that they are."""

    after_id: int
    up_to_id: int
    block: ColumnBlock
    last: bool


class Bulk:
    """One load. ``take`` and ``close`` belong to the I/O thread; each reader to a thread of its own."""

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
        self._bounds = [after_id, *cuts]
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

    @property
    def block_count(self) -> int:
        """Blocks of the whole load."""
        return len(self._bounds) - 1

    def take(self, timeout_s: float) -> Taken | None:
        """Return the next blocks as one, up to ``TOGETHER``; fewer after ``timeout_s``, and None where there is none.

        Raises ``SourceError`` of a reader once everything before its error was taken.
        """
        with self._changed:
            self._changed.wait_for(self._enough, timeout_s)
            first = self._taken
            blocks: list[ColumnBlock] = []
            while self._taken in self._read and len(blocks) < TOGETHER:
                blocks.append(self._read.pop(self._taken))
                self._taken += 1
            if not blocks:
                if self._error:
                    raise self._error
                return None
            self._changed.notify_all()
        return Taken(self._bounds[first], self._bounds[self._taken], _joined(blocks), self._taken == self.block_count)

    def close(self) -> None:
        """Stop reading; what was read and not taken is dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _work(self) -> None:
        reader = self._open_reader()
        try:
            while (number := self._claim()) is not None:
                low, high = self._bounds[number], self._bounds[number + 1]
                block = reader.read(low, high, self._shapes, self._excluded)
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
        """Return the number of the next block to read, None where there is nothing left to do."""
        with self._changed:
            self._changed.wait_for(self._may_go_on)
            if self._closing or self._error or self._next == self.block_count:
                return None
            self._next += 1
            return self._next - 1

    def _enough(self) -> bool:
        wanted = range(self._taken, min(self._taken + TOGETHER, self.block_count))
        return self._error is not None or all(number in self._read for number in wanted)

    def _may_go_on(self) -> bool:
        done = self._closing or self._error is not None or self._next == self.block_count
        return done or self._next - self._taken < AHEAD


def _joined(blocks: Sequence[ColumnBlock]) -> ColumnBlock:
    if len(blocks) == 1:
        return blocks[0]
    return ColumnBlock(
        DefinitionBatch.merged([block.batch for block in blocks]),
        np.concatenate([block.prints for block in blocks]),
        [row for block in blocks for row in block.rows],
    )
