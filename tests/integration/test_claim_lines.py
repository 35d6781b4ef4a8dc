"""The lines to claim stores whose marks nobody waits for: what is posted arrives, or is counted as lost."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
import redis
from redis.exceptions import InvalidResponse, NoScriptError, ResponseError
from services import TcpProxy, wait_until

from celery_wheelbeat.worker.claims import ClaimRequest, State, Verdict
from celery_wheelbeat.worker.stores.choice import open_store
from celery_wheelbeat.worker.stores.connection import Losses
from celery_wheelbeat.worker.stores.redis_connection import RedisLine, packed

EXECUTION = "11" * 4
ASKED = ClaimRequest("aa" * 8, EXECUTION, "d0" * 8, redelivered=False)


class Scripted:
    """A connection whose server says what the test wants, in pieces of the size that the test wants."""

    def __init__(self, output: bytes, piece: int) -> None:
        self._said = output
        self._piece = piece
        self._sock = self
        self.sent = b""

    def sendall(self, text: bytes) -> None:
        self.sent += text

    def recv(self, _: int) -> bytes:
        piece, self._said = self._said[: self._piece], self._said[self._piece :]
        return piece

    def disconnect(self) -> None:
        self._said = b""


@pytest.mark.parametrize("piece", [1, 3, 4_096])
def test_answers_are_read_however_they_are_cut_into_pieces(piece: int) -> None:
    output = b"$7\r\nelected\r\n:-3\r\n+OK\r\n$-1\r\n_\r\n*2\r\n:1\r\n$0\r\n\r\n=8\r\ntxt:a\r\nb\r\n"
    output += b">2\r\n+moved\r\n:1\r\n:9\r\n"
    line = RedisLine(Scripted(output, piece), Losses(), b"")
    assert [line.ask(b"x") for _ in range(8)] == [b"elected", -3, b"OK", None, None, [1, b""], b"txt:a\r\nb", 9]


def test_a_refusal_is_raised_and_leaves_the_line_as_it_was() -> None:
    line = RedisLine(Scripted(b"-NOSCRIPT no matching script\r\n-OOM full\r\n:1\r\n?\r\n", 4_096), Losses(), b"")
    with pytest.raises(NoScriptError):
        line.ask(b"x")
    with pytest.raises(ResponseError, match="OOM full"):
        line.ask(b"x")
    assert line.ask(b"x") == 1
    with pytest.raises(InvalidResponse):
        line.ask(b"x")
    with pytest.raises(redis.ConnectionError, match="closed"):
        line.ask(b"x")


def test_posted_commands_are_answered_before_what_comes_next_and_a_refused_one_is_lost() -> None:
    losses = Losses()
    server = Scripted(b"+OK\r\n:1\r\n-OOM full\r\n:7\r\n", 4_096)
    line = RedisLine(server, losses, b"prelude.")
    line.post(packed(b"first", b"\r\n"))
    line.post(packed(b"second"))
    assert server.sent == b"prelude.*2\r\n$5\r\nfirst\r\n$2\r\n\r\n\r\n*1\r\n$6\r\nsecond\r\n"
    assert losses.take() == 0
    assert line.ask(b"third") == 7
    assert (losses.take(), losses.take()) == (1, 0)
    line.post(b"fourth")
    line.close()
    assert losses.take() == 1


def test_a_server_that_has_forgotten_the_prelude_gets_it_again_before_the_next_post() -> None:
    losses = Losses()
    server = Scripted(b"+OK\r\n-NOSCRIPT no matching script\r\n:7\r\n+OK\r\n:8\r\n:9\r\n", 1)
    line = RedisLine(server, losses, b"prelude.")
    line.post(b"first.")
    assert line.ask(b"second.") == 7
    line.post(b"third.")
    assert line.ask(b"fourth.") == 9
    assert server.sent == b"prelude.first.second.prelude.third.fourth."
    assert losses.take() == 1


def test_a_command_that_the_system_takes_in_parts_arrives_whole_or_ends_in_a_time_out() -> None:
    command = b"x" * 8_000_000
    for timeout_s in (60.0, 0.05):
        near, far = socket.socketpair()
        near.settimeout(timeout_s)
        with near, far, ThreadPoolExecutor(1) as reader:
            line = RedisLine(SimpleNamespace(_sock=near, disconnect=near.close), Losses(), b"")
            if timeout_s < 1:
                with pytest.raises(TimeoutError):
                    line.ask(command)
                continue
            far.sendall(b":7\r\n+OK\r\n")
            read = reader.submit(lambda: b"".join(iter(lambda: far.recv(1 << 20), b"")))  # noqa: B023
            assert line.ask(command) == 7
            line.post(b"y")
            line.close()
            assert read.result() == command + b"y"


@pytest.mark.parametrize(
    "server",
    [
        pytest.param("redis_url", marks=pytest.mark.redis),
        pytest.param("postgres_url", marks=pytest.mark.postgres),
    ],
)
def test_a_posted_mark_that_is_cut_off_is_counted_with_the_next_claim(
    server: str, request: pytest.FixtureRequest
) -> None:
    url = urlsplit(request.getfixturevalue(server))
    with TcpProxy(url.port or 0, url.hostname or "") as proxy:
        user = url.netloc.rpartition("@")[0]
        through = url._replace(netloc=f"{user}@127.0.0.1:{proxy.port}".removeprefix("@")).geturl()
        with closing(open_store(through)) as store:
            store.prepare()
            keys = [uuid4().hex for _ in range(2)]
            for key in keys:
                assert store.claim(key, ASKED, 60) is Verdict.ELECTED
            store.post(keys[0], EXECUTION, State.DONE)
            assert store.claim(keys[0], ASKED._replace(execution="22" * 4), 60) is Verdict.FINISHED
            assert store.losses.take() == 0
            proxy.black_hole()
            store.post(keys[1], EXECUTION, State.DONE)
            proxy.cut()
            proxy.pass_through()
            assert store.claim(uuid4().hex, ASKED, 60) is Verdict.ELECTED  # on a new connection
            assert (store.losses.take(), store.losses.count) == (1, 0)
            held = store.read(keys[1])
            assert held is not None
            assert held.state is State.RUNNING


@pytest.mark.redis
def test_a_mark_that_redis_refuses_is_counted(redis_url: str) -> None:
    key = uuid4().hex
    with closing(open_store(redis_url)) as store, redis.Redis.from_url(redis_url) as client:
        assert store.claim(key, ASKED, 60) is Verdict.ELECTED
        store.post(key, EXECUTION, State.RUNNING)
        client.script_flush()
        store.post(key, EXECUTION, State.DONE)
        assert store.claim(uuid4().hex, ASKED, 60) is Verdict.ELECTED
        assert store.losses.take() == 1
        store.post(key, EXECUTION, State.DONE)  # which brings the script back
        assert store.claim(key, ASKED._replace(execution="22" * 4), 60) is Verdict.FINISHED
        assert store.losses.take() == 0


@pytest.mark.postgres
def test_a_mark_that_postgresql_refuses_is_counted_and_the_next_one_arrives(postgres_url: str) -> None:
    keys = [uuid4().hex for _ in range(3)]
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url, autocommit=True) as owner:
        store.prepare()
        for key in keys:
            assert store.claim(key, ASKED, 60) is Verdict.ELECTED
        store.post(keys[0], EXECUTION, State.DONE)
        owner.execute("ALTER TABLE wheelbeat_claim ADD CONSTRAINT closed CHECK (state <> 'O') NOT VALID")
        try:
            store.post(keys[1], EXECUTION, State.OPEN)
            store.post(keys[2], EXECUTION, State.DONE)
            states = [claim.state for claim in map(store.read, keys) if claim is not None]
        finally:
            owner.execute("ALTER TABLE wheelbeat_claim DROP CONSTRAINT closed")
        assert states == [State.DONE, State.RUNNING, State.DONE]
        assert store.losses.take() == 1


@pytest.mark.postgres
def test_a_posted_mark_in_postgresql_is_committed_without_a_further_question(postgres_url: str) -> None:
    keys = [uuid4().hex for _ in range(2)]
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url, autocommit=True) as looker:
        store.prepare()
        for key in keys:
            assert store.claim(key, ASKED, 60) is Verdict.ELECTED
            store.post(key, EXECUTION, State.DONE)

        def state() -> Any:
            return looker.execute("SELECT state FROM wheelbeat_claim WHERE id = %s", (keys[1],)).fetchone()

        wait_until(lambda: state() == ("D",), "the commit of the mark")
