"""The fast lanes over TLS: ``rediss://`` and ``amqps://``, also while the broker takes nothing or goes away."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import amqp
import pytest
import redis
from services import PrivateRedis, TcpProxy, free_port
from support.lanes.bench import FastBench, numbered
from support.lanes.fast_lane import Lane, make_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services import Certificates, PrivateRabbit


@pytest.fixture(scope="module")
def redis_server(tls: Certificates) -> Iterator[PrivateRedis]:
    with PrivateRedis(**{"tls-port": str(free_port())}, **tls.redis) as server:
        yield server


@pytest.fixture
def rabbit(private_rabbit: PrivateRabbit) -> PrivateRabbit:
    return private_rabbit


def amqps_port(server: PrivateRabbit) -> int:
    """Where the node listens for TLS."""
    (line,) = [
        line
        for line in (server.folder / "rabbitmq.conf").read_text().splitlines()
        if line.startswith("listeners.ssl.1")
    ]
    return int(line.rpartition(":")[2])


def amqps_app(port: int, tls: Certificates, **conf: Any) -> Any:
    """An app that trusts the test's authority."""
    trusted = {"ca_certs": str(tls.authority)}
    return make_app(f"amqps://guest:guest@127.0.0.1:{port}//", broker_use_ssl=trusted, **conf)


def amqp_ids(server: PrivateRabbit, queue: str, count: int) -> list[str]:
    """The ids of ``count`` messages, read without TLS; fails where there are more."""
    with amqp.Connection(f"127.0.0.1:{server.port}") as connection:
        channel = connection.channel()
        found: list[str] = []
        consumer = channel.basic_consume(
            queue, no_ack=True, callback=lambda message: found.append(message.headers["id"])
        )
        while len(found) < count:
            connection.drain_events(timeout=60)
        channel.basic_cancel(consumer)
        assert channel.basic_get(queue) is None
    return found


@pytest.mark.redis
@pytest.mark.parametrize("where", ["setting", "address"])
def test_redis_over_tls_takes_everything_once(redis_server: PrivateRedis, tls: Certificates, where: str) -> None:
    """Cut off twice on the way: delivered and lost batches are distinguished as without TLS."""
    with TcpProxy(int(redis_server.options["tls-port"])) as proxy, redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        trusted = {"ssl_cert_reqs": "required", "ssl_ca_certs": str(tls.authority)}
        url = f"rediss://127.0.0.1:{proxy.port}/0"
        if where == "setting":
            app = make_app(url, broker_use_ssl=trusted)
        else:
            app = make_app(f"{url}?{'&'.join('='.join(pair) for pair in trusted.items())}")
        with FastBench(app) as bench:
            bench.load(numbered(3_000, bench.route()))
            bench.pass_minutes()
            bench.drain()
            for _ in range(2):
                epoch = bench.fast.publisher.epoch
                bench.pass_minutes()
                bench.turn()
                proxy.cut()
                bench.until(lambda epoch=epoch: bench.fast.publisher.epoch > epoch, "a new connection")  # type: ignore[misc]
                bench.drain()
            assert bench.slow_runs == 0
            assert bench.ledger.sent == 9_000
        ids = [json.loads(message)["headers"]["id"] for message in client.lrange("celery", 0, -1)]
        assert len(ids) == len(set(ids)) == 9_000


@pytest.mark.redis
def test_an_authority_that_is_not_trusted_is_reported(redis_server: PrivateRedis) -> None:
    url = f"rediss://127.0.0.1:{redis_server.options['tls-port']}/0?ssl_cert_reqs=required"
    with FastBench(make_app(url)) as bench:
        bench.load(numbered(10, bench.route()))
        bench.pass_minutes()
        bench.until(lambda: "CERTIFICATE_VERIFY_FAILED" in bench.lanes.last_error, "the reason")
        assert bench.lanes.pending == 10


@pytest.mark.amqp
def test_rabbitmq_over_tls_takes_everything(rabbit: PrivateRabbit, tls: Certificates) -> None:
    with FastBench(amqps_app(amqps_port(rabbit), tls, task_default_queue="secret")) as bench:
        bench.load(numbered(3_000, bench.route()))
        bench.pass_minutes(2)
        bench.drain()
        assert bench.slow_runs == 0
        assert bench.ledger.sent == 6_000
    assert len(set(amqp_ids(rabbit, "secret", 6_000))) == 6_000


@pytest.mark.amqp
def test_an_alarm_is_waited_for_over_tls(rabbit: PrivateRabbit, tls: Certificates) -> None:
    """A write that stalls half-way through a TLS record continues from there, on the same connection."""
    app = amqps_app(amqps_port(rabbit), tls, task_default_queue="waiting")
    with Lane(app, kind="amqp", options={"mandatory": True}).connected() as lane:
        envelope, epoch = lane.envelope(), lane.sender.epoch
        rabbit.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
        try:
            filling = "x" * 20_000  # more than the buffers between us and a broker that does not read
            batches = [lane.batch(envelope, range(start, start + 500), url=filling) for start in (0, 500)]
            for batch in batches:
                lane.sender.submit(batch)
            lane.wait(lambda: bool(lane.wire.blocked), "the alarm")
            blocked_s = time.monotonic()
            lane.wait(lambda: time.monotonic() > blocked_s + 2, "several turns of a stalled write")
            assert lane.sender.capacity() == 0
            assert lane.outcomes == {}
        finally:
            rabbit.ctl("set_vm_memory_high_watermark", "0.4")
        lane.wait(lambda: {batch.token for batch in batches} <= lane.outcomes.keys(), "the outcomes")
        assert [lane.outcomes[batch.token].failures for batch in batches] == [(), ()]
        assert lane.sender.epoch == epoch
    assert len(set(amqp_ids(rabbit, "waiting", 1_000))) == 1_000


@pytest.mark.amqp
def test_a_slow_line_is_not_taken_for_a_dead_one(rabbit: PrivateRabbit, tls: Certificates, monkeypatch: Any) -> None:
    """A batch takes longer than a connection may stand still, and moves all the time."""
    monkeypatch.setattr("celery_wheelbeat.dispatch.fast_lane.amqp_wire.STALLED_S", 1.5)
    with TcpProxy(amqps_port(rabbit)) as proxy:
        app = amqps_app(proxy.port, tls, task_default_queue="slow")
        with Lane(app, kind="amqp", options={"mandatory": True}).connected() as lane:
            envelope, epoch = lane.envelope(), lane.sender.epoch
            batch = lane.batch(envelope, range(500), url="x" * 20_000)
            proxy.drip(32_768)
            began_s = time.monotonic()
            (outcome,) = lane.send(batch)
            assert time.monotonic() - began_s > 2 * 1.5, "else this shows nothing"
            assert outcome.failures == ()
            assert lane.sender.epoch == epoch
    assert len(set(amqp_ids(rabbit, "slow", 500))) == 500
