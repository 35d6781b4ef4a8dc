"""Stores of claims and leases: one protocol, one conformance suite, one implementation per kind of server.

Job. Decide a claim atomically, and keep leases with fencing tokens. Each method takes one round trip where the server
can do it in one, and is safe to repeat after a lost answer. Time is the server's clock.

Threads and owners. A store is shared by the threads of its process. Connections are opened at first use and replaced
after a fork.

Never. Waits longer than its time-out: it raises ``ClaimStoreDown``. Shares a connection between processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.worker.claims import Claim, ClaimRequest, State, Verdict
    from celery_wheelbeat.worker.overlap import Lease
    from celery_wheelbeat.worker.stores.connection import Losses


class ClaimStore(Protocol):
    """Keeps claims by key (32 hex digits)."""

    def claim(self, key: str, asked: ClaimRequest, ttl_s: int) -> Verdict:
        """Decide as ``claims.decide`` does, and write the claim if the verdict runs, in one atomic step."""

    def mark(self, key: str, execution: str, state: State) -> bool:
        """Set the state of the claim if ``execution`` still holds it; returns whether it does."""

    def post(self, key: str, execution: str, state: State) -> None:
        """Set the state like ``mark``, without waiting for the answer if the server's protocol allows that.

        The command is sent when this returns; its outcome is read with the next answer on the same connection.
        """

    def prolong(self, key: str, nonce: str, ttl_s: int) -> bool:
        """Let the claim expire ``ttl_s`` from now if message ``nonce`` was elected; returns whether it was."""

    def read(self, key: str) -> Claim | None:
        """Return the claim, for the run history and for display; never used to decide."""

    def prepare(self) -> None:
        """Create missing tables, and check that the store answers and is writable."""

    def purge(self, limit: int) -> int:
        """Delete up to ``limit`` expired claims and leases without blocking other statements; returns the number."""


class LeaseStore(Protocol):
    """Keeps leases by name."""

    def acquire(self, name: str, owner: str, lease_s: float) -> Lease:
        """Take the lease for ``owner`` if it is free or already its own."""

    def renew(self, name: str, owner: str, lease_s: float) -> bool:
        """Prolong the lease if ``owner`` still holds it; returns whether it does."""

    def release(self, name: str, owner: str) -> None:
        """Release the lease if ``owner`` still holds it."""


class Store(ClaimStore, LeaseStore, Protocol):
    """Claims and leases on one server."""

    def close(self) -> None:
        """Close the free connections of this process."""

    losses: Losses
    """Posted marks that were refused, or cut off before their outcome was read."""
    best_effort: str
    """Why claims may disappear before they expire; empty for a store that keeps them."""


_factories: dict[str, Callable[[], Store]] = {}


def register(backend: str, factory: Callable[[], Store]) -> None:
    """Register ``factory()``, which opens the store of apps with the ``result_backend`` ``backend`` (``django-db``)."""
    _factories[backend] = factory


def registered_store(backend: str) -> Store | None:
    """Open the store registered for ``backend``; None if there is none."""
    factory = _factories.get(backend)
    return None if factory is None else factory()
