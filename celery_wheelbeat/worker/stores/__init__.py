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

    from celery_wheelbeat.worker.claims import Asked, Claim, State, Verdict
    from celery_wheelbeat.worker.overlap import Lease
    from celery_wheelbeat.worker.stores.connection import Losses


class ClaimStore(Protocol):
    """Keeps claims by key (32 hex digits)."""

    def claim(self, key: str, asked: Asked, ttl_s: int) -> Verdict:
        """Decide as ``claims.decide`` does, and write the claim where the verdict runs, all in one atomic step."""

    def mark(self, key: str, execution: str, state: State) -> bool:
        """Set the state of the claim where ``execution`` still holds it; returns whether it does."""

    def post(self, key: str, execution: str, state: State) -> None:
        """Set the state like ``mark``, without waiting for the answer where the server's protocol allows that.

        The server has the command when this returns, unless it dies with it; what became of it is read with the next
        answer on the same connection.
        """

    def prolong(self, key: str, nonce: str, ttl_s: int) -> bool:
        """Remember the claim for ``ttl_s`` from now on where message ``nonce`` was elected; returns whether it was."""

    def read(self, key: str) -> Claim | None:
        """Return the claim, for the run history and for people; not used to decide."""

    def prepare(self) -> None:
        """Create what is missing (tables), and prove that the store answers and may be written."""

    def purge(self, limit: int) -> int:
        """Remove up to ``limit`` expired claims and forgotten leases without blocking others; returns how many."""


class LeaseStore(Protocol):
    """Keeps leases by name."""

    def acquire(self, name: str, owner: str, lease_s: float) -> Lease:
        """Take the lease for ``owner`` where it is free or already its own."""

    def renew(self, name: str, owner: str, lease_s: float) -> bool:
        """Prolong the lease where ``owner`` still holds it; returns whether it does."""

    def release(self, name: str, owner: str) -> None:
        """Give the lease back where ``owner`` still holds it."""


class Store(ClaimStore, LeaseStore, Protocol):
    """Both, on one server."""

    def close(self) -> None:
        """Close the free connections of this process."""

    losses: Losses
    """Posted marks that were refused, or cut off before their outcome was read."""
    best_effort: str
    """Why claims may be forgotten before their time; empty for a store that keeps them."""


_factories: dict[str, Callable[[], Store]] = {}


def register(backend: str, factory: Callable[[], Store]) -> None:
    """Let ``factory()`` open the store of apps whose ``result_backend`` is named ``backend`` (``django-db``)."""
    _factories[backend] = factory


def registered_store(backend: str) -> Store | None:
    """Open the store that was registered for ``backend``; None where nobody did."""
    factory = _factories.get(backend)
    return None if factory is None else factory()
