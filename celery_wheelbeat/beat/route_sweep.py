"""Route sweep: looks at the jobs, a few shards at a time, and frees the routes that none of them has any more.

Invariant: a route is freed only after every job was looked at, switched on or not, and none that came in meanwhile has
it. Owned by the scheduling thread.
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
    """See the module."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next = 0
        """Number of the shard that is looked at next."""
        self._used: NDArray[np.bool_] = np.zeros(0, np.bool_)
        """By index: the routes that jobs were found to have in this round."""

    def look(self) -> None:
        """Go on, over up to about ``ROWS_PER_LOOK`` jobs; at the end of a round free what nobody has."""
        shards, routes, seen = self._engine.shards, self._engine.routes, 0
        if not self._next:
            routes.begin_round()
            self._used = np.zeros(len(routes), np.bool_)
        while seen < ROWS_PER_LOOK and self._next < len(shards):
            rows = shards[self._next].table.rows
            found = rows.route[rows.flags & DEAD == 0]
            self._used[found[found < len(self._used)]] = True  # later ones came in during this round
            seen += len(rows.ids)
            self._next += 1
        if self._next == len(shards):
            self._next = 0
            routes.collect(self._used)
