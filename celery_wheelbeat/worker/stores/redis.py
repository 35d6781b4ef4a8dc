"""Claims and leases in Redis or Valkey: one script, one round trip.

A claim is 27 bytes under a key of 19: at most 150 bytes of Redis memory with its expiry. The scripts state the rules of
``claims.decide`` again, because only the server can decide atomically; the conformance suite holds both together.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from celery_wheelbeat.worker.claims import Asked, Claim, State, Verdict
from celery_wheelbeat.worker.overlap import Lease
from celery_wheelbeat.worker.stores.connections import Connections
from celery_wheelbeat.worker.stores.lines import Losses
from celery_wheelbeat.worker.stores.redis_line import RedisLine

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
        sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()  # how EVALSHA names a script
        self.call = (b"EVALSHA", sha, b"1")


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
  elseif state == 'D' or state == 'S' then return 'finished'
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

# ARGV: nonce, ttl in seconds
_PROLONG = _Script(
    """
local held = redis.call('GET', KEYS[1])
if not held or held:sub(2, 9) ~= ARGV[1] then return 0 end
return redis.call('EXPIRE', KEYS[1], ARGV[2])
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

_SCRIPTS = (_CLAIM, _MARK, _PROLONG, _ACQUIRE, _RENEW, _RELEASE)
_VERDICTS = {verdict.word.encode(): verdict for verdict in Verdict}


class RedisStore:
    """Claims under ``prefix``, ``wb:`` and 16 bytes, leases under ``prefix``, ``wb:lease:`` and their name.

    ``pool`` says where and how to connect; only its parameters are used. Connections carry time-outs of one second and
    no retries of their own: the circuit breaker decides what follows a failure.
    """

    best_effort = ""

    def __init__(self, pool: ConnectionPool, prefix: str = "") -> None:
        self._pool = pool
        self._claims = prefix.encode() + b"wb:"
        parameters = {
            **pool.connection_kwargs,
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": False,
        }
        where = f"redis {parameters.get('host') or parameters.get('path') or ''}".strip()

        self.losses = Losses()

        def connect() -> RedisLine:
            connection: Any = pool.connection_class(**parameters)
            connection.connect()
            return RedisLine(connection, self.losses)

        self._connections = Connections(where, connect, RedisLine.close, (RedisError, OSError))

    @classmethod
    def from_url(cls, url: str, prefix: str = "") -> RedisStore:
        """Open the store at a ``redis://``, ``rediss://`` or ``unix://`` URL; ValueError for one that says nonsense."""
        return cls(ConnectionPool.from_url(url), prefix)

    def claim(self, key: str, asked: Asked, ttl_s: int) -> Verdict:
        """See ``ClaimStore``."""
        tokens = bytes.fromhex(asked.nonce + asked.execution + asked.digest)
        may = b"%d%d" % (asked.redelivered, asked.may_take_over)
        return _VERDICTS[self._call(_CLAIM, self._claims + bytes.fromhex(key), tokens, may, b"%d" % ttl_s)]

    def mark(self, key: str, execution: str, state: State) -> bool:
        """See ``ClaimStore``."""
        return bool(self._call(_MARK, *self._mark_of(key, execution, state)))

    def post(self, key: str, execution: str, state: State) -> None:
        """See ``ClaimStore``."""
        self._connections.lend(RedisLine.post, *_MARK.call, *self._mark_of(key, execution, state))

    def prolong(self, key: str, nonce: str, ttl_s: int) -> bool:
        """See ``ClaimStore``."""
        return bool(self._call(_PROLONG, self._claims + bytes.fromhex(key), bytes.fromhex(nonce), b"%d" % ttl_s))

    def read(self, key: str) -> Claim | None:
        """See ``ClaimStore``."""
        held = self._connections.lend(RedisLine.ask, b"GET", self._claims + bytes.fromhex(key))
        if held is None:
            return None
        state, nonce, execution, digest, started, ran = _LAYOUT.unpack(held)
        started_ms, ran_ms = int.from_bytes(started), int.from_bytes(ran)
        ended_ms = started_ms + ran_ms if ran_ms else 0
        return Claim(State(state.decode()), nonce.hex(), execution.hex(), digest.hex(), started_ms, ended_ms)

    def prepare(self) -> None:
        """See ``ClaimStore``: loads the scripts, and fails where the server is a read-only replica or full."""
        self._connections.lend(_load)
        self._connections.lend(RedisLine.ask, b"SET", self._claims + b"probe", b"1", b"PX", b"1000")

    def purge(self, limit: int) -> int:  # noqa: ARG002 - Redis expires claims itself
        """See ``ClaimStore``."""
        return 0

    def acquire(self, name: str, owner: str, lease_s: float) -> Lease:
        """See ``LeaseStore``."""
        how_long = (_ms(lease_s), _ms(FENCE_REMEMBERED_S))
        granted, fence = self._call(_ACQUIRE, self._lease_at(name), owner.encode(), *how_long)
        return Lease(granted == 1, fence)

    def renew(self, name: str, owner: str, lease_s: float) -> bool:
        """See ``LeaseStore``."""
        return bool(self._call(_RENEW, self._lease_at(name), owner.encode(), _ms(lease_s), _ms(FENCE_REMEMBERED_S)))

    def release(self, name: str, owner: str) -> None:
        """See ``LeaseStore``."""
        self._call(_RELEASE, self._lease_at(name), owner.encode())

    def info(self) -> dict[str, str]:
        """Return what ``dedup-check`` judges: version, role, memory and eviction policy."""
        text = self._connections.lend(RedisLine.ask, b"INFO").decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def close(self) -> None:
        """Close the free connections of this process."""
        self._connections.close()

    def _call(self, script: _Script, key: bytes, *arguments: bytes) -> Any:
        return self._connections.lend(_evaluate, script, key, *arguments)

    def _mark_of(self, key: str, execution: str, state: State) -> tuple[bytes, bytes, bytes]:
        return self._claims + bytes.fromhex(key), bytes.fromhex(execution), state.letter.encode()

    def _lease_at(self, name: str) -> bytes:
        return self._claims + b"lease:" + name.encode(errors="surrogatepass")


def _evaluate(line: RedisLine, script: _Script, *words: bytes) -> Any:
    try:
        return line.ask(*script.call, *words)
    except NoScriptError:
        _load(line)
        return line.ask(*script.call, *words)


def _load(line: RedisLine) -> None:
    """Load every script, so that a posted one finds its own as well."""
    for script in _SCRIPTS:
        line.ask(b"SCRIPT", b"LOAD", script.source)


def _ms(seconds: float) -> bytes:
    return b"%d" % round(seconds * 1000)
