"""Claims and leases in memcached, best effort: evicted claims, and all claims after a restart, are lost.

``add`` elects, ``cas`` replaces. Leases expire by the server's clock, in whole seconds. Start and end of an execution
decide nothing and are instants of the worker's clock: asking the server would cost each claim a round trip.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheError

from celery_wheelbeat.errors import ClaimStoreDown
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.worker.claims import Claim, ClaimRequest, State, Verdict, decide
from celery_wheelbeat.worker.overlap import Lease
from celery_wheelbeat.worker.stores.connection import Losses
from celery_wheelbeat.worker.stores.connections import Connections

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 1.0
ROUNDS = 20
RELATIVE_MAX_S = 30 * 86_400
"""Memcached takes larger values as Unix timestamps."""
FENCE_REMEMBERED_S = 86_400


class MemcachedStore:
    """Claims under ``wb:`` and their key in the one server at ``url`` (``memcached://host:port``)."""

    best_effort = "memcached loses evicted claims, and all claims when it restarts"

    def __init__(self, url: str) -> None:
        parts = urlsplit(url.partition(";")[0])
        address = (parts.hostname or "127.0.0.1", parts.port or 11211)
        self.losses = Losses()  # none: nothing is posted
        self._where = f"memcached {address[0]}"
        self._wall_ms = SystemClock().wall_ms

        def connect() -> Any:
            return Client(address, timeout=TIMEOUT_S, connect_timeout=TIMEOUT_S, no_delay=True, default_noreply=False)

        self._connections: Connections[Any] = Connections(
            self._where, connect, lambda client: client.close(), (MemcacheError, OSError)
        )

    def claim(self, key: str, asked: ClaimRequest, ttl_s: int) -> Verdict:
        """See ``ClaimStore``."""
        verdict = Verdict.ELECTED

        def replace(text: str | None) -> str | None:
            nonlocal verdict
            held = None if text is None else _claim_of(text)
            verdict = decide(held, asked)
            if verdict is Verdict.MINE or not verdict.runs:
                return None
            return _text_of(Claim(State.RUNNING, asked.nonce, asked.execution, asked.digest, self._wall_ms()))

        self._change(f"wb:{key}", replace, ttl_s)
        return verdict

    def mark(self, key: str, execution: str, state: State) -> bool:
        """See ``ClaimStore``. The claim expires a day from now: memcached does not report the remaining time."""
        holds = False

        def replace(text: str | None) -> str | None:
            nonlocal holds
            held = None if text is None else _claim_of(text)
            if held is None or held.execution != execution:
                holds = False
                return None
            holds = True
            return _text_of(held._replace(state=state, ended_ms=self._wall_ms()))

        self._change(f"wb:{key}", replace, FENCE_REMEMBERED_S)
        return holds

    def post(self, key: str, execution: str, state: State) -> None:
        """See ``ClaimStore``: waits for the answer, because the change takes two commands."""
        self.mark(key, execution, state)

    def prolong(self, key: str, nonce: str, ttl_s: int) -> bool:
        """See ``ClaimStore``."""
        holds = False

        def keep(text: str | None) -> str | None:
            nonlocal holds
            holds = text is not None and _claim_of(text).nonce == nonce
            return text if holds else None

        self._change(f"wb:{key}", keep, ttl_s)
        return holds

    def read(self, key: str) -> Claim | None:
        """See ``ClaimStore``."""
        value = self._connections.lend(lambda client: client.get(f"wb:{key}"))
        return None if value is None else _claim_of(value.decode())

    def prepare(self) -> None:
        """See ``ClaimStore``."""
        if not self._connections.lend(lambda client: client.set("wb:probe", "1", expire=1)):
            raise ClaimStoreDown(f"the claim store {self._where} does not store anything")

    def purge(self, limit: int) -> int:  # noqa: ARG002 - memcached expires claims itself
        """See ``ClaimStore``."""
        return 0

    def acquire(self, name: str, owner: str, lease_s: float) -> Lease:
        """See ``LeaseStore``."""
        lease = Lease(granted=False, fence=0)
        now_ms = self._server_ms()

        def replace(text: str | None) -> str | None:
            nonlocal lease
            holder, until_ms, fence = _lease_of(text)
            if holder == owner and until_ms > now_ms:
                lease = Lease(granted=True, fence=fence)
            elif until_ms > now_ms:
                lease = Lease(granted=False, fence=fence)
                return None
            else:
                lease = Lease(granted=True, fence=max(fence + 1, now_ms))
            return f"{owner}|{now_ms + round(lease_s * 1000)}|{lease.fence}"

        self._change(_lease_at(name), replace, FENCE_REMEMBERED_S + round(lease_s))
        return lease

    def renew(self, name: str, owner: str, lease_s: float) -> bool:
        """See ``LeaseStore``."""
        return self._set_until(name, owner, self._server_ms() + round(lease_s * 1000))

    def release(self, name: str, owner: str) -> None:
        """See ``LeaseStore``."""
        self._set_until(name, owner, 0)

    def close(self) -> None:
        """Close the free connections of this process."""
        self._connections.close()

    def _server_ms(self) -> int:
        return int(self._connections.lend(lambda client: client.stats()[b"time"])) * 1000

    def _set_until(self, name: str, owner: str, until_ms: int) -> bool:
        holds = False

        def replace(text: str | None) -> str | None:
            nonlocal holds
            holder, _, fence = _lease_of(text)
            holds = holder == owner
            return f"{owner if until_ms else ''}|{until_ms}|{fence}" if holds else None

        self._change(_lease_at(name), replace, FENCE_REMEMBERED_S)
        return holds

    def _change(self, key: str, replace: Callable[[str | None], str | None], ttl_s: int) -> None:
        """Replace the value of ``key`` by ``replace(value)`` atomically; None leaves it unchanged."""
        self._connections.lend(self._change_over, key, replace, min(ttl_s, RELATIVE_MAX_S))

    def _change_over(self, client: Any, key: str, replace: Callable[[str | None], str | None], expire_s: int) -> None:
        for _ in range(ROUNDS):
            value, version = client.gets(key)
            changed = replace(None if value is None else value.decode())
            if changed is None:
                return
            if version is None:
                written = client.add(key, changed, expire=expire_s)
            else:
                written = client.cas(key, changed, version, expire=expire_s)
            if written:
                return
        raise ClaimStoreDown(f"the claim store {self._where} changed {key} {ROUNDS} times while it was decided")


def _claim_of(text: str) -> Claim:
    state, nonce, execution, digest, started, ended = text.split("|")
    return Claim(State(state), nonce, execution, digest, int(started), int(ended))


def _text_of(claim: Claim) -> str:
    return "|".join([claim.state.value, *claim[1:4], str(claim.started_ms), str(claim.ended_ms)])


def _lease_of(text: str | None) -> tuple[str, int, int]:
    if text is None:
        return "", 0, 0
    owner, until_ms, fence = text.split("|")
    return owner, int(until_ms), int(fence)


def _lease_at(name: str) -> str:
    return f"wb:lease:{blake2b(name.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"
