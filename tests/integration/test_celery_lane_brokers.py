"""The celery lane against real Redis and RabbitMQ: what counts as confirmed, what comes back, what a reconnect does."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.signals import after_task_publish
from kombu import Exchange, Queue
from redis import Redis
from services import PrivateRabbit, PrivateRedis, TcpProxy
from support.lanes.celery_lane import StartedLane, a_run

from celery_wheelbeat.dispatch import Confirmed, Failed, FailureKind
from celery_wheelbeat.dispatch.broker import open_connection
from celery_wheelbeat.dispatch.celery_lane.amqp_guard import REFUSED_S
from celery_wheelbeat.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator


def an_app(url: str) -> Celery:
    app = Celery("lane", broker=url, set_as_current=False)

    @app.task(name="lane.note", shared=False)
    def note(number: int, **more: Any) -> None: ...

    return app


def drained(app: Celery, name: str = "celery") -> list[Any]:
    """Take everything out of a queue."""
    with app.connection_for_read() as connection:
        queue = Queue(name)(connection.default_channel)
        queue.declare()
        found = []
        while (message := queue.get(no_ack=True)) is not None:
            found.append(message)
        return found


def failures(outcomes: Any) -> list[tuple[int, FailureKind]]:
    return [(outcome.token, outcome.kind) for outcome in outcomes if isinstance(outcome, Failed)]


class SteppedClock(SystemClock):
    """The system's clock, with a monotonic time that a test moves on."""

    step_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.step_s


@pytest.fixture
def redis() -> Iterator[PrivateRedis]:
    with PrivateRedis() as server:
        yield server


@pytest.mark.celery57
@pytest.mark.redis
def test_redis_runs_are_sent_in_one_batch_and_confirmed_after_it(redis: PrivateRedis) -> None:
    lane = StartedLane(an_app(redis.url))
    lane.when_connected().submit([a_run(lane.scheduler.app, token) for token in range(300)])
    outcomes = lane.outcomes(300)
    assert {type(outcome) for outcome in outcomes} == {Confirmed}
    assert len({outcome.confirmed_ms for outcome in outcomes if isinstance(outcome, Confirmed)}) == 1
    messages = drained(lane.scheduler.app)
    assert [message.headers["id"] for message in messages] == [f"id-{token}" for token in range(300)]
    assert len({message.headers["wheelbeat_nonce"] for message in messages}) == 300
    lane.lane.close(5)


@pytest.mark.redis
def test_a_batch_is_not_used_while_somebody_observes_single_publishes(redis: PrivateRedis) -> None:
    app = an_app(redis.url)
    stored: list[int] = []

    def look(**_: Any) -> None:
        with app.connection_for_read() as connection:
            stored.append(connection.default_channel.client.llen("celery"))

    after_task_publish.connect(look)
    try:
        lane = StartedLane(app, may_batch=lambda: not after_task_publish.receivers)
        lane.when_connected().submit([a_run(app, token) for token in range(3)])
        lane.outcomes(3)
        lane.lane.close(5)
    finally:
        after_task_publish.disconnect(look)
    assert stored == [1, 2, 3]


@pytest.mark.celery57
@pytest.mark.redis
def test_a_stopped_redis_hands_runs_back_and_a_started_one_takes_them(redis: PrivateRedis) -> None:
    lane = StartedLane(an_app(redis.url))
    app = lane.scheduler.app
    lane.when_connected()
    redis.stop()
    lane.lane.submit([a_run(app, token) for token in range(3)])
    assert [kind for _, kind in failures(lane.outcomes(3))] == [FailureKind.UNCERTAIN] * 3
    assert lane.lane.capacity() == 0
    redis.start()
    lane.when_connected().submit([a_run(app, token) for token in range(3)])
    assert {type(outcome) for outcome in lane.outcomes(3)} == {Confirmed}
    assert [message.headers["id"] for message in drained(app)] == ["id-0", "id-1", "id-2"]
    lane.lane.close(5)


@pytest.mark.redis
def test_one_queue_that_redis_refuses_does_not_hold_up_the_others(redis: PrivateRedis) -> None:
    lane = StartedLane(an_app(redis.url))
    app = lane.scheduler.app
    with app.connection_for_write() as connection:
        connection.default_channel.client.set("broken", "not a list")
    runs = {token: a_run(app, token, queue="broken" if token == 2 else "celery") for token in range(5)}
    settled: dict[int, Any] = {}
    waiting = list(runs.values())
    while waiting:
        lane.when_connected().submit(waiting)
        outcomes = lane.outcomes(len(waiting))
        again = {token for token, kind in failures(outcomes) if kind in (FailureKind.UNCERTAIN, FailureKind.NOT_SENT)}
        settled.update({outcome.token: outcome for outcome in outcomes if outcome.token not in again})
        waiting = [runs[token] for token in sorted(again)]
    assert failures(settled.values()) == [(2, FailureKind.UNROUTABLE)]
    assert {message.headers["id"] for message in drained(app)} == {"id-0", "id-1", "id-3", "id-4"}
    lane.lane.close(5)


@pytest.mark.redis
def test_a_redis_that_takes_nothing_is_asked_once_for_all_runs(
    redis: PrivateRedis, caplog: pytest.LogCaptureFixture
) -> None:
    """Celery logs a traceback for each attempt: one for a thousand runs a second, not a thousand."""
    app = an_app(redis.url)
    lane = StartedLane(app, may_batch=lambda: False)
    with Redis.from_url(redis.url) as client:
        client.config_set("maxmemory", "1mb")
        lane.when_connected().submit([a_run(app, token) for token in range(300)])
        assert failures(lane.outcomes(300)) == [(token, FailureKind.REFUSED) for token in range(300)]
        assert caplog.text.count("Message Error") == 1
        client.config_set("maxmemory", "0")
        lane.when_connected().submit([a_run(app, token) for token in range(300)])
        assert failures(lane.outcomes(300)) == []
    lane.lane.close(5)


@pytest.mark.redis
def test_a_half_open_redis_does_not_hold_the_lane_for_ever(redis: PrivateRedis) -> None:
    with TcpProxy(redis.port) as proxy:
        app = an_app(f"redis://127.0.0.1:{proxy.port}/0")
        app.conf.broker_transport_options = {"socket_timeout": 0.5}
        lane = StartedLane(app)
        lane.when_connected().submit([a_run(app, 0)])
        lane.outcomes(1)
        proxy.stall()
        lane.lane.submit([a_run(app, 1)])
        assert failures(lane.outcomes(1)) == [(1, FailureKind.UNCERTAIN)]
        proxy.pass_through()
        lane.when_connected().submit([a_run(app, 1)])
        assert isinstance(lane.outcomes(1)[0], Confirmed)
        lane.lane.close(5)


@pytest.mark.amqp
def test_rabbitmq_confirms_every_message_and_carries_the_headers(amqp_url: str) -> None:
    lane = StartedLane(an_app(amqp_url), options={"mandatory": True})
    app = lane.scheduler.app
    drained(app)
    lane.when_connected().submit([a_run(app, token, headers={"mine": "x"}) for token in range(20)])
    assert {type(outcome) for outcome in lane.outcomes(20)} == {Confirmed}
    messages = drained(app)
    assert [message.headers["id"] for message in messages] == [f"id-{token}" for token in range(20)]
    assert messages[0].headers["wheelbeat_fire_ms"] == 1_700_000_000_000
    assert messages[0].headers["mine"] == "x"
    assert json.loads(messages[0].body)[0] == [1]
    lane.lane.close(5)


@pytest.mark.amqp
@pytest.mark.parametrize("options", [{"exchange": "nowhere", "routing_key": "x"}, {"queue": "unbound"}])
def test_what_rabbitmq_cannot_route_comes_back(amqp_url: str, options: dict[str, Any]) -> None:
    app = an_app(amqp_url)
    drained(app)
    exchange = Exchange("topics", type="topic")
    app.conf.task_queues = [
        Queue("celery"),
        Queue("unbound", exchange=exchange, routing_key="a.b", no_declare=True),
    ]
    with app.connection_for_write() as connection:
        exchange(connection.default_channel).declare()
    lane = StartedLane(app, options={"mandatory": True})
    lane.when_connected().submit([a_run(app, 0), a_run(app, 1, **options), a_run(app, 2)])
    outcomes = lane.outcomes(3)
    assert (1, FailureKind.UNROUTABLE) in failures(outcomes)
    lane.when_connected().submit([a_run(app, 2)])
    assert isinstance(lane.outcomes(1)[0], Confirmed)
    assert "id-1" not in {message.headers["id"] for message in drained(app)}
    lane.lane.close(5)


REFUSED = {
    "no such exchange": ({"exchange": "nope", "routing_key": "x"}, FailureKind.UNROUTABLE, "no exchange 'nope'"),
    "an internal exchange": (
        {"exchange": "amq.rabbitmq.trace", "routing_key": "x"}, FailureKind.UNROUTABLE, "ACCESS_REFUSED",
    ),
    "too many headers": ({"headers": {"x": "ü" * 70_000}}, FailureKind.POISON, "ends the connection with more"),
    "many small headers": ({"headers": {"x": [1] * 30_000}}, FailureKind.POISON, "ends the connection with more"),
    "a number of 65 bits": ({"headers": {"x": 2**65}}, FailureKind.ERROR, "too large"),
}  # fmt: skip


@pytest.mark.amqp
@pytest.mark.parametrize("what", REFUSED)
def test_what_rabbitmq_refuses_does_not_reach_the_channel(
    private_rabbit: PrivateRabbit, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once each such run closed the channel, and the runs around it were sent again."""
    options, kind, reason = REFUSED[what]
    app = an_app(private_rabbit.url)
    drained(app)
    opened: list[Any] = []

    def counted() -> Any:
        opened.append(1)
        return open_connection(app)

    clock = SteppedClock()
    lane = StartedLane(app, options={"mandatory": True}, open_connection=counted, clock=clock)
    lane.when_connected()
    for fire in range(4):
        bad = [a_run(app, 10 * fire + at, **options) for at in (1, 2)]
        lane.lane.submit([a_run(app, 10 * fire), *bad, a_run(app, 10 * fire + 3)])
        outcomes = lane.outcomes(4)
        assert failures(outcomes) == [(10 * fire + 1, kind), (10 * fire + 2, kind)]
        for outcome in outcomes:
            assert not isinstance(outcome, Failed) or re.search(reason, outcome.reason), outcome
        if fire == 2:
            clock.step_s += REFUSED_S
    assert len(opened) == 1 + (2 if kind is FailureKind.UNROUTABLE else 0), "the lane's own, and one for each trial"
    ids = [message.headers["id"] for message in drained(app)]
    assert ids == [f"id-{10 * fire + at}" for fire in range(4) for at in (0, 3)], "each once"
    lane.lane.close(5)


@pytest.mark.amqp
def test_an_exchange_that_appears_takes_messages_within_a_minute(private_rabbit: PrivateRabbit) -> None:
    app = an_app(private_rabbit.url)
    clock = SteppedClock()
    lane = StartedLane(app, options={"mandatory": True}, clock=clock)
    exchange, options = Exchange("later", "topic"), {"exchange": "later", "routing_key": "x"}
    lane.when_connected().submit([a_run(app, 0, **options)])
    assert failures(lane.outcomes(1)) == [(0, FailureKind.UNROUTABLE)]
    with app.connection_for_write() as connection:
        Queue("later", exchange, "#")(connection.default_channel).declare()
    clock.step_s += REFUSED_S
    lane.lane.submit([a_run(app, 1, **options)])
    assert isinstance(lane.outcomes(1)[0], Confirmed)
    with app.connection_for_write() as connection:
        exchange(connection.default_channel).delete()
    lane.lane.submit([a_run(app, 2, **options)])
    assert failures(lane.outcomes(1)) == [(2, FailureKind.UNROUTABLE)]
    lane.when_connected().submit([a_run(app, 3, **options), a_run(app, 4)])
    assert failures(lane.outcomes(2)) == [(3, FailureKind.UNROUTABLE)]
    assert lane.lane.health().connected, "the channel was closed once"
    assert [message.headers["id"] for message in drained(app)] == ["id-4"]
    lane.lane.close(5)


@pytest.mark.amqp
def test_an_alarm_of_rabbitmq_is_waited_for_on_the_same_connection(private_rabbit: PrivateRabbit) -> None:
    app = an_app(private_rabbit.url)
    lane = StartedLane(app)
    lane.when_connected().submit([a_run(app, 0)])
    assert isinstance(lane.outcomes(1)[0], Confirmed)
    private_rabbit.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        lane.lane.submit([a_run(app, 1), a_run(app, 2)])
        assert [token for token, _ in failures(lane.outcomes(2))] == [1, 2]
        assert lane.lane.capacity() == 0
        lane.lane.submit([a_run(app, 3)])
        assert failures(lane.outcomes(1)) == [(3, FailureKind.NOT_SENT)]
    finally:
        private_rabbit.ctl("set_vm_memory_high_watermark", "0.4")
    lane.when_connected().submit([a_run(app, 1), a_run(app, 2)])
    assert {type(outcome) for outcome in lane.outcomes(2)} == {Confirmed}
    ids = [message.headers["id"] for message in drained(app)]
    assert set(ids) == {"id-0", "id-1", "id-2"}
    assert ids.count("id-1") <= 2, "at most the copy that RabbitMQ had not read yet"
    lane.lane.close(5)
