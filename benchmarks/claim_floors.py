"""Lower bounds of the cost of a claim: bare round trips to its server, without a client library."""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REDIS_MARK = b"if redis.call('GET', KEYS[1]) then redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL') end return 1"
POSTGRES_STATEMENTS = {
    "SELECT 1, prepared": b"SELECT 1 WHERE $1::text IS NOT NULL",
    "INSERT of a claim's shape, prepared": (
        b"INSERT INTO wheelbeat_claim (id, state, nonce, execution, digest, started_ms, ended_ms, expires_ms) "
        b"VALUES ($1, 'R', '0123456789abcdef', '01234567', '01234567', 1, 0, 9000000000000)"
    ),
}


class Floors(NamedTuple):
    """The round trips of one server, by name; their argument is ignored."""

    works: dict[str, Callable[[Any], object]]
    of_a_claim: str
    """The round trip equivalent to a claim."""
    of_both: str
    """The round trips equivalent to a claim with its done mark."""


@contextmanager
def floors_of(url: str) -> Iterator[Floors]:
    """Connect to the server at ``url``; return no floors if it is neither Redis nor PostgreSQL."""
    if url.startswith("redis://"):
        with _redis(url) as floors:
            yield floors
    elif url.startswith("postgresql://"):
        with _postgres(url) as floors:
            yield floors
    else:
        raise SystemExit(f"{url}: expected redis:// or postgresql://")


class _Bare:
    """A socket to Redis, with its pending replies."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._owed = b""

    def ask(self, answer: bytes, *words: bytes) -> None:
        self.post(answer, *words)
        heard = b""
        while len(heard) < len(self._owed):
            heard += self._line.recv(4_096)
        if heard != self._owed:
            raise SystemExit(f"Redis answers {heard!r}, expected {self._owed!r}")
        self._owed = b""

    def post(self, answer: bytes, *words: bytes) -> None:
        self._line.sendall(_packed(*words))
        self._owed += answer


@contextmanager
def _redis(url: str) -> Iterator[Floors]:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379)) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bare = _Bare(line)
        sha = hashlib.sha1(REDIS_MARK, usedforsecurity=False).hexdigest().encode()
        bare.ask(b"+OK\r\n", b"SELECT", (parts.path.strip("/") or "0").encode())
        bare.ask(b"$40\r\n%b\r\n" % sha, b"SCRIPT", b"LOAD", REDIS_MARK)

        def ping(_: Any) -> None:
            bare.ask(b"+PONG\r\n", b"PING")

        def claim(_: Any) -> bytes:
            key = b"wb:" + os.urandom(16)
            bare.ask(b"$-1\r\n", b"SET", key, b"x" * 27, b"NX", b"GET", b"EX", b"3600")
            return key

        def claim_and_mark(_: Any) -> None:
            bare.post(b":1\r\n", b"EVALSHA", sha, b"1", claim(_), b"y" * 27)

        works: dict[str, Callable[[Any], object]] = {
            "PING": ping,
            "SET of a claim's shape": claim,
            "SET of a claim's shape, and a script sent": claim_and_mark,
        }
        yield Floors(works, *list(works)[1:])


@contextmanager
def _postgres(url: str) -> Iterator[Floors]:
    import psycopg
    from psycopg.pq import ExecStatus

    with psycopg.connect(url, autocommit=True, options="-c synchronous_commit=off") as connection:
        libpq = connection.pgconn

        def statement(name: bytes, text: bytes) -> Callable[[Any], object]:
            libpq.prepare(name, text)

            def work(_: Any) -> None:
                result = libpq.exec_prepared(name, [os.urandom(16).hex().encode()])
                if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
                    raise SystemExit(result.error_message.decode())

            return work

        works = {
            name: statement(b"floor_%d" % number, text)
            for number, (name, text) in enumerate(POSTGRES_STATEMENTS.items())
        }
        yield Floors(works, "INSERT of a claim's shape, prepared", "INSERT of a claim's shape, prepared")


def _packed(*words: bytes) -> bytes:
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)])
