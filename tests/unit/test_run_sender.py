"""User code around a send: what it raises is its own run's, whatever its type, and holds nobody up."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from datetime import UTC, datetime, timedelta, tzinfo
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import amqp.exceptions
import pytest
import redis.exceptions
from celery import Celery, Task
from celery.beat import BeatLazyFunc
from kombu import Producer
from kombu.exceptions import OperationalError
from support.lanes.celery_lane import RecordingScheduler, StartedLane, a_run

from celery_wheelbeat.dispatch import Confirmed, Failed, FailureKind
from celery_wheelbeat.dispatch.celery_lane.run_sender import SLOW_S, CeleryLaneCallbacks, RunSender
from celery_wheelbeat.dispatch.messages.expiry import has_expired
from celery_wheelbeat.dispatch.reports.failure_log import EVERY_S, SUBJECTS_MAX, LinePace
from celery_wheelbeat.dispatch.reports.send_log import SendLog
from celery_wheelbeat.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_wheelbeat.dispatch import Run

NOW_MS = 1_700_000_000_000


class _Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _Unequal(Exception):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = Exception.__hash__


FOREIGN = [
    FileNotFoundError(2, "no such file"),
    TimeoutError("another service"),
    ConnectionRefusedError(111, "another service"),
    redis.exceptions.ConnectionError("another Redis"),
    redis.exceptions.OutOfMemoryError("another Redis, without memory"),
    redis.exceptions.ReadOnlyError("another Redis, a replica"),
    amqp.exceptions.ConnectionForced("another RabbitMQ"),
    amqp.exceptions.NotFound("an exchange of another RabbitMQ", (60, 40)),
    OperationalError("another broker"),
    KeyError("a key"),
    StopIteration(),
    StopAsyncIteration(),
    RecursionError("too deep"),
    _Speechless(),
    _Unequal(),
]


def raises(error: BaseException) -> Callable[..., Any]:
    def raise_it(*_: Any, **__: Any) -> Any:
        raise error

    return raise_it


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("lane", broker="memory://", set_as_current=False)

    @app.task(name="lane.note", shared=False)
    def note(number: int, **more: Any) -> None: ...

    yield app
    app.close()


class Counted(StartedLane):
    """A lane that counts its connections."""

    def __init__(self, app: Celery, scheduler: Any = None, producer: type[Producer] = Producer) -> None:
        self.connections = 0

        def make_producer(connection: Any) -> Producer:
            self.connections += 1
            return producer(connection, auto_declare=False)

        super().__init__(app, scheduler, make_producer=make_producer)

    def settle(self, *runs: Run) -> dict[int, Any]:
        """Send ``runs``; returns the outcomes by token."""
        self.when_connected().submit(runs)
        return {outcome.token: outcome for outcome in self.outcomes(len(runs))}


@pytest.fixture
def lane(app: Celery) -> Iterator[Counted]:
    lane = Counted(app)
    yield lane
    lane.lane.close(5)


def kinds(outcomes: dict[int, Any]) -> dict[int, FailureKind | None]:
    return {token: getattr(outcome, "kind", None) for token, outcome in sorted(outcomes.items())}


@pytest.mark.parametrize("error", FOREIGN, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["lazy", "router", "task", "apply_entry"])
def test_what_user_code_raises_is_its_own_runs_and_the_connection_stays(
    app: Celery, where: str, error: Exception
) -> None:
    bad: dict[str, Any] = {}
    scheduler = RecordingScheduler(app, lazy=True)
    if where == "lazy":
        bad["args"] = (BeatLazyFunc(raises(error)),)
    elif where == "router":
        app.conf.task_routes = [lambda name, *_, **__: raises(error)() if name == "lane.bad" else None]
        bad["task"] = "lane.bad"
    elif where == "task":
        app.register_task(type("Bad", (Task,), {"name": "lane.bad", "run": lambda _self: None})())
        app.tasks["lane.bad"].apply_async = raises(error)
        bad["task"] = "lane.bad"
    else:

        class Overridden(RecordingScheduler):
            def apply_entry(self, entry: Any, producer: Any = None) -> None:
                if entry.task == "lane.bad":
                    raise error
                super().apply_entry(entry, producer=producer)

        scheduler, bad["task"] = Overridden(app, lazy=True), "lane.bad"
    lane = Counted(app, scheduler)
    try:
        outcomes = lane.settle(a_run(app, 1, **bad), a_run(app, 2), a_run(app, 3))
        assert kinds(outcomes) == {1: FailureKind.ERROR, 2: None, 3: None}
        assert lane.connections == 1
    finally:
        lane.lane.close(5)


def test_what_leaves_the_publish_call_says_something_about_the_broker(app: Celery) -> None:
    failing: list[Exception] = [ConnectionResetError("cut")]

    class Cut(Producer):
        def publish(self, *args: Any, **kwargs: Any) -> Any:
            if failing:
                raise failing.pop()
            return super().publish(*args, **kwargs)

    lane = Counted(app, producer=Cut)
    first = lane.settle(a_run(app, 1), a_run(app, 2))
    assert kinds(first) == {1: FailureKind.UNCERTAIN, 2: FailureKind.NOT_SENT}
    assert kinds(lane.settle(a_run(app, 1), a_run(app, 2))) == {1: None, 2: None}
    assert lane.connections == 2
    lane.lane.close(5)


def test_a_failure_of_the_broker_that_user_code_swallows_confirms_nothing(app: Celery) -> None:
    class Swallowing(RecordingScheduler):
        def send_task(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().send_task(*args, **kwargs)
            except OSError:
                return None

    class Cut(Producer):
        def publish(self, *args: Any, **kwargs: Any) -> Any:
            raise ConnectionResetError("cut")

    lane = Counted(app, Swallowing(app, lazy=True), producer=Cut)
    outcomes = lane.settle(a_run(app, 1, task="unregistered"))
    assert kinds(outcomes) == {1: FailureKind.UNCERTAIN}
    lane.lane.close(5)


def test_a_run_at_which_the_connection_breaks_again_waits_apart(app: Celery) -> None:
    """Whatever it is about it that the broker cannot stand, the runs behind it are sent meanwhile."""

    class Picky(Producer):
        def publish(self, body: Any, *args: Any, **kwargs: Any) -> Any:
            if body[0] == [13]:
                raise ConnectionResetError("again")
            return super().publish(body, *args, **kwargs)

    lane = Counted(app, producer=Picky)
    waiting = {token: a_run(app, token, args=(13 if token == 1 else 0,)) for token in (1, 2, 3)}
    settled: dict[int, Any] = {}
    for _ in range(4):
        outcomes = lane.settle(*waiting.values())
        settled |= {token: one for token, one in outcomes.items() if kinds({0: one})[0] not in AGAIN}
        waiting = {token: run for token, run in waiting.items() if token not in settled}
        if not waiting:
            break
    assert kinds(settled) == {1: FailureKind.REFUSED, 2: None, 3: None}
    assert kinds(lane.settle(a_run(app, 1, args=(13,)), a_run(app, 4))) == {
        1: FailureKind.REFUSED,
        4: FailureKind.NOT_SENT,
    }
    assert kinds(lane.settle(a_run(app, 4))) == {4: None}
    lane.lane.close(5)


AGAIN = (FailureKind.UNCERTAIN, FailureKind.NOT_SENT)


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("why"), GeneratorExit()])
def test_a_base_exception_is_kept_for_the_scheduling_thread_and_the_runs_beside_it_are_sent(
    app: Celery, lane: Counted, ending: BaseException
) -> None:
    bad = a_run(app, 2, args=(BeatLazyFunc(raises(ending)),))
    outcomes = lane.settle(a_run(app, 1), bad, a_run(app, 3))
    assert kinds(outcomes) == {1: None, 2: FailureKind.ERROR, 3: None}
    assert lane.lane.ended_by is ending
    lane.lane.submit([a_run(app, 4)])
    lane.lane.close(20)
    assert not lane.lane._thread.is_alive
    assert all(hasattr(outcome, "kind") for outcome in lane.lane.poll()), "nothing more is sent"
    assert lane.lane.capacity() == 0


def test_user_code_finds_the_context_variables_of_the_scheduling_thread(app: Celery) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")
    seen: list[tuple[str, bool]] = []
    tenant.set("set at import")
    lane = Counted(app)
    here = threading.get_ident()
    lazy = BeatLazyFunc(lambda: seen.append((tenant.get(), threading.get_ident() == here)))
    lane.settle(a_run(app, 1, args=(lazy,)))
    lane.lane.close(5)
    assert seen == [("set at import", False)]


@pytest.mark.parametrize(
    ("expires", "kind"),
    [
        (datetime(2020, 1, 1, tzinfo=UTC), FailureKind.EXPIRED),
        (datetime(2020, 1, 1), FailureKind.EXPIRED),  # noqa: DTZ001 - Celery takes it as UTC
        ("2020-01-01T00:00:00+02:00", FailureKind.EXPIRED),
        (60, None),
        (0.5, None),
        (None, None),
        (datetime.now(UTC) + timedelta(hours=1), None),
        ("no instant", FailureKind.ERROR),
        (timedelta(hours=1), FailureKind.ERROR),
    ],
)
def test_a_run_that_has_expired_is_not_sent(app: Celery, lane: Counted, expires: Any, kind: FailureKind | None) -> None:
    outcomes = lane.settle(a_run(app, 1, expires=expires), a_run(app, 2))
    assert kinds(outcomes) == {1: kind, 2: None}


class _NoZone(tzinfo):
    def utcoffset(self, _when: datetime | None) -> timedelta:
        raise OSError("no zone")


def test_an_instant_has_passed_when_it_has_come() -> None:
    at = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert has_expired(at, NOW_MS)
    assert not has_expired(at, NOW_MS - 1)
    assert has_expired(at.isoformat(), NOW_MS)
    assert not has_expired(datetime.max, NOW_MS)  # noqa: DTZ901
    assert has_expired(datetime.min, NOW_MS)  # noqa: DTZ901
    assert not has_expired(datetime(2020, 1, 1, tzinfo=_NoZone()), NOW_MS)


def test_whatever_goes_wrong_in_the_lane_itself_costs_the_run_at_hand_and_the_others_are_sent(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        """Options that nobody expects."""

        def get(self, _name: str) -> Any:
            raise OSError("not even options")

    bad = a_run(app, 2)
    bad.entry.options = Broken()
    lane = Counted(app)
    waiting = {run.token: run for run in (a_run(app, 1), bad, a_run(app, 3))}
    settled: dict[int, Any] = {}
    while waiting:
        outcomes = lane.settle(*waiting.values())
        settled |= {token: one for token, one in outcomes.items() if kinds({0: one})[0] not in AGAIN}
        waiting = {token: run for token, run in waiting.items() if token not in settled}
    assert kinds(settled) == {1: None, 2: FailureKind.ERROR, 3: None}
    assert caplog.text.count("beat: An unexpected error in the celery lane") == 1
    lane.lane.close(5)


class MovedClock(SystemClock):
    """A clock of which the test moves the monotonic time."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s


class Bench:
    """A sender without a thread or a broker."""

    def __init__(self, apply_entry: Callable[..., Any]) -> None:
        self.clock = MovedClock()
        callbacks = CeleryLaneCallbacks(
            apply_entry=apply_entry,
            open_connection=lambda: None,
            make_producer=lambda _: None,
            wake=lambda: None,
            clock=self.clock,
            quiet=lambda _: None,
            options={},
        )
        self.sender = RunSender(callbacks, lambda: None)

    def send(self, runs: Sequence[Run]) -> list[Confirmed | Failed]:
        connection = SimpleNamespace(connected=True, connection_errors=(), channel_errors=())
        return self.sender.send(runs, SimpleNamespace(), connection)[0]


def error_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "celery.beat"]


def test_an_error_is_logged_with_its_traceback_once_a_minute_for_each_job(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(raises(KeyError("tenant")))
    one, other = a_run(app, 1), a_run(app, 2)._replace(job_id=8)
    for _ in range(30):
        assert [type(outcome) for outcome in bench.send([one, other])] == [Failed, Failed]
        bench.clock.now_s += EVERY_S / 29
    assert (
        error_lines(caplog)
        == ["Message Error: job 1: KeyError: 'tenant'", "Message Error: job 2: KeyError: 'tenant'"] * 2
    )
    assert all(record.exc_info for record in caplog.records)
    assert "in raise_it" in caplog.text


def test_an_apply_entry_that_sends_nothing_is_logged(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(lambda *_, **__: None)
    assert bench.send([a_run(app, 1)]) == [Failed(1, FailureKind.ERROR, "apply_entry sent no message")]
    assert error_lines(caplog) == ["Message Error: job 1: apply_entry sent no message"]


def test_an_apply_entry_that_raises_after_its_message_was_accepted_has_sent_it(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    class Late(RecordingScheduler):
        def apply_entry(self, entry: Any, producer: Any = None) -> None:
            super().apply_entry(entry, producer=producer)
            raise ValueError("a counter of its own")

    lane = Counted(app, Late(app, lazy=True))
    assert kinds(lane.settle(a_run(app, 1))) == {1: None}
    lane.lane.close(5)
    assert "Message Error: job 1: was sent, and then ValueError: a counter of its own" in error_lines(caplog)


def test_code_that_takes_long_is_named_once_a_minute(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    def slow(*_: Any, **__: Any) -> None:
        bench.clock.now_s += SLOW_S

    bench = Bench(slow)
    bench.send([a_run(app, 1)] * 3)
    lines = [line for line in error_lines(caplog) if "took" in line]
    assert lines == [
        "beat: Code of the app took 1.0 s to make one message of job 1; other runs of the celery lane waited"
    ]


def test_celerys_own_tracebacks_are_dropped_only_while_the_lane_sends(caplog: pytest.LogCaptureFixture) -> None:
    logger, lines = logging.getLogger("celery.beat"), SendLog()
    lines.install()
    try:
        with lines.of(1):
            logger.error("Message Error: %s\n%s", "of the lane", "stack")
            logger.error("Message Error: %s: %s", "job", "reason")
        logger.error("Message Error: %s\n%s", "of somebody else", "stack")
    finally:
        lines.remove()
    assert error_lines(caplog) == ["Message Error: job: reason", "Message Error: of somebody else\nstack"]


def test_lines_about_many_subjects_are_few() -> None:
    pace = LinePace()
    assert sum(pace.is_due(subject, 0.0) for subject in range(1_000)) == SUBJECTS_MAX
    assert sum(pace.is_due(subject, EVERY_S) for subject in range(1_000, 2_000)) == SUBJECTS_MAX
    assert not pace.is_due(1_000, EVERY_S)
