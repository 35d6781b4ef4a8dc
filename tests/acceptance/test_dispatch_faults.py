"""The fast lane while its broker is killed, cut off, full or locked: nothing lost, and on Redis nothing twice."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Self

import amqp
import pytest
import redis
from services import PrivateRedis, TcpProxy, wait_until
from support.engine.definitions import Job
from support.lanes.bench import MINUTE_MS, FastBench, numbered
from support.lanes.fast_lane import make_app

from celery_wheelbeat.dispatch.fast_lane.batches import BLOCK_BYTES
from celery_wheelbeat.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services import PrivateRabbit

    from celery_wheelbeat.dispatch.fast_lane.batches import Batch


class Trouble:
    """Makes trouble again and again, in a thread of its own, ``most`` times or until it is stopped."""

    def __init__(self, make: Callable[[], None], pause_s: float, most: int = sys.maxsize) -> None:
        self.times = 0
        self._make = make
        self._pause_s = pause_s
        self._most = most
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
        while self.times < self._most and not self._stop.wait(self._pause_s):
            try:
                self._make()
            except BaseException as error:
                self._error = error
                return
            self.times += 1


def until_troubled(bench: FastBench, trouble: Trouble, times: int, least: int = 0) -> int:
    """Let minutes pass, each drained, until trouble was made ``times`` times and ``least`` runs; returns the runs."""
    runs = 0
    while trouble.times < times or runs < least:
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


LEAST = 100_000
"""Runs of a soak test."""


@pytest.mark.promise("every-due-run-is-accounted-for")
@pytest.mark.parametrize(
    ("jobs", "kills", "least"), [(4_000, 5, 0), pytest.param(10_000, 50, LEAST, marks=pytest.mark.soak)]
)
def test_redis_killed_again_and_again_loses_and_doubles_nothing(jobs: int, kills: int, least: int) -> None:
    with PrivateRedis(appendonly="yes", appendfsync="always") as server, FastBench(make_app(server.url)) as bench:

        def kill() -> None:
            server.kill()
            server.start()

        bench.load(numbered(jobs, bench.route()))
        with Trouble(kill, 0.3, kills) as trouble:
            runs = until_troubled(bench, trouble, kills, least)
        bench.pass_minutes()
        bench.drain()
        found = redis_ids(server)
        assert bench.ledger.skipped.total() == 0
        assert bench.slow_runs == 0
        assert len(found) == bench.ledger.sent == runs + jobs
        assert set(found.values()) == {1}


class PowerCuts:
    """Ends a server as a loss of power would: what it wrote in its last second never reached the disk."""

    def __init__(self, server: PrivateRedis) -> None:
        self._server = server
        self._sizes: deque[tuple[float, dict[str, int]]] = deque(maxlen=200)

    def look(self) -> None:
        """Note how long its files are."""
        files = (self._server.folder / "appendonlydir").glob("*.aof")
        self._sizes.append((time.monotonic(), {str(path): path.stat().st_size for path in files}))

    def make(self) -> None:
        """Cut the power, and start the server again."""
        self._server.kill()
        cut_s = time.monotonic() - 1.0
        before = next((sizes for at_s, sizes in reversed(list(self._sizes)) if at_s <= cut_s), {})
        for path, size in before.items():
            os.truncate(path, size)
        self._server.start()


@pytest.mark.soak
@pytest.mark.parametrize(("fsync", "power"), [("everysec", "on"), ("everysec", "cut"), ("", "on")])
def test_what_redis_forgets_is_measured(fsync: str, power: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Ended without a sync after each write: what it had confirmed may be gone, and nothing is there twice."""
    options = {"appendonly": "yes", "appendfsync": fsync} if fsync else {}
    with PrivateRedis(**options) as server, FastBench(make_app(server.url)) as bench:
        cuts = PowerCuts(server)

        def kill() -> None:
            server.kill()
            server.start()

        bench.load(numbered(5_000, bench.route()))
        with Trouble(cuts.look, 0.02), Trouble(cuts.make if power == "cut" else kill, 1.5) as trouble:
            until_troubled(bench, trouble, 10)
        found = redis_ids(server)
        sent = bench.ledger.sent
        with capsys.disabled():
            lost = f"{sent - len(found)} of them lost"
            sys.stdout.write(f"\nappendfsync {fsync or 'none'}, power {power}: 10 ends, {sent} confirmed, {lost}\n")
        assert set(found.values()) <= {1}
        assert len(found) <= sent
        assert (len(found) < sent) is (power == "cut" or not fsync)


@pytest.mark.promise("every-due-run-is-accounted-for")
@pytest.mark.parametrize(("cuts", "least"), [(8, 0), pytest.param(20, LEAST, marks=pytest.mark.soak)])
def test_rabbitmq_cut_off_again_and_again_loses_nothing(private_rabbit: PrivateRabbit, cuts: int, least: int) -> None:
    """At least once: what was on the way when the connection went is sent again, under the same id."""
    queue = f"cut-off-{cuts}"
    with TcpProxy(private_rabbit.port) as proxy:
        app = make_app(f"amqp://guest:guest@127.0.0.1:{proxy.port}//", task_default_queue=queue)
        with FastBench(app) as bench:
            bench.load(numbered(2_000, bench.route()))
            with Trouble(proxy.cut, 0.25 if cuts < 20 else 0.75, cuts) as trouble:
                runs = until_troubled(bench, trouble, cuts, least)
            assert bench.ledger.skipped.total() == 0
            assert bench.ledger.sent == runs
        found = amqp_ids(private_rabbit.port, queue)
        assert len(found) == runs
        assert found.total() - runs <= cuts * 4_000, "no more than the window, each time"


@pytest.mark.parametrize("silence", ["black_hole", "stall"])
def test_a_silent_rabbitmq_is_given_up(private_rabbit: PrivateRabbit, silence: str) -> None:
    """The connection stays open, what is written is taken, and nothing comes back: two heartbeats tell."""
    queue = f"silent-{silence}"
    with TcpProxy(private_rabbit.port) as proxy:
        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}//"
        with FastBench(make_app(url, task_default_queue=queue, broker_heartbeat=1)) as bench:
            bench.load(numbered(500, bench.route()))
            bench.pass_minutes()
            bench.drain()
            getattr(proxy, silence)()
            bench.pass_minutes()
            bench.until(lambda: bool(bench.fast.publisher.trouble), "the loss of the connection")
            proxy.pass_through()
            bench.drain()
            assert bench.ledger.skipped.total() == 0
            assert bench.ledger.sent == 1_000
        assert len(amqp_ids(private_rabbit.port, queue)) == 1_000


@pytest.fixture
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def client(server: PrivateRedis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        yield client


def heal_after(
    bench: FastBench,
    caplog: pytest.LogCaptureFixture,
    break_it: Callable[[], Any],
    seen: str,
    heal: Callable[[], Any],
    *,
    kind: str = "refused",
) -> None:
    """Break something, offer runs, wait until the lane says ``seen``, heal it, and expect all runs to be sent."""
    break_it()
    runs = bench.pass_minutes()
    bench.until(lambda: seen in bench.lanes.last_error, seen)
    assert seen in caplog.text
    heal()
    sent = bench.ledger.sent
    bench.drain()
    assert bench.ledger.sent - sent == runs
    assert bench.lanes.failures[kind] > 0


@pytest.fixture
def bench(server: PrivateRedis) -> Iterator[FastBench]:
    with FastBench(make_app(server.url)) as bench:
        bench.load(numbered(500, bench.route()))
        bench.pass_minutes()
        bench.drain()
        yield bench


def test_no_memory(bench: FastBench, client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    heal_after(
        bench,
        caplog,
        lambda: client.config_set("maxmemory", "1mb"),
        "maxmemory",
        lambda: client.config_set("maxmemory", "0"),
    )
    assert client.llen("celery") == 1000


def test_no_memory_when_an_envelope_is_asked_for(server: PrivateRedis, client: redis.Redis) -> None:
    """The server's state says nothing about the route: no run takes the celery lane for it."""
    client.config_set("maxmemory", "1mb")
    with FastBench(make_app(server.url)) as bench:
        bench.load(numbered(500, bench.route()))
        bench.pass_minutes()
        bench.until(lambda: "maxmemory" in bench.lanes.last_error, "the refusal")
        client.config_set("maxmemory", "0")
        bench.drain()
        assert bench.slow_runs == 0
        assert bench.ledger.sent == 500
        assert bench.fast.canary.differences == 0


def test_read_only(bench: FastBench, client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    with PrivateRedis() as other:
        heal_after(
            bench,
            caplog,
            lambda: client.replicaof("127.0.0.1", other.port),
            "read only replica",
            lambda: client.replicaof("NO", "ONE"),
        )


def test_disk_full(caplog: pytest.LogCaptureFixture) -> None:
    """A snapshot that cannot be written makes Redis refuse writes, as a full disk does."""
    with (
        PrivateRedis(**{"enable-protected-configs": "yes"}) as server,
        redis.Redis.from_url(server.url) as client,
        FastBench(make_app(server.url)) as bench,
    ):
        bench.load(numbered(500, bench.route()))
        bench.pass_minutes()
        bench.drain()
        _fill_disk(bench, client, caplog)


def _fill_disk(bench: FastBench, client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    def fill() -> None:
        client.config_set("dir", "/proc")
        client.config_set("save", "3600 1")
        client.config_set("stop-writes-on-bgsave-error", "yes")
        client.bgsave()
        wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "a save that fails")

    def empty() -> None:
        client.config_set("stop-writes-on-bgsave-error", "no")
        client.config_set("save", "")

    heal_after(bench, caplog, fill, "MISCONF", empty)


def test_large_arguments_get_through_a_slow_line(server: PrivateRedis, client: redis.Redis) -> None:
    """All of them take longer than a reply may: what counts is that bytes move. No batch is as large as they are."""
    with TcpProxy(server.port) as proxy:
        patience = {"socket_timeout": 2.0}
        app = make_app(f"redis://127.0.0.1:{proxy.port}/0", broker_transport_options=patience)
        with FastBench(app) as bench:
            payload = b'[[%d], {"url": "' + b"x" * 20_000 + b'"}]'
            route = bench.route()
            bench.load(
                Job(id=number, interval_ms=MINUTE_MS, route_index=route, payload=payload % number)
                for number in range(400)
            )
            sizes: list[int] = []
            submit = bench.fast.publisher.submit

            def spy(batch: Batch) -> None:
                sizes.append(sum(len(parcel.data) for parcel in batch.parcels))
                submit(batch)

            bench.fast.publisher.submit = spy  # type: ignore[method-assign]
            for drip_bytes in (0, 32_768):
                if drip_bytes:
                    proxy.drip(drip_bytes)
                bench.pass_minutes()
                bench.drain()
            assert bench.ledger.sent == 800
            assert bench.slow_runs == 0
            assert sum(sizes) > 2 * 400 * 26_000
            assert max(sizes) < 2 * BLOCK_BYTES
        found = redis_ids(server)
        assert len(found) == found.total() == 800


def test_a_wrong_password_is_reported_and_recovered_from(
    bench: FastBench, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    def lock() -> None:
        client.config_set("requirepass", "other")
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    unlock = lambda: client.config_set("requirepass", "")  # noqa: E731
    heal_after(bench, caplog, lock, "Authentication required", unlock, kind="not_sent")


def test_a_queue_whose_key_is_no_list_concerns_its_runs_alone(
    bench: FastBench, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    bench.load(numbered(50, bench.route(options='{"queue": "broken"}'), first=1_000))
    bench.pass_minutes()
    bench.drain()
    client.delete("broken")
    client.set("broken", "a text")
    for minutes in (1, 2):
        bench.pass_minutes()
        bench.drain()
        assert bench.ledger.skipped["unroutable"] == bench.lanes.failures["unroutable"] == 50 * minutes
    assert caplog.text.count("50 runs have no queue and are skipped(unroutable): ResponseError: WRONGTYPE") == 1
    client.delete("broken")
    bench.pass_minutes()
    bench.drain()
    assert client.llen("broken") == 50
    assert client.llen("celery") == 5 * 500


@pytest.mark.promise("the-broker-or-the-database-being-down-never-stops-the-wheel")
@pytest.mark.parametrize(("jobs", "minutes"), [(2_000, 8), pytest.param(100_000, 10, marks=pytest.mark.soak)])
def test_an_outage_costs_no_memory(server: PrivateRedis, jobs: int, minutes: int) -> None:
    """While the broker is away a turn only compares and keeps pairs: 20 bytes a job, however long it lasts."""
    with FastBench(make_app(server.url)) as bench:
        bench.load(numbered(jobs, bench.route()))
        bench.pass_minutes()
        bench.drain()
        server.kill()
        bench.pass_minutes()
        bench.until(lambda: not bench.lanes.health().connected, "the loss of the broker")
        bench.until(lambda: bench.fast.backlog._squeezed, "the first squeeze")
        blocks = []
        for _ in range(minutes):
            bench.pass_minutes()
            bench.turn()
            blocks.append(sys.getallocatedblocks())
            assert bench.lanes.waiting == jobs
            assert bench.lanes.pending - jobs == bench.lanes.in_flight <= Settings().window
            assert pair_bytes(bench) == 20 * jobs
        half = minutes // 2
        assert max(blocks[half:]) - blocks[half - 1] < 2_000, "objects that stay"
        skipped = bench.ledger.skipped
        assert skipped["backlog"] == skipped.total() >= (minutes - 1) * jobs, "of each job the newest is kept"
        server.start()
        bench.drain()
        assert bench.ledger.sent >= 2 * jobs
        assert skipped["backlog"] == skipped.total() <= (minutes + 1) * jobs


def pair_bytes(bench: FastBench) -> int:
    """Memory of what waits on the fast lane."""
    backlog = bench.fast.backlog
    chunks = [*backlog._late.chunks(), *backlog._fresh.chunks(), *backlog._offered]
    return sum(column.nbytes for pairs in chunks for column in pairs)


@pytest.mark.promise("the-broker-or-the-database-being-down-never-stops-the-wheel")
@pytest.mark.soak
def test_a_minute_without_a_broker_makes_no_tick_late(server: PrivateRedis, capsys: pytest.CaptureFixture[str]) -> None:
    """100,000 monitors in real time: 1,667 due each second, 60 seconds without a broker, 10 to be punctual again."""
    start_ms = round(time.time()) * 1000
    with FastBench(make_app(server.url), start_ms=start_ms) as bench:
        bench.load(numbered(100_000, bench.route()))

        def live(seconds: int) -> float:
            """Live through seconds as a beat does; returns by how much the latest tick was late."""
            latest_s = 0.0
            for _ in range(seconds):
                next_s = (bench.now_ms + 1000) / 1000
                while time.time() < next_s:
                    bench.turn()
                    if not bench.lanes.can_submit():
                        bench.beat.wake.wait(min(0.05, max(0.0, next_s - time.time())))
                bench.pass_second()
                latest_s = max(latest_s, time.time() - next_s)
            return latest_s

        while bench.now_ms < time.time() * 1000:
            bench.pass_second()  # the time that it took to load
        bench.drain()
        live(60)
        before, before_s = resident_bytes(), live(10)
        breaker = threading.Thread(target=server.kill)
        breaker.start()
        during_s = live(60)
        breaker.join()
        grown = resident_bytes() - before
        mender = threading.Thread(target=server.start)
        mender.start()
        after_s = live(10)
        mender.join()
        bench.turn()
        oldest_ms = bench.lanes.oldest_fire_ms() or bench.now_ms
        with capsys.disabled():
            sys.stdout.write(
                f"\nlatest tick {before_s:.3f} s before, {during_s:.3f} s during, {after_s:.3f} s after; "
                f"{grown / 1e6:.1f} MB more; oldest run {(bench.now_ms - oldest_ms) / 1000:.0f} s late\n"
            )
        assert max(during_s, after_s) < 1.0
        assert grown < 32_000_000
        assert bench.now_ms - oldest_ms <= 2_000
        bench.drain()
        assert bench.ledger.skipped["backlog"] == bench.ledger.skipped.total()


def resident_bytes() -> int:
    """Memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_is_unsettled_at_the_end_is_left_for_the_next_start(server: PrivateRedis) -> None:
    with TcpProxy(server.port) as proxy:
        bench = FastBench(make_app(f"redis://127.0.0.1:{proxy.port}/0"))
        bench.load(numbered(3_000, bench.route()))
        bench.pass_minutes()
        bench.drain()
        proxy.stall()
        bench.pass_minutes()
        bench.until(lambda: bench.lanes.in_flight > 0, "batches on their way")
        began_s = time.monotonic()
        bench.lanes.close(1.0)
        assert time.monotonic() - began_s < 30, "the socket would let it wait for ever"
        bench.lanes.collect_outcomes(time.monotonic())
        assert bench.lanes.oldest_fire_ms() is not None
        left = bench.lanes.shutdown()
        assert left.runs == 3_000
        assert bench.ledger.difference(0) == 0
