"""One-off runs in Redis or Valkey: the names of the keys, and what one call uses.

All keys of a namespace have one hash tag, so they lie in one slot of a cluster. Times are the server's.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.settings.urls import scheme_of, split_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SCHEMES = ("redis", "rediss", "unix", "valkey", "valkeys")
VERSION = b"v"
"""Field of the hash of a second that grows with each change; every other field is the id of a run."""
KEPT_S = 7 * 86_400
"""Everything of a second disappears this long after it."""
TIMEOUT_S = 5.0
LOCK_S = 5.0
"""A call that uses a key holds the lock of that key for at most this long, and waits for it for as long."""
_UNSAFE = re.compile(r"[{}\s]")


class RedisKeys:
    """Names of the keys of a namespace."""

    def __init__(self, namespace: str) -> None:
        self.prefix = f"wb:later:{{{_UNSAFE.sub('_', namespace)}}}:"
        self.seconds = f"{self.prefix}seconds"
        """Sorted set of the seconds that have a hash."""

    def second(self, second: int) -> str:
        """Hash id → text of the run."""
        return f"{self.prefix}s:{second}"

    def cancelled(self, second: int) -> str:
        """List of the ids of cancelled runs."""
        return f"{self.prefix}c:{second}"

    def key(self, key: str) -> str:
        """Text ``second:id`` of the run with ``key``."""
        return f"{self.prefix}k:{key}"


class RedisSession:
    """The client of one call, as ``Caller`` has it; there are no transactions, so every command is in force at once."""

    vendor = "redis"

    def __init__(self, client: Any, keys: RedisKeys) -> None:
        self.client = client
        self.keys = keys
        self._locks: dict[str, Any] = {}

    def lock(self, key: str) -> None:
        """Let other calls that use ``key`` wait until the end of this one; raises ``SourceError``."""
        if key in self._locks and self._locks[key].owned():
            return
        lock = self.client.lock(f"{self.keys.prefix}l:{key}", timeout=LOCK_S, blocking_timeout=LOCK_S)
        if not lock.acquire():
            raise SourceError(f"one-off runs: another call uses the key {key!r} for more than {LOCK_S:g} s")
        self._locks[key] = lock

    def commit(self) -> None:
        """End the call."""
        from redis.exceptions import LockError  # noqa: PLC0415 - a session has a client of this driver

        while self._locks:
            _, lock = self._locks.popitem()
            with suppress(LockError):  # it has expired, and another call may have it
                lock.release()

    rollback = close = commit

    def rows(self, statement: str, parameters: Mapping[str, Any]) -> list[Sequence[Any]]:
        """Refuse SQL."""
        raise NotImplementedError

    def copy(self, statement: str, rows: Iterable[Sequence[Any]]) -> bool:  # noqa: ARG002 - there is no COPY
        """Return False."""
        return False


def redis_client(what: str, url: str) -> Any:
    """Return a client of the server at ``url``; connects at first use. ``what``: the setting, for messages."""
    try:
        import redis  # noqa: PLC0415 - only who stores in Redis has the driver
    except ImportError as error:
        raise SourceError(f"no driver for {scheme_of(url)}: {error}; pip install 'celery-wheelbeat[redis]'") from error
    split_url(what, url)
    at = url.replace("valkey://", "redis://", 1).replace("valkeys://", "rediss://", 1)
    return redis.Redis.from_url(at, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
