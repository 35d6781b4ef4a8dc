"""One pass over the table of monitors by key blocks, and when the next block is due.

Pure. A load and a resync go as fast as they can; the reconcile spreads its blocks over the period, and rests long
enough after each to stay below its share of a core, even if the period then takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from celery_wheelbeat.schedules.kinds import Int64s

FIRST_ID = -(2**63)
BLOCK_ROWS = 5_000
RECONCILE_ROWS = 500
"""Rows of a reconcile block: comparing them must not hold the interpreter for long."""
CORE_SHARE = 0.02


class Purpose(Enum):
    """Why the table is read."""

    LOAD = "load"
    RESYNC = "resync"
    RECONCILE = "reconcile"


@dataclass(slots=True)
class Walk:
    """Where a pass stands. Owned by the I/O thread."""

    purpose: Purpose
    due_s: float
    """Monotonic instant from which the next block may be read."""
    after_id: int = FIRST_ID

    @property
    def rows(self) -> int:
        """How many rows the next block has at most."""
        return RECONCILE_ROWS if self.purpose is Purpose.RECONCILE else BLOCK_ROWS

    def has_passed(self, ids: Int64s) -> NDArray[np.bool_]:
        """Tell which changes have to be handed over by themselves; the others are read when the pass gets there."""
        return np.full(len(ids), True) if self.purpose is Purpose.RECONCILE else ids <= self.after_id

    def pace(self, begun_s: float, ended_s: float, *, period_s: float, monitors: int) -> None:
        """Set when the next block is due."""
        if self.purpose is Purpose.RECONCILE:
            spread_s = period_s / max(1.0, monitors / RECONCILE_ROWS)
            self.due_s = max(begun_s + spread_s, ended_s + (ended_s - begun_s) / CORE_SHARE)
