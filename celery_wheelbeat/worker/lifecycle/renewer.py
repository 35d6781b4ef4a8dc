"""The keeper: a thread of the worker's main process that maintains the store and records the rate of runs.

It renews leases and prolongs claims of active executions, and purges expired claims.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.worker.state import active_requests

from celery_wheelbeat.errors import ClaimStoreDown
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.runtime.owned_thread import OwnedThread, ThreadBody

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_wheelbeat.worker.counters import Counters
    from celery_wheelbeat.worker.lifecycle.deliveries import Deliveries
    from celery_wheelbeat.worker.lifecycle.executions import Executions
    from celery_wheelbeat.worker.lifecycle.rate import ClaimRate
    from celery_wheelbeat.worker.stores import Store

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
LOST_AFTER = 2
"""Failed renewals in a row after which a lease counts as lost; a single one may hit an execution that just ended."""
PURGE_EVERY_S = 30.0
PURGE_ROWS = 1_000
PURGE_PAUSE_S = 0.02
"""Pause between two batches of a purge, to limit the load on the server."""


class Renewer:
    """Started after the pool is forked. A store that is down causes one warning per loop.

    ``lease_s`` is the shortest lease that any task of this worker takes.
    """

    def __init__(
        self,
        store: Store,
        deliveries: Deliveries,
        executions: Executions,
        counters: Counters,
        pace: ClaimRate,
        *,
        lease_s: float,
    ) -> None:
        self._store = store
        self._deliveries = deliveries
        self._executions = executions
        self._counters = counters
        self._pace = pace
        self._thread = OwnedThread(
            "wheelbeat-keeper", SystemClock(), ThreadBody(self._turn, self._failed, begin=self._rest)
        )
        self._purge_at_s = time.monotonic() + PURGE_EVERY_S
        self._turn_s = lease_s / RENEWALS_PER_LEASE
        self._missed: dict[str, int] = {}
        """Owner → failed renewals in a row; an owner is added by its first successful renewal."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; leases still held expire."""
        self._thread.close(timeout_s=5)

    def _rest(self) -> None:
        self._thread.rest(self._turn_s)

    def _turn(self) -> float:
        self._pace.note(time.monotonic(), self._counters.totals()["elected"])
        self._renew()
        self._prolong()
        if time.monotonic() >= self._purge_at_s:
            self._purge_at_s = time.monotonic() + PURGE_EVERY_S
            self._purge()
        return self._turn_s

    def _failed(self, error: Exception) -> float:
        if isinstance(error, ClaimStoreDown):
            logger.warning("leases and claims are not renewed, and expired claims are not removed: %s", error)
        else:
            logger.error("unexpected error in the renewer of leases and claims; continuing", exc_info=error)
        return self._turn_s

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
                        "an execution lost the lease %s while running: this process was paused or the store was "
                        "unreachable for longer than %g s; another run may have started in parallel",
                        delivery.lease,
                        delivery.lease_s,
                    )

    def _prolong(self) -> None:
        for execution in self._executions.due(_alive(active_requests), time.monotonic(), self._turn_s):
            # a message that shares its id with another run has a claim of its own; only the nonce shows which one
            any(self._store.prolong(key, execution.nonce, execution.ttl_s) for key in execution.claims())

    def _purge(self) -> None:
        while self._store.purge(PURGE_ROWS) == PURGE_ROWS and not self._thread.is_stopping:
            self._thread.rest(PURGE_PAUSE_S)


def _alive(requests: Iterable[Any]) -> list[Any]:
    """Copy a weak set to which other threads add."""
    while True:
        with suppress(RuntimeError):
            return list(requests)
