"""The hook around Celery's tracer, without a worker: one look-up, refusals, counters, and help from brokers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery, states
from celery.app import trace as celery_trace
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import before_task_publish

from celery_wheelbeat.worker.broker_dedup import name_runs, publish_properties, renumber_attempts
from celery_wheelbeat.worker.claims import claim_key
from celery_wheelbeat.worker.counters import NAMES, Counters
from celery_wheelbeat.worker.hooks import tracer_hook as hook
from celery_wheelbeat.worker.hooks.tracer_hook import PROBE, guard_all, guarded, why_not_live
from celery_wheelbeat.worker.lifecycle.attempt import Admission

if TYPE_CHECKING:
    from collections.abc import Iterator


class Gatekeeper:
    """Gives the answers that the test sets, and remembers its calls."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.admitted: list[str] = []
        self.settled: list[str | None] = []

    def admit(self, task: Any, task_id: str, args: Any, kwargs: Any, request: Any) -> Admission:
        self.admitted.append(task_id)
        return self.admission

    def settle(self, admission: Admission, state: str | None) -> None:
        self.settled.append(state)


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app with tasks that end in every way."""
    app = Celery("tests", broker="memory://", backend="cache+memory://", set_as_current=False)
    endings = {"good": None, "bad": ValueError(), "ignored": Ignore(), "given_back": Reject(requeue=True)}

    for name, ending in endings.items():

        def body(ending: Exception | None = ending) -> str:
            if ending is not None:
                raise ending
            return "value"

        app.task(name=name, shared=False)(body)
    app.finalize()
    yield app
    app.close()


def traced(app: Celery, name: str, gate: Gatekeeper, **headers: Any) -> Any:
    """Run one message through the guarded tracer of a task."""
    task = app.tasks[name]
    trace = guarded(task, celery_trace.build_tracer(name, task, app=app), gate)
    task_id = str(uuid4())
    return trace(task_id, (), {}, {"id": task_id, "delivery_info": {}, **headers})


def test_a_message_of_nobody_does_not_reach_the_gate(app: Celery) -> None:
    gate = Gatekeeper(Admission(Ignore()))
    assert traced(app, "good", gate).retval == "value"
    assert (gate.admitted, gate.settled) == ([], [])


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("good", states.SUCCESS),
        ("bad", states.FAILURE),
        ("ignored", states.IGNORED),
        ("given_back", states.REJECTED),
    ],
)
def test_an_admitted_run_is_settled_with_its_state(app: Celery, name: str, state: str) -> None:
    gate = Gatekeeper(Admission())
    traced(app, name, gate, wheelbeat_fire_ms=5)
    assert gate.settled == [state]


@pytest.mark.parametrize(("refusal", "state"), [(Ignore(), states.IGNORED), (Reject(requeue=True), states.REJECTED)])
def test_a_refused_run_looks_like_a_task_that_refused_itself(app: Celery, refusal: Exception, state: str) -> None:
    gate = Gatekeeper(Admission(refusal))
    outcome = traced(app, "good", gate, wheelbeat_fire_ms=5)
    own = traced(app, {states.IGNORED: "ignored", states.REJECTED: "given_back"}[state], Gatekeeper(Admission()))
    assert outcome.info.state == own.info.state == state
    assert type(outcome.retval) is type(own.retval)
    assert type(outcome.retval.exception.exc) is type(own.retval.exception.exc)
    assert getattr(outcome.retval.exception.exc, "requeue", None) is getattr(refusal, "requeue", None)
    assert outcome.info.retval is refusal
    assert gate.settled == []
    assert app.backend.get_state(gate.admitted[0]) == states.PENDING


def test_an_execution_that_is_torn_away_leaves_the_claim_running(app: Celery) -> None:
    gate = Gatekeeper(Admission())

    def torn(*_: Any) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        guarded(app.tasks["good"], torn, gate)("id", (), {}, {"wheelbeat_fire_ms": 5})
    assert gate.settled == [None]


def test_tracers_are_guarded_once(app: Celery) -> None:
    gate = Gatekeeper(Admission())
    task = app.tasks["good"]
    task.__trace__ = celery_trace.build_tracer("good", task, app=app)
    guard_all(app.tasks, gate)
    first = task.__trace__
    guard_all(app.tasks, gate)
    assert task.__trace__ is first
    assert app.tasks["bad"].__trace__ is None


def test_the_hook_is_live_in_this_celery_and_leaves_no_task_behind(app: Celery) -> None:
    app.use_fast_trace_task = False
    app.set_current()
    assert why_not_live(app) is None
    assert PROBE not in app.tasks


def test_a_celery_that_does_not_call_the_tracer_is_noticed(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    app.use_fast_trace_task = False

    def elsewhere(name: str, *_: Any) -> tuple[int, Any, float]:
        app.tasks[name].run()
        return 0, "None", 0.0

    monkeypatch.setattr(hook, "trace_task_ret", elsewhere)
    assert why_not_live(app) == "Celery executes tasks without calling task.__trace__"
    monkeypatch.setattr(hook, "trace_task_ret", lambda *_: 1 / 0)
    assert "ZeroDivisionError" in str(why_not_live(app))


def test_counters_are_summed_over_processes_and_survive_one_that_is_killed() -> None:
    counters = Counters()
    counters.add("elected")
    for index in (1, 2):
        pid = os.fork()
        if pid == 0:
            counters.use_column(index)
            counters.add("elected")
            counters.add("dropped_other")
            os._exit(9)
        os.waitpid(pid, 0)
    assert counters.totals() == {**dict.fromkeys(NAMES, 0), "elected": 3, "dropped_other": 2}


def test_brokers_that_drop_copies_get_the_name_of_the_run() -> None:
    run = {"id": "nightly–😀", "wheelbeat_fire_ms": 5}
    assert publish_properties(run, "sqs") == {"MessageDeduplicationId": claim_key("nightly–😀", 5, 0, 0)}
    assert publish_properties(run, "amqp") == {"headers": {"x-deduplication-header": claim_key("nightly–😀", 5, 0, 0)}}
    assert publish_properties(run, "redis") == {}
    # a constant task id must not make the broker swallow the next run
    assert publish_properties({**run, "wheelbeat_fire_ms": 6}, "sqs") != publish_properties(run, "sqs")


@pytest.fixture
def unconnected() -> Iterator[None]:
    """Leave no receiver of ``before_task_publish`` behind."""
    yield
    for uid in ("name_runs", "renumber_attempts"):
        before_task_publish.disconnect(dispatch_uid=f"celery_wheelbeat.{uid}")


@pytest.mark.parametrize("transport", ["sqs", "amqp"])
def test_the_name_arrives_in_the_message(app: Celery, transport: str, unconnected: None) -> None:
    name_runs(transport)
    queue = f"queue-{uuid4()}"
    with app.connection() as connection:
        for task_id, headers in (("run", {"wheelbeat_fire_ms": 5}), ("other", {})):
            app.send_task("good", task_id=task_id, headers=headers, queue=queue, connection=connection)
        channel = connection.default_channel
        ours, other = (channel.basic_get(queue) for _ in range(2))
    where = {"sqs": "properties", "amqp": "headers"}[transport]
    name = {"sqs": "MessageDeduplicationId", "amqp": "x-deduplication-header"}[transport]
    assert getattr(ours, where)[name] == claim_key("run", 5, 0, 0)
    assert name not in getattr(other, where)


@pytest.mark.parametrize("transport", ["sqs", "amqp"])
def test_a_retry_of_a_named_run_has_a_name_of_its_own_or_none(app: Celery, transport: str, unconnected: None) -> None:
    name_runs(transport)
    renumber_attempts()
    queue = f"queue-{uuid4()}"
    task = app.tasks["good"]
    with app.connection() as connection:
        names = []
        task.apply_async(task_id="run", headers={"wheelbeat_fire_ms": 5}, queue=queue, connection=connection)
        for _ in range(3):
            message = connection.default_channel.basic_get(queue)
            names.append(
                message.properties.get("MessageDeduplicationId")
                if transport == "sqs"
                else message.headers.get("x-deduplication-header")
            )
            delivery = {"delivery_info": message.delivery_info, "called_directly": False, "args": (), "kwargs": {}}
            task.push_request(**message.headers, **delivery)
            with pytest.raises(Retry):
                task.retry(countdown=0)
            task.pop_request()
    # what has no name gets one from kombu: a uuid
    first, second, third = (claim_key("run", 5, 0, retries) for retries in range(3))
    assert names == {"sqs": [first, None, None], "amqp": [first, second, third]}[transport]


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({}, claim_key("r", 5, 0, 0)),
        ({"retries": 0}, claim_key("r", 5, 0, 0)),
        ({"retries": 2}, claim_key("r", 5, 0, 2)),
        ({"wheelbeat_waiting": True}, None),
    ],
)
def test_a_retry_is_another_message_to_the_broker(more: dict[str, Any], name: str | None, unconnected: None) -> None:
    renumber_attempts()
    headers = {"id": "r", "wheelbeat_fire_ms": 5, "x-deduplication-header": "of the first attempt", **more}
    before_task_publish.send(sender="task", headers=headers)
    assert headers.get("x-deduplication-header") == name
    others = {"id": "r", "retries": 2, "x-deduplication-header": "theirs"}
    before_task_publish.send(sender="task", headers=others)
    assert others["x-deduplication-header"] == "theirs"
