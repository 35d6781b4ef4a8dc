"""The fast lane into a real RabbitMQ: confirms, returns, refusals, broken connections, alarms."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import amqp
import pytest
from kombu import Exchange, Queue
from services import TcpProxy
from support.lanes.fast_lane import FIRE_MS, Lane, make_app

from celery_wheelbeat.dispatch import FailureKind
from celery_wheelbeat.dispatch.messages.envelope import Refusal
from celery_wheelbeat.jobs.identity import run_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services import PrivateRabbit

    from celery_wheelbeat.dispatch.fast_lane.batches import Outcome

pytestmark = pytest.mark.amqp


@pytest.fixture
def server(private_rabbit: PrivateRabbit) -> PrivateRabbit:
    return private_rabbit


@pytest.fixture
def channel(server: PrivateRabbit) -> Iterator[Any]:
    connection = amqp.Connection(f"127.0.0.1:{server.port}")
    connection.connect()
    channel = connection.channel()
    yield channel
    connection.close()


@pytest.fixture
def queue(request: pytest.FixtureRequest, channel: Any) -> str:
    """A queue of the test's own, which every message goes to unless it says otherwise."""
    name = request.node.name.partition("[")[0]
    channel.queue_declare(name, durable=True, auto_delete=False)
    return name


def ids_in(channel: Any, queue: str, count: int) -> list[str]:
    """The ids of the next ``count`` messages of a queue, oldest first."""
    messages = [channel.basic_get(queue, no_ack=True) for _ in range(count)]
    return [message.headers["id"] for message in messages if message is not None]


def all_ids(channel: Any, queue: str, count: int) -> list[str]:
    """The ids in a queue that has ``count`` messages, oldest first; fails where it has more."""
    found: list[str] = []
    consumer = channel.basic_consume(queue, no_ack=True, callback=lambda message: found.append(message.headers["id"]))
    while len(found) < count:
        channel.connection.drain_events(timeout=60)
    channel.basic_cancel(consumer)
    assert channel.basic_get(queue) is None
    return found


def kinds(outcome: Outcome) -> list[tuple[int, FailureKind]]:
    return [(len(failure.positions), failure.kind) for failure in outcome.failures]


MANDATORY = {"mandatory": True}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_batches_are_confirmed_and_arrive_in_order(server: PrivateRabbit, channel: Any, kind: str) -> None:
    queue = Queue(f"in-order-{kind}", queue_arguments={"x-queue-type": kind})
    app = make_app(server.url, task_queues=[queue], task_default_queue=queue.name)
    with Lane(app, kind="amqp", options=MANDATORY).connected() as lane:
        envelope = lane.envelope()
        batches = [lane.batch(envelope, range(start, start + 500)) for start in range(0, 2000, 500)]
        assert [outcome.failures for outcome in lane.send(*batches)] == [()] * 4
    assert all_ids(channel, queue.name, 2000) == [run_id(f"monitor:{job}", FIRE_MS, "tests") for job in range(2000)]


def test_an_unroutable_message_comes_back_once_more_and_the_others_count(
    server: PrivateRabbit, channel: Any, queue: str
) -> None:
    """The queue is declared again; a run that comes back a second time is skipped."""
    with Lane(make_app(server.url), kind="amqp", options=MANDATORY).connected() as lane:
        good, bad = lane.batch(lane.envelope(queue=queue), range(3)), lane.batch(lane.envelope(queue="gone"), range(2))
        both = good._replace(parcels=[*bad.parcels, *good.parcels], nonces=bad.nonces + good.nonces)
        for times, kind in enumerate((FailureKind.NOT_SENT, FailureKind.UNROUTABLE, FailureKind.NOT_SENT)):
            channel.queue_delete("gone")
            (outcome,) = lane.send(both._replace(token=1000 + times))
            failures = [(list(one.positions), one.kind) for one in outcome.failures]
            assert sorted(failures, key=lambda one: one[0]) == [([0], kind), ([1], kind)]
        assert lane.send(bad)[0].failures == ()
        assert lane.sender.epoch == 1
    assert len(ids_in(channel, "gone", 10)) == 2
    assert len(ids_in(channel, queue, 10)) == 9


def test_returns_outlast_the_connection(server: PrivateRabbit, channel: Any, queue: str) -> None:
    """It is lost before the queue could be declared again: that is done on the next one, and no run is lost."""
    with Lane(make_app(server.url), kind="amqp", options=MANDATORY).connected() as lane:
        batch = lane.batch(lane.envelope(queue=queue), range(2))
        channel.queue_delete(queue)
        returns = lane.wire._returns
        declare = returns._declare_again

        def fail(_queue: str) -> bool:
            returns._declare_again = declare
            raise ConnectionError("lost for the test")

        returns._declare_again = fail
        (outcome,) = lane.send(batch)
        assert lane.sender.epoch == 2 or not lane.sender.health().connected
        assert kinds(outcome) == [(1, FailureKind.NOT_SENT)] * 2
        assert channel.queue_declare(queue, passive=True).message_count == 0


def test_a_full_queue_refuses_single_messages(server: PrivateRabbit, channel: Any) -> None:
    arguments = {"x-max-length": 5, "x-overflow": "reject-publish"}
    app = make_app(server.url, task_queues=[Queue("full", queue_arguments=arguments)], task_default_queue="full")
    with Lane(app, kind="amqp", options=MANDATORY).connected() as lane:
        (outcome,) = lane.send(lane.batch(lane.envelope(), range(50)))
        refused = [position for failure in outcome.failures for position in failure.positions]
        assert {failure.kind for failure in outcome.failures} == {FailureKind.REFUSED}
        assert 0 < len(refused) < 50
    assert len(ids_in(channel, "full", 100)) == 50 - len(refused)


def test_a_message_that_is_too_large_closes_the_channel(server: PrivateRabbit, channel: Any, queue: str) -> None:
    with Lane(make_app(server.url), kind="amqp", options=MANDATORY).connected() as lane:
        epoch = lane.sender.epoch
        (outcome,) = lane.send(lane.batch(lane.envelope(queue=queue), range(3), url="x" * 200_000))
        assert kinds(outcome) == [(3, FailureKind.POISON)]
        assert "max size" in outcome.failures[0].reason
        lane.connected()
        assert lane.sender.epoch == epoch + 1
        assert lane.send(lane.batch(lane.envelope(queue=queue), range(3)))[0].failures == ()
    assert len(ids_in(channel, queue, 10)) == 3


def test_an_exchange_that_may_not_be_written_to_costs_one_connection(server: PrivateRabbit, channel: Any) -> None:
    """What went to it is unroutable at once, without a search for culprits; what else was on its way is sent again."""
    server.ctl("add_user", "small", "pw")
    server.ctl("set_permissions", "small", ".*", "^(closed-ex|open-ex|open-q|closed-q)$", ".*")
    queues = [
        Queue("closed-q", Exchange("closed-ex", "topic"), "closed"),
        Queue("open-q", Exchange("open-ex", "topic"), "open"),
    ]
    app = make_app(
        f"amqp://small:pw@127.0.0.1:{server.port}//",
        task_queues=queues,
        task_create_missing_queues=False,
        task_default_queue="open-q",  # Celery before 5.7 looks the default queue up with every message
    )
    with Lane(app, kind="amqp").connected() as lane:
        epoch = lane.sender.epoch
        closed = lane.batch(lane.envelope(queue="closed-q", routing_key="closed"), range(300))
        other = lane.batch(lane.envelope(queue="open-q", routing_key="open"), range(2))
        server.ctl("set_permissions", "small", ".*", "^(open-ex|open-q|closed-q)$", ".*")
        both = other._replace(parcels=[*closed.parcels, *other.parcels], nonces=closed.nonces + other.nonces)
        (outcome,) = lane.send(both)
        assert kinds(outcome) == [(300, FailureKind.UNROUTABLE), (2, FailureKind.UNCERTAIN)]
        assert "closed-ex" in outcome.failures[0].reason
        lane.connected()
        assert lane.sender.epoch == epoch + 1
        assert lane.send(lane.batch(lane.envelope(queue="open-q", routing_key="open"), range(2)))[0].failures == ()


def test_lost_confirms_are_uncertain(server: PrivateRabbit, channel: Any, queue: str) -> None:
    with TcpProxy(server.port) as proxy:
        app = make_app(f"amqp://guest:guest@127.0.0.1:{proxy.port}//")
        with Lane(app, kind="amqp", options=MANDATORY).connected() as lane:
            batch = lane.batch(lane.envelope(queue=queue), range(100))
            proxy.mute()
            lane.sender.submit(batch)
            lane.wait(
                lambda: channel.queue_declare(queue, passive=True).message_count == 100, "the arrival of the batch"
            )
            proxy.cut()
            proxy.pass_through()
            lane.wait(lambda: batch.token in lane.outcomes, "the outcome")
            assert kinds(lane.outcomes[batch.token]) == [(100, FailureKind.UNCERTAIN)]


def test_queues_are_declared_again_after_a_reconnect(server: PrivateRabbit, channel: Any) -> None:
    with TcpProxy(server.port) as proxy:
        app = make_app(f"amqp://guest:guest@127.0.0.1:{proxy.port}//")
        with Lane(app, kind="amqp", options=MANDATORY).connected() as lane:
            assert lane.send(lane.batch(lane.envelope(queue="again"), range(3)))[0].failures == ()
            epoch = lane.sender.epoch
            channel.queue_delete("again")
            proxy.cut()
            lane.wait(lambda: lane.sender.epoch > epoch, "a new connection")
            assert lane.send(lane.batch(lane.envelope(queue="again"), range(4)))[0].failures == ()
    assert len(ids_in(channel, "again", 10)) == 4


def test_a_refused_declaration_is_a_reason_and_not_the_end_of_the_channel(
    server: PrivateRabbit, channel: Any, queue: str
) -> None:
    channel.queue_declare("other-type", durable=False, auto_delete=False)
    with Lane(make_app(server.url), kind="amqp", options=MANDATORY).connected() as lane:
        from support.lanes.fast_lane import form_of

        refusal = lane.ask(form_of("lanes.check", {"queue": "other-type"}))
        assert isinstance(refusal, Refusal)
        assert "PRECONDITION_FAILED" in refusal.reason
        assert lane.send(lane.batch(lane.envelope(queue=queue), range(3)))[0].failures == ()


def test_named_exchanges(server: PrivateRabbit, channel: Any) -> None:
    queues = [Queue("topic-q", Exchange("topic-ex", "topic"), "a.#")]
    with Lane(make_app(server.url, task_queues=queues), kind="amqp").connected() as lane:
        envelope = lane.envelope(queue="topic-q", routing_key="a.b")
        assert (envelope.exchange, envelope.routing_key) == ("topic-ex", "a.b")
        assert lane.send(lane.batch(envelope, range(2)))[0].failures == ()
    assert len(ids_in(channel, "topic-q", 10)) == 2


ALARMS = {
    "memory": (("set_vm_memory_high_watermark", "absolute", "1MB"), ("set_vm_memory_high_watermark", "0.4")),
    "disk": (("set_disk_free_limit", "900000GB"), ("set_disk_free_limit", "1MB")),
}
"""What sets an alarm off, and what ends it."""


@pytest.mark.parametrize("alarm", ALARMS)
def test_an_alarm_is_waited_for(
    server: PrivateRabbit, channel: Any, queue: str, caplog: pytest.LogCaptureFixture, alarm: str
) -> None:
    """While the broker is blocked there is no capacity, nothing is lost, and nothing is sent twice."""
    cause, end = ALARMS[alarm]
    with Lane(make_app(server.url), kind="amqp", options=MANDATORY).connected() as lane:
        envelope, epoch = lane.envelope(queue=queue), lane.sender.epoch
        server.ctl(*cause)
        try:
            filling = "x" * 5_000  # more than the buffers between us and a broker that does not read
            batches = [lane.batch(envelope, range(start, start + 500), url=filling) for start in (0, 500)]
            for batch in batches:
                lane.sender.submit(batch)
            lane.wait(lambda: bool(lane.wire.blocked), "the alarm")
            blocked_s = time.monotonic()
            lane.wait(lambda: time.monotonic() > blocked_s + 2, "twice what py-amqp lets TCP wait")
            assert lane.sender.capacity() == 0
            assert not lane.sender.health().connected
            assert lane.outcomes == {}
            assert "RabbitMQ takes no messages (memory or disk alarm)" in caplog.text
        finally:
            server.ctl(*end)
        lane.wait(lambda: {batch.token for batch in batches} <= lane.outcomes.keys(), "the outcomes")
        assert [lane.outcomes[batch.token].failures for batch in batches] == [(), ()]
        assert lane.sender.epoch == epoch
    assert len(set(all_ids(channel, queue, 1000))) == 1000


@pytest.mark.parametrize(("wished_s", "expected_s"), [(0, 15), (120, 15), (4, 4)])
def test_a_silent_connection_is_given_up_after_half_a_minute_at_most(
    server: PrivateRabbit, wished_s: float, expected_s: float
) -> None:
    """Two heartbeats, whatever the user's setting is."""
    with Lane(make_app(server.url), kind="amqp", heartbeat_s=wished_s).connected() as lane:
        assert lane.wire._amqp.heartbeat == expected_s


def test_heartbeats_keep_an_idle_connection(server: PrivateRabbit) -> None:
    with Lane(make_app(server.url), kind="amqp").connected() as lane:
        connection = lane.wire._amqp
        assert connection.heartbeat == 10
        before = connection.last_heartbeat_sent
        lane.wait(lambda: connection.last_heartbeat_sent > before + 4, "a heartbeat")
        assert lane.sender.epoch == 1
