"""What no broker takes: found before it is sent, quarantined alone, and nobody else's run is sent twice for it."""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import amqp
import pytest
from kombu import Exchange, Queue
from services import PrivateRedis
from support.engine.definitions import Job
from support.lanes.bench import MINUTE_MS, FastBench, numbered
from support.lanes.fast_lane import make_app

from celery_wheelbeat.dispatch.fast_lane.amqp_refusals import on_channel
from celery_wheelbeat.jobs.send_options import MAX_EXPIRES_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services import PrivateRabbit

    from celery_wheelbeat.dispatch.lane import JobOutcomes

GOOD = 200
BAD = range(1000, 1003)
WIDE = "\N{GRINNING FACE}" * 40_000
REFUSED_BY_RABBITMQ = {
    "no such exchange": ({"exchange": "nope", "routing_key": "x"}, "no exchange 'nope'"),
    "an internal exchange": ({"exchange": "amq.rabbitmq.trace", "routing_key": "x"}, "ACCESS_REFUSED"),
    "somebody else's user id": ({"user_id": "nobody"}, "user_id property set to 'nobody'"),
    "a long routing key": ({"exchange": "amq.topic", "routing_key": "ä" * 200}, "255 bytes at most"),
    "a long property": ({"message_id": "m" * 300}, "255 bytes at most"),
    "a long queue": ({"queue": "q" * 256}, "255"),
    "a long header name": ({"headers": {"h" * 300: 1}}, "255"),
    "more than a frame of headers": ({"headers": {"x": WIDE}}, "ends the connection with more"),
    "a number of 65 bits": ({"headers": {"n": 2**65}}, "cannot be written in AMQP"),
    "an unknown compression": ({"compression": "nope"}, "nope"),
    "an unknown serializer": ({"serializer": "nope"}, "No encoder installed for nope"),
}
REFUSED_ON_REDIS = ("an unknown compression", "an unknown serializer")


class Watch:
    """Collects what the lanes say about jobs, as a beat would."""

    def __init__(self, bench: FastBench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.poisoned: dict[int, tuple[str, str]] = {}
        self.lifted: list[int] = []
        collect = bench.lanes.collect_outcomes

        def noted(now_s: float) -> JobOutcomes:
            settled = collect(now_s)
            self.poisoned.update(settled.poisoned)
            self.lifted.extend(settled.lifted)
            return settled

        monkeypatch.setattr(bench.lanes, "collect_outcomes", noted)


def bad_jobs(bench: FastBench, options: dict[str, Any]) -> list[Job]:
    route = bench.route(options=json.dumps(options))
    return [Job(id=at, interval_ms=MINUTE_MS, route_index=route, payload=b"[[1], {}]") for at in BAD]


def received(server: PrivateRabbit, queue: str) -> Counter[str]:
    """How often each id is in a queue."""
    found = Counter[str]()
    with amqp.Connection(f"127.0.0.1:{server.port}") as connection:
        channel = connection.channel()
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found[message.headers["id"]] += 1
    return found


@pytest.fixture
def bench(private_rabbit: PrivateRabbit) -> Iterator[FastBench]:
    app = make_app(private_rabbit.url, task_default_queue="refused")
    with FastBench(app) as bench, amqp.Connection(f"127.0.0.1:{private_rabbit.port}") as connection:
        channel = connection.channel()
        channel.queue_declare("refused", durable=True, auto_delete=False)
        channel.queue_purge("refused")
        channel.exchange_delete("nope")
        bench.send_log.install()
        yield bench
        bench.send_log.remove()


@pytest.mark.amqp
@pytest.mark.parametrize("what", REFUSED_BY_RABBITMQ)
def test_it_is_quarantined_alone_with_its_reason(
    bench: FastBench,
    private_rabbit: PrivateRabbit,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options, reason = REFUSED_BY_RABBITMQ[what]
    watch = Watch(bench, monkeypatch)
    bench.load([*numbered(GOOD, bench.route()), *bad_jobs(bench, options)])
    minutes = 3
    for _ in range(minutes):
        bench.pass_minutes()
        bench.drain()
    assert bench.lanes.quarantined.keys() == watch.poisoned.keys() == set(BAD)
    for reason_seen in (*bench.lanes.quarantined.values(), *(why for _, why in watch.poisoned.values())):
        assert reason in reason_seen
    assert bench.ledger.skipped["quarantined"] == bench.ledger.skipped.total() == minutes * len(BAD)
    assert bench.fast.publisher.epoch == 1, "no connection was lost for it"
    assert bench.slow_runs == 0
    assert not bench.lanes.failures
    assert set(received(private_rabbit, "refused").values()) == {1}
    lines = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert sum("quarantined" in record.getMessage() for record in lines) == len(lines)
    alone = any(word in what for word in ("frame", "65", "routing key", "property", "header"))
    assert len(lines) == (len(BAD) if alone else 1), "not a line for each fire"


@pytest.mark.amqp
def test_the_longest_expiry_that_a_form_accepts_is_sent(bench: FastBench) -> None:
    bench.load([*numbered(GOOD, bench.route()), *bad_jobs(bench, {"expires": MAX_EXPIRES_S})])
    bench.pass_minutes()
    bench.drain()
    assert bench.ledger.sent == GOOD + len(BAD)
    assert bench.fast.publisher.epoch == 1


@pytest.mark.redis
@pytest.mark.parametrize("what", REFUSED_ON_REDIS)
def test_on_redis_too(what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    options, reason = REFUSED_BY_RABBITMQ[what]
    with PrivateRedis() as server, FastBench(make_app(server.url)) as bench:
        watch = Watch(bench, monkeypatch)
        bench.send_log.install()
        bench.load([*numbered(GOOD, bench.route()), *bad_jobs(bench, options)])
        for _ in range(3):
            bench.pass_minutes()
            bench.drain()
        assert watch.poisoned.keys() == set(BAD)
        assert reason in watch.poisoned[BAD[0]][1]
        assert bench.ledger.sent == 3 * GOOD
        assert caplog.text.count("Traceback") >= 1
        assert sum(bool(record.exc_info) for record in caplog.records) == 1
        bench.redefine(*bad_jobs(bench, {}))
        bench.pass_minutes()
        bench.drain()
        assert bench.ledger.sent == 4 * GOOD + len(BAD), "another definition, another chance"
        assert not bench.lanes.quarantined
        bench.send_log.remove()


@pytest.mark.amqp
def test_a_job_whose_own_headers_are_too_many_leaves_the_others_of_its_form_alone(bench: FastBench) -> None:
    small = bench.route(options='{"headers": {"x": "small"}}')
    bench.load([*numbered(GOOD, small), *bad_jobs(bench, {"headers": {"x": WIDE}})])
    for _ in range(2):
        bench.pass_minutes()
        bench.drain()
    assert bench.ledger.sent == 2 * GOOD
    assert bench.lanes.quarantined.keys() == set(BAD)
    assert bench.fast.publisher.epoch == 1


@pytest.mark.amqp
@pytest.mark.parametrize("by", ["time", "an edit"])
def test_an_exchange_that_is_there_again_lifts_the_quarantine(
    bench: FastBench,
    private_rabbit: PrivateRabbit,
    by: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = Watch(bench, monkeypatch)
    bench.load([*numbered(GOOD, bench.route()), *bad_jobs(bench, {"exchange": "nope", "routing_key": "x"})])
    bench.pass_minutes()
    bench.drain()
    assert bench.lanes.quarantined.keys() == set(BAD)
    with amqp.Connection(f"127.0.0.1:{private_rabbit.port}") as connection:
        channel = connection.channel()
        channel.exchange_declare("nope", "topic", auto_delete=False)
        queue, _, _ = channel.queue_declare(exclusive=True)
        channel.queue_bind(queue, "nope", "x")
        if by == "time":
            bench.fast.answers._reasons_due_s = 0.0
        else:
            bench.redefine(bad_jobs(bench, {"exchange": "nope", "routing_key": "x"})[0])
            bench.pass_minutes()
        bench.until(lambda: not bench.lanes.quarantined, "the lifting of the quarantine")
        with_the_form = BAD if by == "time" else BAD[1:]
        assert sorted(watch.lifted) == list(BAD)
        assert f"{len(with_the_form)} monitors of lanes.check are no longer quarantined" in caplog.text
        before = bench.ledger.sent
        bench.pass_minutes()
        bench.drain()
        assert bench.ledger.sent >= before + GOOD + len(BAD)
        assert channel.basic_get(queue, no_ack=True) is not None
        channel.exchange_delete("nope")
    assert bench.fast.publisher.epoch == 1


@pytest.mark.amqp
def test_an_exchange_that_goes_costs_one_connection(bench: FastBench, private_rabbit: PrivateRabbit) -> None:
    with amqp.Connection(f"127.0.0.1:{private_rabbit.port}") as connection:
        channel = connection.channel()
        channel.exchange_declare("nope", "topic", auto_delete=False)
        queue, _, _ = channel.queue_declare(exclusive=True)
        channel.queue_bind(queue, "nope", "x")
        bench.load([*numbered(GOOD, bench.route()), *bad_jobs(bench, {"exchange": "nope", "routing_key": "x"})])
        bench.pass_minutes()
        bench.drain()
        assert not bench.lanes.quarantined
        channel.exchange_delete("nope")
        for _ in range(4):
            bench.pass_minutes()
            bench.drain()
    assert bench.fast.publisher.epoch == 2
    assert bench.ledger.skipped["unroutable"] == len(BAD), "of the minute in which it went"
    assert bench.ledger.skipped["quarantined"] == 3 * len(BAD)
    copies = received(private_rabbit, "refused")
    assert len(copies) == 5 * GOOD
    assert sum(copies.values()) <= 6 * GOOD, "at most what was on its way once"


@pytest.mark.amqp
def test_no_right_to_write_is_found_before_it_costs_a_connection(private_rabbit: PrivateRabbit) -> None:
    server = private_rabbit
    server.ctl("add_user", "little", "pw")
    server.ctl("set_permissions", "little", ".*", "^(amq[.]default|open-.*|shut-q|allowed)$", ".*")
    queues = [
        Queue("allowed"),
        Queue("shut-q", Exchange("shut-ex", "topic"), "shut"),
        Queue("open-q", Exchange("open-ex", "topic"), "open"),
    ]
    app = make_app(
        f"amqp://little:pw@127.0.0.1:{server.port}//", task_queues=queues, task_default_queue="allowed",
    )  # fmt: skip
    with FastBench(app) as bench:
        shut = bad_jobs(bench, {"queue": "shut-q", "routing_key": "shut"})
        open_ = bench.route(options='{"queue": "open-q", "routing_key": "open"}')
        bench.load([*numbered(10, open_), *shut])
        for _ in range(2):
            bench.pass_minutes()
            bench.drain()
        assert bench.lanes.quarantined.keys() == set(BAD)
        assert "ACCESS_REFUSED" in bench.lanes.quarantined[BAD[0]]
        assert bench.ledger.sent == 20
        assert bench.fast.publisher.epoch == 1


def test_frames_move_to_another_channel_and_stay_what_they_are() -> None:
    frames = b"\x01\x00\x07\x00\x00\x00\x03abc\xce" + b"\x03\x00\x07\x00\x00\x00\x00\xce"
    moved = b"\x01\x12\x34\x00\x00\x00\x03abc\xce" + b"\x03\x12\x34\x00\x00\x00\x00\xce"
    assert on_channel(frames, 0x1234) == moved
    assert on_channel(moved, 7) == frames
