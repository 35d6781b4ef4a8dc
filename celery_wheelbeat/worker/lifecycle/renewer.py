"""The keeper: a thread of the worker's main process that looks after what its store holds, and notes the pace.

It prolongs the leases and claims of what executes, and removes expired claims.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.worker.state import active_requests

from celery_wheelbeat.errors import ClaimStoreDown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_wheelbeat.worker.counters import Counters
    from celery_wheelbeat.worker.lifecycle.deliveries import Deliveries
    from celery_wheelbeat.worker.lifecycle.executions import Executions
    from celery_wheelbeat.worker.lifecycle.rate import Pace
    from celery_wheelbeat.worker.stores import Store

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
LOST_AFTER = 2
"""Renewals that fail in a row before a lease counts as lost: one may meet an execution that has just ended."""
PURGE_EVERY_S = 30.0
PURGE_ROWS = 1_000
PURGE_PAUSE_S = 0.02
"""Between two batches, so that a purge takes a small part of the server."""


class Keeper:
    """Started after the pool was forked; a store that is down costs a warning per turn and nothing else.

    ``lease_s`` is the shortest lease that any task of this worker takes.
    """

    def __init__(
        self,
        store: Store,
        deliveries: Deliveries,
        executions: Executions,
        counters: Counters,
        pace: Pace,
        *,
        lease_s: float,
    ) -> None:
        self._store = store
        self._deliveries = deliveries
        self._executions = executions
        self._counters = counters
        self._pace = pace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="wheelbeat-keeper", daemon=True)
        self._purge_at_s = time.monotonic() + PURGE_EVERY_S
        self._turn_s = lease_s / RENEWALS_PER_LEASE
        self._missed: dict[str, int] = {}
        """Renewals that failed in a row, by owner, once one has succeeded."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; leases that are still held end by themselves."""
        self._stop.set()
        self._thread.join(timeout=5)

    def _loop(self) -> None:
        while not self._stop.wait(self._turn_s):
            self._pace.note(time.monotonic(), self._counters.totals()["elected"])
            try:
                self._renew()
                self._prolong()
                if time.monotonic() >= self._purge_at_s:
                    self._purge_at_s = time.monotonic() + PURGE_EVERY_S
                    self._purge()
            except ClaimStoreDown as error:
                logger.warning("leases and claims are not prolonged, expired claims not removed: %s", error)
            except Exception:
                logger.exception("the keeper of leases and claims stumbled; it goes on")

    def _renew(self) -> None:
        executing = self._deliveries.executing(active_requests)
        self._missed = {d.owner: self._missed[d.owner] for d in executing if d.owner in self._missed}
        for delivery in executing:
            if self._store.renew(delivery.lease, delivery.owner, delivery.lease_s):
                self._missed[delivery.owner] = 0
            elif delivery.owner in self._missed:
                self._missed[delivery.owner] += 1
                if self._missed[delivery.owner] == LOST_AFTER:
                    self._counters.add("leases_lost")
                    logger.error(
                        "an execution has lost the lease %s while it runs: this process was paused, or the store was "
                        "away, for longer than %g s; another run may have started beside it",
                        delivery.lease,
                        delivery.lease_s,
                    )

    def _prolong(self) -> None:
        for execution in self._executions.due(_alive(active_requests), time.monotonic(), self._turn_s):
            # a message that shares an id with another has a claim apart; which one it is, only its nonce tells
            any(self._store.prolong(key, execution.nonce, execution.ttl_s) for key in execution.claims())

    def _purge(self) -> None:
        while self._store.purge(PURGE_ROWS) == PURGE_ROWS and not self._stop.wait(PURGE_PAUSE_S):
            pass


def _alive(requests: Iterable[Any]) -> list[Any]:
    """Return what a weak set holds, although other threads add to it."""
    while True:
        with suppress(RuntimeError):
            return list(requests)
