"""A roll in one hash of Redis or Valkey: one field a beat, one script a beat.

The key is hash-tagged and expires a day after the last write. Nothing depends on the hash: if it is lost, it is written
again with the next heartbeat. Use the server of the broker, so that a beat that can send can also be heard.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from celery_wheelbeat.errors import RollDown, reason_of
from celery_wheelbeat.membership import Heard, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from redis import ConnectionPool

KEPT_MS: Final = 86_400_000
_LAST = b"#"
"""Field with the greatest seniority that was given; no beat has this id."""
_VALUE = re.compile(r"(\d{1,18}) (\d{1,18}) (\d{1,18}) (.*)", re.ASCII | re.DOTALL)
_BEAT = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local order, counter = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(%d+) (%d+) ')
if not order then order = redis.call('HINCRBY', KEYS[1], '#', 1) end
local head = string.format('%.0f %.0f %.0f ', order, (counter or 0) + 1, now)
redis.call('HSET', KEYS[1], ARGV[1], head .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {order, now, redis.call('HGETALL', KEYS[1])}
"""
"""ARGV: beat id, line, ms that the key is kept. A field holds seniority, counter, ms of the write, and the line."""


def connector(pool: ConnectionPool, wait_s: float) -> Callable[[], Any]:
    """Return a function that opens a connection of its own, with the parameters of ``pool`` and other time-outs."""
    parameters = {
        **pool.connection_kwargs,
        "socket_timeout": wait_s,
        "socket_connect_timeout": wait_s,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
    }

    def connect() -> Any:
        connection = pool.connection_class(**parameters)
        connection.connect()
        return connection

    return connect


class RedisRoll:
    """``Roll`` in one hash, ``wheelbeat:{<namespace>}:roll``."""

    def __init__(self, connect: Callable[[], Any], namespace: str, beat_id: str, prefix: str = "") -> None:
        """``connect()`` opens a connection of redis-py whose waits are bounded. ``prefix``: of all keys."""
        self._connect = connect
        self._key = f"{prefix}wheelbeat:{{{namespace}}}:roll"
        self._beat_id = beat_id
        self._connection: Any = None

    def beat(self, text: str) -> Heard:
        """See ``Roll``."""
        with self._errors():
            order, now_ms, held = self._ask("EVAL", _BEAT, 1, self._key, self._beat_id, text, KEPT_MS)
            pairs = zip(held[::2], held[1::2], strict=True) if isinstance(held, list) else held.items()
            peers = [
                _peer(beat_id.decode(errors="replace"), value.decode(errors="replace"), int(now_ms))
                for beat_id, value in pairs
                if beat_id not in (_LAST, self._beat_id.encode())
            ]
            return Heard(peers, int(order), int(now_ms))

    def leave(self, text: str) -> None:
        """See ``Roll``."""
        self.beat(text)

    def fence(self, beat_id: str) -> bool:
        """See ``Roll``: the fast lane's connection is named ``wheelbeat-<beat id>``."""
        with self._errors():
            try:
                for line in self._ask("CLIENT", "LIST").decode(errors="replace").splitlines():
                    fields = dict(part.partition("=")[::2] for part in line.split(" "))
                    if fields.get("name") == f"wheelbeat-{beat_id}":
                        self._ask("CLIENT", "KILL", "ID", fields["id"])
            except ResponseError:  # a user without the right, or a proxy without connections of clients
                return False
        return True

    def forget(self, beat_ids: Collection[str]) -> None:
        """See ``Roll``."""
        if beat_ids:
            with self._errors():
                self._ask("HDEL", self._key, *sorted(beat_ids))

    def close(self) -> None:
        """See ``Roll``."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _ask(self, *words: Any) -> Any:
        if self._connection is None:
            self._connection = self._connect()
        self._connection.send_command(*words)
        return self._connection.read_response()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.close()
            raise RollDown(f"roll in Redis: {reason_of(error)}") from error


def _peer(beat_id: str, value: str, now_ms: int) -> Peer:
    found = _VALUE.match(value)
    if found is None:  # not written by a beat; its reader refuses it
        return Peer(beat_id, 0, 0, None, value)
    order, counter, written_ms, line = found.groups()
    return Peer(beat_id, int(order), int(counter), (now_ms - int(written_ms)) / 1000, line)
