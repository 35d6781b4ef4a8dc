"""One pass over the table of monitors in key blocks, and the pace of its blocks.

Pure. Load and resync run unpaced. The reconcile spreads its blocks over the period and, after each, rests long enough
to stay below ``CORE_SHARE`` of a core, even if the round then takes longer than the period.
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
"""Rows of a reconcile block: the comparison holds the GIL."""
CORE_SHARE = 0.02


class Purpose(Enum):
    """Purpose of a pass."""

    LOAD = "load"
    RESYNC = "resync"
    RECONCILE = "reconcile"


@dataclass(slots=True)
class TablePass:
    """Position and pace of one pass."""

    purpose: Purpose
    due_s: float
    """Monotonic instant from which the next block may be read."""
    after_id: int = FIRST_ID

    @property
    def rows(self) -> int:
        """Maximum number of rows in the next block."""
        return RECONCILE_ROWS if self.purpose is Purpose.RECONCILE else BLOCK_ROWS

    def has_passed(self, ids: Int64s) -> NDArray[np.bool_]:
        """Return a mask of ``ids`` whose changes need a fetch of their own; the pass will read the others."""
        return np.full(len(ids), True) if self.purpose is Purpose.RECONCILE else ids <= self.after_id

    def pace(self, begun_s: float, ended_s: float, *, period_s: float, monitors: int) -> None:
        """Set ``due_s`` from the last block's begin and end (monotonic); no effect on load and resync."""
        if self.purpose is Purpose.RECONCILE:
            spread_s = period_s / max(1.0, monitors / RECONCILE_ROWS)
            self.due_s = max(begun_s + spread_s, ended_s + (ended_s - begun_s) / CORE_SHARE)
