"""User code around a send, next to good runs, on real Redis (in a batch) and RabbitMQ (one by one)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc
from kombu import Queue
from redis import Redis
from support.lanes.celery_lane import StartedLane, a_run

from celery_wheelbeat.dispatch import FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterator

GOOD = range(10, 60)
BROKERS = [pytest.param("redis_url", marks=pytest.mark.redis), pytest.param("amqp_url", marks=pytest.mark.amqp)]


def note(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing."""


class Bench:
    """A lane on a queue of its own."""

    def __init__(self, url: str) -> None:
        self.app = Celery("lane", broker=url, set_as_current=False)
        self.app.conf.task_default_queue = f"user-code-{uuid.uuid4().hex[:8]}"
        self.app.task(note, name="lane.note", shared=False)
        self.connections = 0
        self.lane = StartedLane(self.app, make_producer=self._producer)

    def _producer(self, connection: Any) -> Any:
        self.connections += 1
        return self.app.amqp.Producer(connection, auto_declare=False)

    def send(self, bad: dict[str, Any]) -> dict[int, Any]:
        """Send a bad run in front of many good ones; returns the outcomes by token."""
        runs = [a_run(self.app, 1, **bad), *(a_run(self.app, token) for token in GOOD)]
        self.lane.when_connected().submit(runs)
        return {outcome.token: outcome for outcome in self.lane.outcomes(len(runs))}

    def arrived(self) -> list[str]:
        with self.app.connection_for_read() as connection:
            queue = Queue(self.app.conf.task_default_queue)(connection.default_channel)
            queue.declare()
            found = []
            while (message := queue.get(no_ack=True)) is not None:
                found.append(message.headers["id"])
            return found

    def close(self) -> None:
        self.lane.lane.close(5)
        with self.app.connection_for_write() as connection:
            Queue(self.app.conf.task_default_queue)(connection.default_channel).delete()


@pytest.fixture(params=BROKERS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.getfixturevalue(request.param))
    yield bench
    bench.close()


def missing_file() -> str:
    with open("/nowhere/settings.json") as file:
        return file.read()


def another_redis() -> Any:
    return Redis(port=9, socket_connect_timeout=0.2, retry=None).get("x")


def another_service() -> Any:
    raise TimeoutError("it did not answer")


@pytest.mark.parametrize("code", [missing_file, another_redis, another_service])
def test_a_lazy_argument_that_cannot_reach_something_else_blocks_nothing_else(bench: Bench, code: Any) -> None:
    for _ in range(2):
        outcomes = bench.send({"args": (BeatLazyFunc(code),)})
        failed = {token: outcome.kind for token, outcome in outcomes.items() if hasattr(outcome, "kind")}
        assert failed == {1: FailureKind.ERROR}
        assert bench.arrived() == [f"id-{token}" for token in GOOD]
    assert bench.connections == 1


class Thing:
    """No JSON, and named alike in the ids of every test process."""

    def __repr__(self) -> str:
        return "thing"


@pytest.mark.parametrize(
    "bad",
    [
        {"args": (Thing(),)},
        {"headers": {"x": {1, 2}}},
        {"headers": {"x": Thing()}},
        {"headers": [1]},
        {"shadow": Thing()},
        {"serializer": "nobody's"},
        {"compression": "nobody's"},
        {"priority": Thing()},
        {"time_limit": Thing()},
    ],
    ids=str,
)
def test_what_cannot_be_written_into_a_message_blocks_nothing_else(bench: Bench, bad: dict[str, Any]) -> None:
    settled = bench.send(bad)
    again = [token for token, one in settled.items() if getattr(one, "kind", None) in AGAIN]
    assert again == [] or again == list(GOOD), "a batch that cannot be written is sent singly"
    if again:
        bench.lane.when_connected().submit([a_run(bench.app, token) for token in again])
        assert not any(hasattr(one, "kind") for one in bench.lane.outcomes(len(again)))
    assert settled[1].kind in (FailureKind.ERROR, FailureKind.POISON)
    assert bench.arrived() == [f"id-{token}" for token in GOOD]


AGAIN = (FailureKind.UNCERTAIN, FailureKind.NOT_SENT)


@pytest.mark.parametrize(
    "route", [5, {"queue": 7}, {"exchange": 5}, ["a", "b"], Thing(), {"queue": Thing()}, {"nonsense": 1}], ids=str
)
def test_a_router_that_returns_garbage_blocks_nothing_else(bench: Bench, route: Any) -> None:
    bench.app.conf.task_routes = [lambda name, *_args, **_kwargs: route if name == "lane.bad" else None]
    outcomes = bench.send({"task": "lane.bad"})
    assert not [token for token in GOOD if hasattr(outcomes[token], "kind")]
    assert [one for one in bench.arrived() if one != "id-1"] == [f"id-{token}" for token in GOOD]
    assert bench.connections == 1
