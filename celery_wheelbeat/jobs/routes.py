"""Route table: interns the routes of all jobs and frees those that no job uses.

Invariant: an index refers to the same route from ``intern`` until ``collect`` frees it, after a round that inspected
every job. Batches that are compiled on other threads carry their own routes; ``adopt`` translates their indices.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from celery_wheelbeat.jobs.definitions import DefinitionBatch, Route
    from celery_wheelbeat.schedules.kinds import Int64s

_FREE = 2**62


class RouteTable:
    """Interned routes; see the module."""

    def __init__(self) -> None:
        self.freed: Callable[[Int64s], None] = lambda _indices: None
        """Called with the indices that were freed, before they are reused for other routes."""
        self._routes: list[Route | None] = []
        self._index: dict[Route, int] = {}
        self._free: list[int] = []
        self._interned_in = np.zeros(0, np.int64)
        """By index: the last round in which it was interned, or ``_FREE``. Has spare capacity."""
        self._round = 0

    def intern(self, route: Route) -> int:
        """Return the index of ``route``; adds a new route."""
        index = self._index.get(route)
        if index is None:
            if self._free:
                index = self._free.pop()
                self._routes[index] = route
            else:
                index = len(self._routes)
                self._routes.append(route)
                if index == len(self._interned_in):
                    self._interned_in = np.concatenate((self._interned_in, np.zeros(64 + index // 4, np.int64)))
            self._index[route] = index
        self._interned_in[index] = self._round
        return index

    def adopt(self, batch: DefinitionBatch) -> DefinitionBatch:
        """Return ``batch`` with its own routes interned here and its indices translated."""
        if batch.routes is None:
            return batch
        index_of = np.zeros(len(batch.routes), np.uint32)
        for own in np.flatnonzero(np.bincount(batch.route_index)).tolist():
            index_of[own] = self.intern(batch.routes[own])
        return replace(batch, routes=None, route_index=index_of[batch.route_index])

    def begin_round(self) -> None:
        """Begin a round, in which the caller finds the indices in use."""
        self._round += 1

    def collect(self, used: NDArray[np.bool_]) -> int:
        """Free the indices that are not ``used`` and were not interned in this round; returns their number.

        ``used``: mask by index, from an inspection of every job since ``begin_round``.
        """
        old = self._interned_in[: len(used)] < self._round
        unused = np.flatnonzero(old & ~used).tolist()
        for index in unused:
            route, self._routes[index] = self._routes[index], None
            if route is not None:
                del self._index[route]
        self._interned_in[unused] = _FREE
        self._free += unused
        if unused:
            self.freed(np.array(unused, np.int64))
        return len(unused)

    def __getitem__(self, index: int) -> Route:
        route = self._routes[index]
        if route is None:
            raise IndexError(f"route {index} has no jobs")
        return route

    def __len__(self) -> int:
        """Return the number of indices, free ones included."""
        return len(self._routes)
