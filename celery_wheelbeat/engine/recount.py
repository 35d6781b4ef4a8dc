"""Recount: how many runs a shard must have handed out since the last sweep, in closed form from the definitions.

The wheel counts the runs it hands out (``passed``). The recount computes the same number from the schedules that were
in force, and a checksum of the definitions from every change. It never reads the wheel. A difference means that a run
was lost or fired twice, or that a column was corrupted. Replaced definitions are kept until they are counted: at most
``PENDING_CHANGES`` changes or ``PENDING_ROWS`` rows. A change of one row takes about a kilobyte in arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.engine.packing import ENABLED, POLLED, Rows, decode, widened
from celery_wheelbeat.schedules.columns import spans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.engine.packing import Rare
    from celery_wheelbeat.engine.table import Table
    from celery_wheelbeat.schedules.cron import CronTable
    from celery_wheelbeat.schedules.kinds import Int64s

PENDING_ROWS = 8_192
PENDING_CHANGES = 64
_SEAL_BITS = 2**64
_MIXERS = tuple(np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


class Change(NamedTuple):
    """Definitions added (``sign`` -1: their earlier fire times do not count) or removed (+1) at ``at_ms``."""

    rows: Rows
    rare: Mapping[int, Rare]
    sign: int
    at_ms: int


class Recount:
    """The independent count of one shard."""

    def __init__(self) -> None:
        self.since_ms = 0
        self.passed = 0
        """Fire times handed out or settled since ``since_ms``; incremented by the shard and the engine."""
        self.settled_ms = 0
        self._seal: int | None = None
        self._runs = 0
        self._pending: list[Change] = []
        self._pending_rows = 0

    def restart(self, cursor_ms: int, settled_ms: int, table: Table | None) -> None:
        """Start again at ``cursor_ms``. Without ``table`` the definitions are not checked until the next restart."""
        self.since_ms = cursor_ms
        self.settled_ms = settled_ms
        self.passed = self._runs = self._pending_rows = 0
        self._pending.clear()
        self._seal = None if table is None else seal_of(table.living_rows())

    def note(self, change: Change, crons: CronTable) -> None:
        """Record a change; counts the pending ones if they exceed a bound."""
        if not len(change.rows.ids):
            return
        self._pending.append(change)
        self._pending_rows += len(change.rows.ids)
        if self._pending_rows > PENDING_ROWS or len(self._pending) >= PENDING_CHANGES:
            self._fold(crons)

    def difference(self, table: Table, cursor_ms: int, crons: CronTable) -> int:
        """Return expected minus passed fire times up to ``cursor_ms``; 0 if nothing is wrong."""
        self._fold(crons)
        rows = table.living_rows()
        until_ms = np.full(len(rows.ids), cursor_ms)
        return self._runs + self._count(rows, table.rare, until_ms, crons) - self.passed

    def definitions_intact(self, table: Table, crons: CronTable) -> bool:
        """Return whether the checksum equals that of the last sweep plus the changes since then."""
        self._fold(crons)
        return self._seal is None or self._seal == seal_of(table.living_rows())

    def _fold(self, crons: CronTable) -> None:
        for sign in (1, -1):
            changes = [change for change in self._pending if change.sign == sign]
            plain = [change for change in changes if not change.rare]
            alone = [[change] for change in changes if change.rare]  # rare attributes differ by change
            for together in [plain, *alone] if plain else alone:
                rows = _joined(together)
                at_ms = np.repeat([change.at_ms for change in together], [len(change.rows.ids) for change in together])
                self._runs += sign * self._count(rows, together[0].rare, at_ms, crons)
                if self._seal is not None:
                    self._seal = (self._seal - sign * seal_of(rows)) % _SEAL_BITS
        self._pending.clear()
        self._pending_rows = 0

    def _count(self, rows: Rows, rare: Mapping[int, Rare], until_ms: Int64s, crons: CronTable) -> int:
        counted = np.flatnonzero(((rows.flags & (ENABLED | POLLED)) == ENABLED) & (until_ms > self.since_ms))
        if not len(counted):
            return 0
        rows = rows.take(counted)
        after = np.where(rows.interval > 0, self.since_ms, self.settled_ms)
        return int(spans(decode(rows, rare), after, until_ms[counted], crons).counts.sum())


def _joined(changes: Sequence[Change]) -> Rows:
    """Return the rows of all ``changes``, widened if there are several."""
    columns = [change.rows for change in changes]
    if len(columns) == 1:
        return columns[0]
    wide = [rows._replace(ids=rows.ids.astype(np.int64), interval=widened(rows.interval)) for rows in columns]
    return Rows(*(np.concatenate(column) for column in zip(*wide, strict=True)))


def seal_of(rows: Rows) -> int:
    """Return a checksum of ids, intervals, flags and routes: a sum mod 2^64, independent of the order of rows.

    A sum, because changes since the last sweep are added and subtracted; a CRC cannot be updated in this way.
    """
    mixed = rows.ids.astype(np.int64).view(np.uint64) * _MIXERS[0]
    mixed ^= widened(rows.interval).view(np.uint64) * _MIXERS[1]
    mixed ^= (rows.flags.astype(np.uint64) << np.uint64(32)) ^ rows.route
    mixed *= _MIXERS[2]
    mixed ^= mixed >> np.uint64(29)
    mixed *= _MIXERS[0]
    mixed ^= mixed >> np.uint64(32)
    return int(np.add.reduce(mixed, dtype=np.uint64))
