"""Route sweep: scan the jobs a few shards at a time and free the routes that no job uses.

Invariant: a route is freed only after every job, enabled or not, was scanned and no job that arrived meanwhile uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.engine.packing import DEAD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from celery_wheelbeat.engine.engine import Engine

ROWS_PER_LOOK = 500_000


class RouteSweep:
    """Scans the shards in rounds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next = 0
        """Number of the shard to scan next."""
        self._used: NDArray[np.bool_] = np.zeros(0, np.bool_)
        """Routes found in use in this round, by route index."""

    def look(self) -> None:
        """Scan about ``ROWS_PER_LOOK`` more jobs; at the end of a round, free the unused routes."""
        shards, routes, seen = self._engine.shards, self._engine.routes, 0
        if not self._next:
            routes.begin_round()
            self._used = np.zeros(len(routes), np.bool_)
        while seen < ROWS_PER_LOOK and self._next < len(shards):
            rows = shards[self._next].table.rows
            found = rows.route[rows.flags & DEAD == 0]
            self._used[found[found < len(self._used)]] = True  # routes with a higher index were added during this round
            seen += len(rows.ids)
            self._next += 1
        if self._next == len(shards):
            self._next = 0
            routes.collect(self._used)
