"""The celery lane against kombu's memory transport: what is stamped, what is confirmed, what comes back."""

from __future__ import annotations

import socket
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu import Producer
from kombu.exceptions import EncodeError
from support.lanes.celery_lane import RecordingScheduler, StartedLane, a_run

from celery_wheelbeat import run_id
from celery_wheelbeat.dispatch import Confirmed, Failed, FailureKind
from celery_wheelbeat.dispatch.celery_lane.run_sender import BATCH_MAX
from celery_wheelbeat.dispatch.messages.attempt import Attempt, current
from celery_wheelbeat.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("lane", broker="memory://", set_as_current=False)

    @app.task(name="lane.note", shared=False)
    def note(number: int, **more: Any) -> None: ...

    messages(app)  # the memory transport is one for the whole process
    yield app
    app.close()


@pytest.fixture
def lane(app: Celery) -> Iterator[StartedLane]:
    lane = StartedLane(app)
    yield lane
    lane.lane.close(5)


def messages(app: Celery, queue: str = "celery") -> list[Any]:
    with app.connection_for_read() as connection:
        simple = connection.SimpleQueue(queue)
        found = []
        while simple.qsize():
            found.append(simple.get_nowait())
            found[-1].ack()
        simple.close()
        return found


def test_a_run_is_stamped_and_confirmed(app: Celery, lane: StartedLane) -> None:
    before_ms = SystemClock().wall_ms()
    lane.when_connected().submit([a_run(app, 5, headers={"mine": "x"})])
    (confirmed,) = lane.outcomes(1)
    assert isinstance(confirmed, Confirmed)
    assert confirmed.token == 5
    assert before_ms <= confirmed.confirmed_ms <= SystemClock().wall_ms()
    (message,) = messages(app)
    assert message.headers["id"] == "id-5"
    assert message.headers["mine"] == "x"
    assert message.headers["celery_beat_task"] is True
    assert message.headers["periodic_task_name"] == "job 5"
    assert message.headers["wheelbeat_fire_ms"] == 1_700_000_000_000
    assert len(message.headers["wheelbeat_nonce"]) == 32
    assert lane.lane.health().in_flight == 0


def test_the_users_options_are_never_written_to(app: Celery, lane: StartedLane) -> None:
    headers = {"mine": "x"}
    run = a_run(app, 1, headers=headers, queue="celery")
    lane.when_connected().submit([run, run._replace(token=2)])
    lane.outcomes(2)
    assert headers == {"mine": "x"}
    assert run.entry.options == {"headers": headers, "queue": "celery"}
    first, second = messages(app)
    assert first.headers["wheelbeat_nonce"] != second.headers["wheelbeat_nonce"]


def test_the_users_task_id_wins(app: Celery, lane: StartedLane) -> None:
    lane.when_connected().submit([a_run(app, 1, task_id="mine")])
    lane.outcomes(1)
    assert messages(app)[0].headers["id"] == "mine"


def test_the_nth_message_of_a_run_has_its_own_id(app: Celery) -> None:
    class Tenants(RecordingScheduler):
        def apply_entry(self, entry: Any, producer: Any = None) -> None:
            for _tenant in ("a", "b", "c"):
                self.apply_async(entry, producer=producer, advance=False)

    lane = StartedLane(app, Tenants(app, lazy=True))
    lane.when_connected().submit([a_run(app, 1)])
    assert [type(outcome) for outcome in lane.outcomes(1)] == [Confirmed]
    numbered = [run_id("monitor:7", 1_700_000_000_000, "celery", f"#{number}") for number in (2, 3)]
    assert [message.headers["id"] for message in messages(app)] == ["id-1", *numbered]
    lane.lane.close(5)


def test_an_apply_entry_that_sends_nothing_confirms_nothing(app: Celery) -> None:
    class Silent(RecordingScheduler):
        def apply_entry(self, entry: Any, producer: Any = None) -> None:
            return

    lane = StartedLane(app, Silent(app, lazy=True))
    lane.when_connected().submit([a_run(app, 1)])
    (failed,) = lane.outcomes(1)
    assert failed == Failed(1, FailureKind.ERROR, "apply_entry sent no message")
    lane.lane.close(5)


@pytest.mark.parametrize(
    ("bad", "kind", "reason"),
    [
        ({"args": (1, 2, 3)}, FailureKind.ERROR, "TypeError: "),
        ({"args": (object(),)}, FailureKind.POISON, "EncodeError: "),
        ({"queue": "unknown"}, FailureKind.UNROUTABLE, "QueueNotFound: "),
    ],
)
def test_one_bad_run_comes_back_with_its_reason_and_the_others_are_sent(
    app: Celery, lane: StartedLane, bad: dict[str, Any], kind: FailureKind, reason: str
) -> None:
    app.conf.task_create_missing_queues = False
    lane.when_connected().submit([a_run(app, 1), a_run(app, 2, **bad)])
    lane.outcomes(2)
    lane.when_connected().submit([a_run(app, 3)])
    (confirmed,) = lane.outcomes(1)
    assert isinstance(confirmed, Confirmed)
    lane.when_connected().submit([a_run(app, 4, **bad)])
    (failed,) = lane.outcomes(1)
    assert isinstance(failed, Failed)
    assert (failed.token, failed.kind) == (4, kind)
    assert failed.reason.startswith(reason)
    assert [message.headers["id"] for message in messages(app)] == ["id-1", "id-3"]


def test_a_lost_connection_hands_back_what_it_did_not_reach(app: Celery) -> None:
    failing = [OSError("cut")]

    class Cut(Producer):
        def publish(self, *args: Any, **kwargs: Any) -> Any:
            if failing:
                raise failing.pop()
            return super().publish(*args, **kwargs)

    lane = StartedLane(app, make_producer=lambda connection: Cut(connection, auto_declare=False))
    lane.when_connected().submit([a_run(app, 1), a_run(app, 2), a_run(app, 3)])
    outcomes = lane.outcomes(3)
    assert [(outcome.token, outcome.kind) for outcome in outcomes if isinstance(outcome, Failed)] == [
        (1, FailureKind.UNCERTAIN),
        (2, FailureKind.NOT_SENT),
        (3, FailureKind.NOT_SENT),
    ]
    lane.when_connected().submit([a_run(app, 1)])
    assert isinstance(lane.outcomes(1)[0], Confirmed)
    lane.lane.close(5)


def test_while_the_broker_is_away_there_is_no_capacity_and_nothing_is_kept(app: Celery) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        lane = StartedLane(Celery("away", broker=f"amqp://127.0.0.1:{taken.getsockname()[1]}//", set_as_current=False))
        lane.lane.submit([a_run(app, 1)])
        (failed,) = lane.outcomes(1)
        assert isinstance(failed, Failed)
        assert failed.kind is FailureKind.NOT_SENT
        assert lane.lane.capacity() == 0
        assert not lane.lane.health().connected
        lane.lane.close(60)
        assert lane.lane.health().in_flight == 0


def test_close_sends_what_was_submitted_and_reports_it(app: Celery, lane: StartedLane) -> None:
    lane.when_connected().submit([a_run(app, token) for token in range(BATCH_MAX + 3)])
    lane.lane.close(60)
    assert {type(outcome) for outcome in lane.lane.poll()} == {Confirmed}
    assert lane.lane.health().in_flight == 0
    assert len(messages(app)) == BATCH_MAX + 3


def test_a_run_that_is_stuck_at_the_close_has_no_outcome(app: Celery) -> None:
    stuck: SimpleQueue[None] = SimpleQueue()
    lane = StartedLane(app, apply_entry=lambda *_, **__: stuck.get(timeout=20))
    lane.when_connected().submit([a_run(app, 1)])
    lane.lane.close(0.2)
    assert lane.lane.poll() == []
    assert lane.lane.health().in_flight == 1
    stuck.put(None)


def test_an_encode_error_of_one_run_is_its_own(app: Celery) -> None:
    attempt = Attempt(a_run(app, 1))
    with attempt.open(), pytest.raises(EncodeError), attempt.message():
        raise EncodeError("no")
    assert (attempt.accepted, len(attempt.errors)) == (0, 1)
    assert current() is None
