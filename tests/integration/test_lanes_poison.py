"""One message that the broker will not take, among a thousand: it is found, quarantined, and the rest arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import amqp
import pytest
from kombu import Exchange, Queue
from support.engine.definitions import Job
from support.lanes.bench import MINUTE_MS, FastBench, numbered
from support.lanes.fast_lane import make_app

if TYPE_CHECKING:
    from services import PrivateRabbit

pytestmark = pytest.mark.amqp


@pytest.fixture
def server(private_rabbit: PrivateRabbit) -> PrivateRabbit:
    return private_rabbit


def received(server: PrivateRabbit, queue: str) -> list[str]:
    """The ids in a queue, which is emptied."""
    connection = amqp.Connection(f"127.0.0.1:{server.port}")
    connection.connect()
    channel = connection.channel()
    found = []
    while (message := channel.basic_get(queue, no_ack=True)) is not None:
        found.append(message.headers["id"])
    connection.close()
    return found


@pytest.mark.promise("a-bad-job-affects-only-itself")
def test_the_culprit_is_bisected_and_quarantined(server: PrivateRabbit, caplog: pytest.LogCaptureFixture) -> None:
    with FastBench(make_app(server.url, task_default_queue="bisected")) as bench:
        route = bench.route()
        large = b'[[0], {"url": "%s"}]' % (b"x" * 150_000)
        culprits = [Job(id=number, interval_ms=MINUTE_MS, route_index=route, payload=large) for number in (2000, 2001)]
        bench.load([*numbered(300, route), *culprits])
        bench.pass_minutes()
        bench.drain()
        assert sorted(bench.lanes.quarantined) == [2000, 2001]
        assert all("PreconditionFailed" in reason for reason in bench.lanes.quarantined.values())
        assert bench.ledger.skipped["error"] == 2
        assert bench.ledger.sent == 300
        assert caplog.text.count("is quarantined") == 2
        bench.pass_minutes()
        bench.drain()
        assert bench.ledger.skipped["quarantined"] == 2
    assert len(set(received(server, "bisected"))) == 600


def test_a_deleted_queue_of_the_default_exchange_is_declared_again(
    server: PrivateRabbit, caplog: pytest.LogCaptureFixture
) -> None:
    """Each time that it is gone, on the same connection: what came back from it is sent again, and nothing is lost."""
    with (
        FastBench(make_app(server.url, task_default_queue="routable")) as bench,
        amqp.Connection(f"127.0.0.1:{server.port}") as connection,
    ):
        good, bad = bench.route(), bench.route(options='{"queue": "vanishing"}')
        bench.load([*numbered(100, good), *numbered(50, bad, first=1000)])
        bench.pass_minutes()
        bench.drain()
        epoch = bench.fast.publisher.epoch
        for times in (1, 2):
            connection.channel().queue_delete("vanishing")
            bench.pass_minutes()
            bench.drain()
            assert bench.lanes.failures["not_sent"] == 50 * times
            # once for each batch that was on its way to it
            assert caplog.text.count("The queue vanishing was gone; it has been declared again") >= times
        assert bench.ledger.sent == 450
        assert bench.ledger.skipped.total() == 0
        assert bench.fast.publisher.epoch == epoch
    assert len(set(received(server, "routable"))) == 300
    assert len(set(received(server, "vanishing"))) == 50, "those of the last minute; the others went with the queue"


def test_what_a_named_exchange_does_not_route_blocks_nothing_else(
    server: PrivateRabbit, caplog: pytest.LogCaptureFixture
) -> None:
    """Its bindings are the user's: counted, logged, and not tried again."""
    queues = [Queue("bound", Exchange("named", "topic"), "a.#")]
    app = make_app(server.url, task_queues=[Queue("unmoved"), *queues], task_default_queue="unmoved")
    with (
        FastBench(app) as bench,
        amqp.Connection(f"127.0.0.1:{server.port}") as connection,
    ):
        named = bench.route(options='{"queue": "bound", "routing_key": "a.b"}')
        bench.load([*numbered(100, bench.route()), *numbered(50, named, first=1000)])
        bench.pass_minutes()
        bench.drain()
        connection.channel().queue_delete("bound")
        bench.pass_minutes()
        bench.drain()
        assert bench.ledger.skipped["unroutable"] == bench.lanes.failures["unroutable"] == 50
        assert bench.ledger.sent == 250
        assert "50 runs have no queue and are skipped(unroutable)" in caplog.text
    assert len(received(server, "unmoved")) == 200
