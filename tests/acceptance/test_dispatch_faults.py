"""The fast lane while its broker is killed, cut off, full or locked: nothing lost, and on Redis nothing twice."""

from __future__ import annotations

import json
import threading
import time
import tracemalloc
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import amqp
import pytest
import redis
from fast_bench import FastBench, numbered
from lanes import make_app
from services import PrivateRabbit, PrivateRedis, TcpProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOBS = 10_000


class Trouble:
    """Makes trouble again and again, in a thread of its own, until it is told to stop."""

    def __init__(self, make: Callable[[], None], pause_s: float) -> None:
        self.times = 0
        self._make = make
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(60)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            try:
                self._make()
            except BaseException as error:
                self._error = error
                return
            self.times += 1


def until_troubled(bench: FastBench, trouble: Trouble, times: int) -> int:
    """Let minutes pass, each drained, until trouble was made ``times`` times; returns the runs."""
    runs = 0
    while trouble.times < times:
        runs += bench.pass_minutes()
        bench.drain()
    return runs


def redis_ids(server: PrivateRedis) -> Counter[str]:
    """How often each id is in the queue."""
    with redis.Redis.from_url(server.url) as client:
        return Counter(json.loads(message)["headers"]["id"] for message in client.lrange("celery", 0, -1))


def amqp_ids(url_port: int, queue: str) -> Counter[str]:
    """How often each id is in the queue, which is emptied."""
    connection = amqp.Connection(f"127.0.0.1:{url_port}")
    connection.connect()
    channel = connection.channel()
    count = channel.queue_declare(queue, passive=True).message_count
    found: list[str] = []
    channel.basic_consume(queue, no_ack=True, callback=lambda message: found.append(message.headers["id"]))
    while len(found) < count:
        connection.drain_events(timeout=10)
    connection.close()
    return Counter(found)


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.soak)])
def test_redis_killed_again_and_again_loses_and_doubles_nothing(kills: int) -> None:
    with PrivateRedis(appendonly="yes", appendfsync="always") as server, FastBench(make_app(server.url)) as bench:

        def kill() -> None:
            server.kill()
            server.start()

        bench.load(numbered(JOBS, bench.route()))
        with Trouble(kill, 0.3) as trouble:
            runs = until_troubled(bench, trouble, kills)
        bench.pass_minutes()
        bench.drain()
        found = redis_ids(server)
        assert bench.parts.ledger.skipped.total() == 0
        assert bench.slow_runs == 0
        assert len(found) == bench.parts.ledger.sent == runs + JOBS
        assert set(found.values()) == {1}


@pytest.mark.parametrize("cuts", [8, pytest.param(20, marks=pytest.mark.soak)])
def test_rabbitmq_cut_off_again_and_again_loses_nothing(cuts: int) -> None:
    """At least once: what was on the way when the connection went is sent again, under the same id."""
    with PrivateRabbit() as server, TcpProxy(server.port) as proxy:
        app = make_app(f"amqp://guest:guest@127.0.0.1:{proxy.port}//")
        with FastBench(app) as bench:
            bench.load(numbered(2_000, bench.route()))
            with Trouble(proxy.cut, 0.25) as trouble:
                runs = until_troubled(bench, trouble, cuts)
            assert bench.parts.ledger.skipped.total() == 0
            assert bench.parts.ledger.sent == runs
        found = amqp_ids(server.port, "celery")
        assert len(found) == runs
        assert found.total() - runs <= cuts * 4_000, "no more than the window, each time"


@pytest.fixture
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def client(server: PrivateRedis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        yield client


def heal_after(
    bench: FastBench, break_it: Callable[[], Any], seen: str, heal: Callable[[], Any], *, skipped: int = 0
) -> None:
    """Break something, offer runs, wait until the lane says ``seen``, heal it, and expect all runs to be sent."""
    break_it()
    runs = bench.pass_minutes()
    bench.until(lambda: seen in bench.lanes.last_error, seen)
    heal()
    sent = bench.parts.ledger.sent
    bench.drain()
    assert bench.parts.ledger.sent - sent == runs - skipped


@pytest.fixture
def bench(server: PrivateRedis) -> Iterator[FastBench]:
    with FastBench(make_app(server.url)) as bench:
        bench.load(numbered(500, bench.route()))
        bench.pass_minutes()
        bench.drain()
        yield bench


def test_no_memory(bench: FastBench, client: redis.Redis) -> None:
    heal_after(
        bench,
        lambda: client.config_set("maxmemory", "1mb"),
        "maxmemory",
        lambda: client.config_set("maxmemory", "0"),
    )
    assert client.llen("celery") == 1000


def test_read_only(bench: FastBench, client: redis.Redis) -> None:
    with PrivateRedis() as other:
        heal_after(
            bench,
            lambda: client.replicaof("127.0.0.1", other.port),
            "read only replica",
            lambda: client.replicaof("NO", "ONE"),
        )


def test_disk_full() -> None:
    """A snapshot that cannot be written makes Redis refuse writes, as a full disk does."""
    with (
        PrivateRedis(**{"enable-protected-configs": "yes"}) as server,
        redis.Redis.from_url(server.url) as client,
        FastBench(make_app(server.url)) as bench,
    ):
        bench.load(numbered(500, bench.route()))
        bench.pass_minutes()
        bench.drain()
        _fill_disk(bench, client)


def _fill_disk(bench: FastBench, client: redis.Redis) -> None:
    def fill() -> None:
        client.config_set("dir", "/proc")
        client.config_set("save", "3600 1")
        client.config_set("stop-writes-on-bgsave-error", "yes")
        client.bgsave()
        while client.info("persistence")["rdb_last_bgsave_status"] != "err":
            time.sleep(0.01)

    def empty() -> None:
        client.config_set("stop-writes-on-bgsave-error", "no")
        client.config_set("save", "")

    heal_after(bench, fill, "MISCONF", empty)


def test_a_wrong_password_is_said_and_recovered_from(bench: FastBench, client: redis.Redis) -> None:
    def lock() -> None:
        client.config_set("requirepass", "other")
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    heal_after(bench, lock, "Authentication required", lambda: client.config_set("requirepass", ""))


def test_an_outage_costs_no_memory_and_no_time(server: PrivateRedis) -> None:
    """While the broker is away a turn only compares and keeps pairs: 20 bytes a job, however long it lasts."""
    jobs = 3_000
    with FastBench(make_app(server.url)) as bench:
        bench.load(numbered(jobs, bench.route()))
        bench.pass_minutes()
        bench.drain()
        server.kill()
        bench.pass_minutes()
        bench.until(lambda: not bench.parts.publisher.health().connected, "the loss of the broker")
        bench.until(lambda: bench.lanes.fast.backlog._squeezed, "the first squeeze")
        tracemalloc.start()
        sizes = []
        for _ in range(10):
            bench.pass_minutes()
            bench.turn()
            sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert max(sizes[5:]) - sizes[4] < 200_000
        assert bench.lanes.backlog.waiting <= jobs
        server.start()
        bench.drain()
        skipped = bench.parts.ledger.skipped
        assert skipped["backlog"] == skipped.total() >= 8 * jobs


def test_what_is_unsettled_at_the_end_is_left_for_the_next_start(server: PrivateRedis) -> None:
    with TcpProxy(server.port) as proxy:
        bench = FastBench(make_app(f"redis://127.0.0.1:{proxy.port}/0"))
        bench.load(numbered(3_000, bench.route()))
        bench.pass_minutes()
        bench.drain()
        proxy.stall()
        bench.pass_minutes()
        bench.until(lambda: bench.lanes.backlog.in_flight > 0, "batches on their way")
        began_s = time.monotonic()
        bench.parts.publisher.close(1.0)
        assert time.monotonic() - began_s < 5
        bench.lanes.take_in(time.monotonic())
        assert bench.lanes.backlog.oldest_fire_ms() is not None
        left = bench.lanes.backlog.shutdown()
        assert left.runs == 3_000
        assert bench.parts.ledger.difference(0) == 0
