"""Claims and leases in Redis or Valkey: one command, one round trip.

A claim is 31 bytes under a key of 19: at most 150 bytes of Redis memory with its expiry. Most requests are the first of
their run: ``SET NX GET`` elects them. Else it returns the held claim, which is enough for most verdicts. A claim is
replaced by a script, which repeats the rules of ``claims.decide`` because only the server can decide atomically; the
conformance suite checks that both agree.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from celery_wheelbeat.worker.claims import KEY_BYTES, Claim, ClaimRequest, State, Verdict, decide
from celery_wheelbeat.worker.overlap import Lease
from celery_wheelbeat.worker.stores.connection import Losses
from celery_wheelbeat.worker.stores.connections import Connections
from celery_wheelbeat.worker.stores.redis_connection import RedisLine, packed
from celery_wheelbeat.worker.stores.sentinels import asked_once

TIMEOUT_S = 1.0
FENCE_REMEMBERED_S = 86_400
LEASE_NAME_BYTES = 400
"""Longer lease names are hashed in the key."""
_LAYOUT = struct.Struct(">c8s4s4s6s4s4s")
"""State, nonce, execution, half of the digest, start in ms, run time in ms, the other half of the digest.

An older release writes all but the last field, which is at the end so that that release's scripts still work.
``SET`` cannot read the server's clock: a claim written by it holds its TTL in seconds in place of its start, which is
less than any start. Its start is the expiry of its key (in ms since Redis 7.0) minus the TTL.
"""
OLD_BYTES = 27
"""Layout of an older release's claims."""
_NO_START = 1 << 32
"""A smaller value is a TTL, not a start."""

_NOW_MS = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
"""


_VERDICTS = {verdict.word.encode(): verdict for verdict in Verdict}


class _Script:
    def __init__(self, source: str) -> None:
        self.source = source.encode()
        sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()  # EVALSHA's script id
        self.call = (b"EVALSHA", sha, b"1")
        """Leading parts of the command, before key and arguments."""


# ARGV: nonce + execution + both halves of the digest, redelivered and may_take_over as 0 or 1, ttl in seconds
_CLAIM = _Script(
    """
local held = redis.call('GET', KEYS[1])
local verdict = 'elected'
if held then
  local state = held:sub(1, 1)
  if held:sub(2, 9) ~= ARGV[1]:sub(1, 8) then
    local same = held:sub(14, 17) == ARGV[1]:sub(13, 16) and (#held == 27 or held:sub(28) == ARGV[1]:sub(17))
    return same and 'other' or 'unlike'
  elseif held:sub(10, 13) == ARGV[1]:sub(9, 12) then return 'mine'
  elseif state == 'D' or state == 'S' then return 'finished'
  elseif state == 'O' then verdict = 'reopened'
  elseif ARGV[2]:sub(2, 2) == '0' then return 'held'
  elseif ARGV[2]:sub(1, 1) == '0' then return 'twin'
  else verdict = 'taken_over' end
end
"""
    + _NOW_MS
    + """
local times = struct.pack('>I6I4', now, 0)
redis.call('SET', KEYS[1], 'R' .. ARGV[1]:sub(1, 16) .. times .. ARGV[1]:sub(17), 'EX', ARGV[3])
return verdict
"""
)

# ARGV: execution, state
_MARK = _Script(
    """
local held = redis.call('GET', KEYS[1])
if not held or held:sub(10, 13) ~= ARGV[1] then return 0 end
local started = struct.unpack('>I6', held, 18)
local ran
if started < 4294967296 then
  ran = started * 1000 - redis.call('PTTL', KEYS[1])
else
  local t = redis.call('TIME')
  ran = t[1] * 1000 + math.floor(t[2] / 1000) - started
end
ran = math.max(1, math.min(ran, 4294967295))
redis.call('SET', KEYS[1], ARGV[2] .. held:sub(2, 23) .. struct.pack('>I4', ran) .. held:sub(28), 'KEEPTTL')
return 1
"""
)

# ARGV: nonce, ttl in seconds. The start must be written before the expiry from which it is derived changes.
_PROLONG = _Script(
    """
local held = redis.call('GET', KEYS[1])
if not held or held:sub(2, 9) ~= ARGV[1] then return 0 end
local started = struct.unpack('>I6', held, 18)
if started >= 4294967296 then return redis.call('EXPIRE', KEYS[1], ARGV[2]) end
started = redis.call('PEXPIRETIME', KEYS[1]) - started * 1000
redis.call('SET', KEYS[1], held:sub(1, 17) .. struct.pack('>I6', started) .. held:sub(24), 'EX', ARGV[2])
return 1
"""
)

_READ = _Script(
    """
local held = redis.call('GET', KEYS[1])
if held and #held >= 27 and struct.unpack('>I6', held, 18) < 4294967296 then
  return {held, redis.call('PEXPIRETIME', KEYS[1])}
end
return {held, 0}
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

_SCRIPTS = (_CLAIM, _MARK, _PROLONG, _READ, _ACQUIRE, _RENEW, _RELEASE)


class RedisStore:
    """Claims under ``prefix``, ``wb:`` and 16 bytes, leases under ``prefix``, ``wb:lease:`` and their name.

    Only the connection parameters of ``pool`` are used. Connections have time-outs of one second and do not retry: the
    circuit breaker handles failures.
    """

    best_effort = ""

    def __init__(self, pool: ConnectionPool, prefix: str = "") -> None:
        self._pool = pool
        self._claims = prefix.encode() + b"wb:"
        key = b"$%d\r\n%b" % (len(self._claims) + KEY_BYTES, self._claims)
        self._set = b"*7\r\n$3\r\nSET\r\n" + key
        self._evaluate_mark = b"*6\r\n" + packed(*_MARK.call).partition(b"\r\n")[2] + key
        self._sets = True
        """Whether the server supports ``SET`` with both ``NX`` and ``GET``: Redis since 7.0."""
        parameters = {
            **pool.connection_kwargs,
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": False,
        }
        if "connection_pool" in parameters:
            parameters["connection_pool"] = asked_once(parameters["connection_pool"], TIMEOUT_S)
        where = f"redis {parameters.get('host') or parameters.get('path') or ''}".strip()

        self.losses = Losses()

        def connect() -> RedisLine:
            connection: Any = pool.connection_class(**parameters)
            connection.connect()
            return RedisLine(connection, self.losses, packed(b"SCRIPT", b"LOAD", _MARK.source))

        self._connections = Connections(where, connect, RedisLine.close, (RedisError, OSError))

    @classmethod
    def from_url(cls, url: str, prefix: str = "") -> RedisStore:
        """Open the store at a ``redis://``, ``rediss://`` or ``unix://`` URL; raises ValueError for an invalid one."""
        return cls(ConnectionPool.from_url(url), prefix)

    def claim(self, key: str, asked: ClaimRequest, ttl_s: int) -> Verdict:
        """See ``ClaimStore``."""
        name, tokens = bytes.fromhex(key), bytes.fromhex(asked.nonce + asked.execution + asked.digest)
        if self._sets:
            began, options = _if_there_is_none(ttl_s)
            command = b"".join((self._set, name, b"\r\n$31\r\nR", tokens[:16], began, tokens[16:], options))
            held = self._connections.lend(RedisLine.hear, command)
            if held is None:
                return Verdict.ELECTED
            if (verdict := self._judge(held, asked)) is not None:
                return verdict
        may = b"%d%d" % (asked.redelivered, asked.may_take_over)
        return _VERDICTS[self._call(_CLAIM, self._claims + name, tokens, may, b"%d" % ttl_s)]

    def mark(self, key: str, execution: str, state: State) -> bool:
        """See ``ClaimStore``."""
        words = (self._claims + bytes.fromhex(key), bytes.fromhex(execution), state.letter.encode())
        return bool(self._call(_MARK, *words))

    def post(self, key: str, execution: str, state: State) -> None:
        """See ``ClaimStore``."""
        words = (self._evaluate_mark, bytes.fromhex(key), bytes.fromhex(execution), state.letter.encode())
        self._connections.lend(RedisLine.post, b"%b%b\r\n$4\r\n%b\r\n$1\r\n%b\r\n" % words)

    def prolong(self, key: str, nonce: str, ttl_s: int) -> bool:
        """See ``ClaimStore``."""
        return bool(self._call(_PROLONG, self._claims + bytes.fromhex(key), bytes.fromhex(nonce), b"%d" % ttl_s))

    def read(self, key: str) -> Claim | None:
        """See ``ClaimStore``."""
        held, expires_ms = self._call(_READ, self._claims + bytes.fromhex(key))
        return None if held is None else _claim_of(held, expires_ms)

    def prepare(self) -> None:
        """See ``ClaimStore``: loads the scripts; fails if the server is a read-only replica or full."""
        self._connections.lend(_load)
        self._connections.lend(RedisLine.ask, packed(b"SET", self._claims + b"probe", b"1", b"PX", b"1000"))

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
        """Return version, role, memory and eviction policy, for ``dedup-check``."""
        text = self._connections.lend(RedisLine.ask, packed(b"INFO")).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def close(self) -> None:
        """Close the free connections of this process."""
        self._connections.close()

    def _call(self, script: _Script, key: bytes, *arguments: bytes) -> Any:
        return self._connections.lend(_evaluate, script, key, *arguments)

    def _judge(self, held: bytes | ResponseError, asked: ClaimRequest) -> Verdict | None:
        """Decide by the claim that ``SET`` has found; None if the script must decide.

        Also used after an error reply: a copy is recognised even if the server is full or read-only.
        """
        if isinstance(held, ResponseError):
            self._sets = "syntax error" not in str(held)
            return None
        try:
            verdict = decide(_claim_of(held), asked)
        except (struct.error, ValueError):  # not a claim
            return None
        return None if verdict in (Verdict.TAKEN_OVER, Verdict.REOPENED) else verdict

    def _lease_at(self, name: str) -> bytes:
        text = name.encode(errors="surrogatepass")
        if len(text) > LEASE_NAME_BYTES:  # task ids have any length
            text = blake2b(text, digest_size=KEY_BYTES).hexdigest().encode()
        return self._claims + b"lease:" + text


@lru_cache(maxsize=64)
def _if_there_is_none(ttl_s: int) -> tuple[bytes, bytes]:
    """Return the time fields of a claim's value for ``SET``, and the options after the value."""
    options = packed(b"NX", b"GET", b"EX", b"%d" % ttl_s).partition(b"\r\n")[2]
    return ttl_s.to_bytes(6) + bytes(4), b"\r\n" + options


def _claim_of(held: bytes, expires_ms: int = 0) -> Claim:
    """Parse a claim; without ``expires_ms``, the expiry of its key, its times are meaningless."""
    state, nonce, execution, digest, started, ran, rest = _LAYOUT.unpack(held.ljust(_LAYOUT.size, b"\0"))
    started_ms, ran_ms = int.from_bytes(started), int.from_bytes(ran)
    if started_ms < _NO_START:
        started_ms = expires_ms - started_ms * 1000
    ended_ms = started_ms + ran_ms if ran_ms else 0
    digest += rest[: len(held) - OLD_BYTES]
    return Claim(State(state.decode()), nonce.hex(), execution.hex(), digest.hex(), started_ms, ended_ms)


def _evaluate(line: RedisLine, script: _Script, *words: bytes) -> Any:
    command = packed(*script.call, *words)
    try:
        return line.ask(command)
    except NoScriptError:
        _load(line)
        return line.ask(command)


def _load(line: RedisLine) -> None:
    for script in _SCRIPTS:
        line.ask(packed(b"SCRIPT", b"LOAD", script.source))


def _ms(seconds: float) -> bytes:
    return b"%d" % round(seconds * 1000)
