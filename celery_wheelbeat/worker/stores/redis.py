"""Claims and leases in Redis or Valkey: one script, one round trip.

A claim is 27 bytes under a key of 19: at most 150 bytes of Redis memory with its expiry. The scripts state the rules of
``claims.decide`` again, because only the server can decide atomically; the conformance suite holds both together.
"""

from __future__ import annotations

import hashlib
import struct
from contextlib import suppress
from typing import Any

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from celery_wheelbeat.worker.claims import Asked, Claim, State, Verdict
from celery_wheelbeat.worker.overlap import Lease
from celery_wheelbeat.worker.stores.connections import Connections

TIMEOUT_S = 1.0
FENCE_REMEMBERED_S = 86_400
_LAYOUT = struct.Struct(">c8s4s4s6s4s")
"""State, nonce, execution, digest, start in ms, run time in ms."""

_NOW_MS = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
"""


class _Script:
    def __init__(self, source: str) -> None:
        self.source = source.encode()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()  # how EVALSHA names a script


# ARGV: nonce + execution + digest, redelivered and may_take_over as 0 or 1, ttl in seconds
_CLAIM = _Script(
    """
local held = redis.call('GET', KEYS[1])
local verdict = 'elected'
if held then
  local state = held:sub(1, 1)
  if held:sub(2, 9) ~= ARGV[1]:sub(1, 8) then
    return held:sub(14, 17) == ARGV[1]:sub(13, 16) and 'other' or 'unlike'
  elseif held:sub(10, 13) == ARGV[1]:sub(9, 12) then return 'mine'
  elseif state == 'D' then return 'finished'
  elseif state == 'O' then verdict = 'reopened'
  elseif ARGV[2]:sub(1, 1) == '0' then return 'twin'
  elseif ARGV[2]:sub(2, 2) == '0' then return 'held'
  else verdict = 'taken_over' end
end
"""
    + _NOW_MS
    + """
redis.call('SET', KEYS[1], 'R' .. ARGV[1] .. struct.pack('>I6I4', now, 0), 'EX', ARGV[3])
return verdict
"""
)

# ARGV: execution, state
_MARK = _Script(
    """
local held = redis.call('GET', KEYS[1])
if not held or held:sub(10, 13) ~= ARGV[1] then return 0 end
"""
    + _NOW_MS
    + """
local ran = now - struct.unpack('>I6', held, 18)
ran = math.max(1, math.min(ran, 4294967295))
redis.call('SET', KEYS[1], ARGV[2] .. held:sub(2, 23) .. struct.pack('>I4', ran), 'KEEPTTL')
return 1
"""
)

# ARGV: owner, lease in ms, how long the fence outlives it in ms. The fence starts at the server's clock, so that it
# still grows where an idle lease was forgotten.
_ACQUIRE = _Script(
    _NOW_MS
    + """
local held = redis.call('HMGET', KEYS[1], 'owner', 'until', 'fence')
local fence = tonumber(held[3] or 0)
local mine = held[1] == ARGV[1]
if not mine and held[1] and tonumber(held[2]) > now then return {0, fence} end
if not mine or tonumber(held[2]) <= now then fence = math.max(fence + 1, now) end
redis.call('HSET', KEYS[1], 'owner', ARGV[1],
  'until', string.format('%.0f', now + ARGV[2]), 'fence', string.format('%.0f', fence))
redis.call('PEXPIRE', KEYS[1], ARGV[2] + ARGV[3])
return {1, fence}
"""
)

_RENEW = _Script(
    _NOW_MS
    + """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + ARGV[2]))
redis.call('PEXPIRE', KEYS[1], ARGV[2] + ARGV[3])
return 1
"""
)

_RELEASE = _Script(
    """
if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then redis.call('HSET', KEYS[1], 'owner', '', 'until', '0') end
return 1
"""
)

_SCRIPTS = (_CLAIM, _MARK, _ACQUIRE, _RENEW, _RELEASE)
_VERDICTS = {verdict.value.encode(): verdict for verdict in Verdict}


class RedisStore:
    """Claims under ``wb:`` and 16 bytes, leases under ``wb:lease:`` and their name.

    ``pool`` says where and how to connect; only its parameters are used. Connections carry time-outs of one second and
    no retries of their own: the circuit breaker decides what follows a failure.
    """

    best_effort = ""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        parameters = {
            **pool.connection_kwargs,
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": False,
        }
        where = f"redis {parameters.get('host') or parameters.get('path') or ''}".strip()

        def connect() -> _Line:
            connection: Any = pool.connection_class(**parameters)
            connection.connect()
            return _Line(connection)

        self._connections = Connections(where, connect, _Line.close, (RedisError, OSError))

    @classmethod
    def from_url(cls, url: str) -> RedisStore:
        """Open the store at a ``redis://``, ``rediss://`` or ``unix://`` URL."""
        return cls(ConnectionPool.from_url(url))

    def claim(self, key: str, asked: Asked, ttl_s: int) -> Verdict:
        """See ``ClaimStore``."""
        tokens = bytes.fromhex(asked.nonce + asked.execution + asked.digest)
        may = b"%d%d" % (asked.redelivered, asked.may_take_over)
        return _VERDICTS[self._call(_CLAIM, _claim_at(key), tokens, may, b"%d" % ttl_s)]

    def mark(self, key: str, execution: str, state: State) -> bool:
        """See ``ClaimStore``."""
        return bool(self._call(_MARK, _claim_at(key), bytes.fromhex(execution), state.value.encode()))

    def post(self, key: str, execution: str, state: State) -> None:
        """See ``ClaimStore``: a server that refuses it refuses the next claim, too, and that is noticed."""
        with self._connections.borrow() as line:
            line.post(b"EVALSHA", _MARK.sha, b"1", _claim_at(key), bytes.fromhex(execution), state.value.encode())

    def read(self, key: str) -> Claim | None:
        """See ``ClaimStore``."""
        with self._connections.borrow() as line:
            held = line.ask(b"GET", _claim_at(key))
        if held is None:
            return None
        state, nonce, execution, digest, started, ran = _LAYOUT.unpack(held)
        started_ms, ran_ms = int.from_bytes(started), int.from_bytes(ran)
        ended_ms = started_ms + ran_ms if ran_ms else 0
        return Claim(State(state.decode()), nonce.hex(), execution.hex(), digest.hex(), started_ms, ended_ms)

    def prepare(self) -> None:
        """See ``ClaimStore``: loads the scripts, and fails where the server is a read-only replica or full."""
        with self._connections.borrow() as line:
            for script in _SCRIPTS:
                line.ask(b"SCRIPT", b"LOAD", script.source)
            line.ask(b"SET", b"wb:probe", b"1", b"PX", b"1000")

    def purge(self, limit: int) -> int:  # noqa: ARG002 - Redis expires claims itself
        """See ``ClaimStore``."""
        return 0

    def acquire(self, name: str, owner: str, lease_s: float) -> Lease:
        """See ``LeaseStore``."""
        granted, fence = self._call(_ACQUIRE, _lease_at(name), owner.encode(), _ms(lease_s), _ms(FENCE_REMEMBERED_S))
        return Lease(granted == 1, fence)

    def renew(self, name: str, owner: str, lease_s: float) -> bool:
        """See ``LeaseStore``."""
        return bool(self._call(_RENEW, _lease_at(name), owner.encode(), _ms(lease_s), _ms(FENCE_REMEMBERED_S)))

    def release(self, name: str, owner: str) -> None:
        """See ``LeaseStore``."""
        self._call(_RELEASE, _lease_at(name), owner.encode())

    def info(self) -> dict[str, str]:
        """Return what ``dedup-check`` judges: version, role, memory and eviction policy."""
        with self._connections.borrow() as line:
            text = line.ask(b"INFO").decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def close(self) -> None:
        """Close the free connections of this process."""
        self._connections.close()

    def _call(self, script: _Script, key: bytes, *arguments: bytes) -> Any:
        with self._connections.borrow() as line:
            try:
                return line.ask(b"EVALSHA", script.sha, b"1", key, *arguments)
            except NoScriptError:
                # every script, so that a posted one finds its own as well
                for other in _SCRIPTS:
                    line.ask(b"SCRIPT", b"LOAD", other.source)
                return line.ask(b"EVALSHA", script.sha, b"1", key, *arguments)


class _Line:
    """One connection, and how many replies on it nobody has waited for.

    redis-py's connection without its client: the client spends a fifth of a claim's time on choosing a connection and
    dressing the reply.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._owed = 0

    def ask(self, *words: bytes) -> Any:
        self._connection.send_packed_command([_packed(words)])
        while self._owed:
            self._owed -= 1
            with suppress(ResponseError):
                self._connection.read_response()
        return self._connection.read_response()

    def post(self, *words: bytes) -> None:
        self._connection.send_packed_command([_packed(words)])
        self._owed += 1

    def close(self) -> None:
        self._connection.disconnect()


def _packed(words: tuple[bytes, ...]) -> bytes:
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)])


def _claim_at(key: str) -> bytes:
    return b"wb:" + bytes.fromhex(key)


def _lease_at(name: str) -> bytes:
    return b"wb:lease:" + name.encode(errors="surrogatepass")


def _ms(seconds: float) -> bytes:
    return b"%d" % round(seconds * 1000)
