"""Whose code is on the way of a message."""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

import numpy as np
import pytest
from celery import Celery, Task
from celery.app.amqp import AMQP
from celery.backends.base import DisabledBackend
from celery.beat import BeatLazyFunc, ScheduleEntry, Scheduler
from celery.schedules import crontab, schedule
from celery.signals import before_task_publish
from kombu.messaging import Producer
from support.lanes.fast_lane import make_app

from celery_wheelbeat.beat.scheduler import WheelScheduler
from celery_wheelbeat.dispatch.messages import hooks as detection
from celery_wheelbeat.dispatch.messages.hooks import Guard, all_hooks, configuration_reasons, entry_reasons, hooks
from celery_wheelbeat.dispatch.messages.run_ids import rows_of
from celery_wheelbeat.dispatch.messages.tracing import CheckIns, check_ins, new_traces, only_observers


@pytest.fixture
def app() -> Celery:
    return make_app("memory://")


def found(app: Celery, task: str = "lanes.check") -> list[str]:
    return [hook.what for hook in hooks(app, WheelScheduler(app, lazy=True), task)]


def entry(app: Celery, task: str = "lanes.check", args: Any = (), **options: Any) -> ScheduleEntry:
    return ScheduleEntry(name="e", task=task, schedule=60, args=args, kwargs={}, options=options, app=app)


def test_plain_celery_has_nobody_on_the_way(app: Celery) -> None:
    assert found(app) == []
    assert configuration_reasons(app) == []
    assert entry_reasons(app, entry(app)) == []


ON_THE_WAY = {
    "Scheduler.apply_entry": (Scheduler, "apply_entry"),
    "Scheduler.apply_async": (WheelScheduler, "apply_async"),
    "Scheduler.send_task": (Scheduler, "send_task"),
    "Celery.send_task": (Celery, "send_task"),
    "Task.apply_async": (Task, "apply_async"),
    "AMQP.create_task_message": (AMQP, "create_task_message"),
    "AMQP.send_task_message": (AMQP, "send_task_message"),
    "AMQP.as_task_v2": (AMQP, "as_task_v2"),
    "Producer.publish": (Producer, "publish"),
    "Producer._publish": (Producer, "_publish"),
    "Producer._prepare": (Producer, "_prepare"),
    "the result backend's on_task_call": (DisabledBackend, "on_task_call"),
}


@pytest.mark.parametrize("name", ON_THE_WAY)
def test_a_function_patched_at_run_time_is_found_and_changes_the_guard(
    app: Celery, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    guard = Guard(app, WheelScheduler(app, lazy=True))
    before = guard()
    assert guard() == before
    owner, attribute = ON_THE_WAY[name]
    original = Producer.publish if attribute in ("create_task_message", "send_task_message") else None

    @functools.wraps(original or getattr(owner, attribute))
    def patched(*args: Any, **kwargs: Any) -> Any: ...

    if original is None:
        monkeypatch.setattr(owner, attribute, patched)
    else:  # these are made once for each app
        monkeypatch.setattr(app.amqp, attribute, patched)
    assert found(app) == [f"{name} is replaced by {__name__.partition('.')[0]}"]
    assert guard() != before


def test_the_guard_knows_every_function_that_a_hook_is_looked_for_in() -> None:
    assert list(ON_THE_WAY) == list(detection._path(make_app("memory://"), Scheduler, DisabledBackend))


def test_another_process_has_another_guard(app: Celery) -> None:
    guard = Guard(app, WheelScheduler(app, lazy=True))
    before = guard()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks in a process with threads: this child starts none
        child = os.fork()
    if not child:
        os.write(writing, b"other" if guard() != before else b"same")
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 10) == b"other"
    os.close(reading)
    os.waitpid(child, 0)
    assert guard() == before


def test_a_result_backend_that_cannot_be_built_stops_no_start() -> None:
    app = make_app("memory://", result_backend="nowhere://")
    assert Guard(app, WheelScheduler(app, lazy=True))()


def test_a_scheduler_with_its_own_way_of_sending_is_found(app: Celery) -> None:
    class Tenants(WheelScheduler):
        def apply_entry(self, entry: Any, producer: Any = None) -> None: ...

    (hook,) = hooks(app, Tenants(app, lazy=True), "t")
    assert hook.what == f"Scheduler.apply_entry is replaced by {__name__.partition('.')[0]}"


def test_receivers_count_for_their_sender_only_and_dead_ones_not(app: Celery) -> None:
    def receiver(**_kwargs: Any) -> None: ...

    guard = Guard(app, WheelScheduler(app, lazy=True))
    before = guard()
    before_task_publish.connect(receiver, sender="lanes.check")
    try:
        assert guard() != before
        assert found(app, "other") == []
        (what,) = found(app)
        assert what.endswith("receiver listens to before_task_publish")
        assert not only_observers(hooks(app, WheelScheduler(app, lazy=True), "lanes.check"))
    finally:
        before_task_publish.disconnect(receiver, sender="lanes.check")
    assert guard() == before


@pytest.mark.parametrize(
    ("conf", "reason"),
    [
        ({"task_always_eager": True}, "task_always_eager"),
        ({"task_send_sent_event": True}, "task_send_sent_event"),
        ({"task_protocol": 1}, "task_protocol is 1"),
        ({"task_routes": (lambda *_args, **_kwargs: None,)}, f"has a router of its own ({__name__}.<lambda>)"),
    ],
)
def test_settings_for_which_celery_has_to_run(conf: dict[str, Any], reason: str) -> None:
    (only,) = configuration_reasons(make_app("memory://", **conf))
    assert reason in only


def test_entries_that_need_celery(app: Celery) -> None:
    class Shadowed(Task):
        def shadow_name(self, args: Any, kwargs: Any, options: Any) -> str:
            return "x"

    @app.task(name="lanes.shadowed", base=Shadowed, shared=False)
    def shadowed() -> None: ...

    assert found(app, "lanes.shadowed") == ["shadowed.shadow_name is overridden"]
    assert entry_reasons(app, entry(app, "lanes.shadowed")) == []
    assert "BeatLazyFunc" in entry_reasons(app, entry(app, args=[BeatLazyFunc(int)]))[0]
    assert "'countdown'" in entry_reasons(app, entry(app, countdown=3))[0]


def test_all_hooks_are_those_of_every_task(app: Celery) -> None:
    class Sends(Task):
        def apply_async(self, *args: Any, **kwargs: Any) -> Any: ...

    @app.task(name="lanes.sends", base=Sends, shared=False)
    def sends() -> None: ...

    def receiver(**_kwargs: Any) -> None: ...

    def everywhere(**_kwargs: Any) -> None: ...

    before_task_publish.connect(receiver, sender="lanes.nobody_has_it")
    before_task_publish.connect(everywhere)
    try:
        what = [hook.what for hook in all_hooks(app, WheelScheduler(app, lazy=True))]
    finally:
        before_task_publish.disconnect(receiver, sender="lanes.nobody_has_it")
        before_task_publish.disconnect(everywhere)
    assert what[0] == "sends.apply_async is overridden"
    assert what[1].endswith("receiver listens to before_task_publish of lanes.nobody_has_it")
    assert what[2].endswith("everywhere listens to before_task_publish")
    assert len(what) == 3


def test_traces_are_made_of_the_run_and_never_shorter() -> None:
    ids, nonces = rows_of([b"9c0d6a12-0000-5000-8000-000000000001"]), rows_of([b"0123456789abcdef" * 2])
    traces = new_traces(ids, nonces, b"\x01\x00\x00\x00", 1_764_000_000.5)
    assert traces.traces.tobytes() == b"9c0d6a12000050008000000000000001"
    assert traces.spans.tobytes() == b"0123456789abcdef"
    assert traces.chances.tobytes() == b"0.000001"
    assert len(repr(traces.queued_at_s)) == 17
    assert traces.started_at == b"1764000000.500000000"


def test_sentry_checks_in_as_its_own_code_decides(app: Celery) -> None:
    """Every pair of name and schedule that Sentry itself would check in for is found; those it never would are not."""
    from sentry_sdk.integrations.celery import beat
    from sentry_sdk.utils import match_regex_list

    patterns = ["nightly.*", "exact$", "other"]
    names = ["nightly-1", "not nightly", "exact", "exactly", "another", "plain"]
    for interval_ms in (0, 30_000, 59_999, 60_000, 90_000, 3_600_000):
        every = schedule(interval_ms / 1000, app=app) if interval_ms else crontab(app=app)
        supported = bool(beat._get_monitor_config(every, app, "x"))
        ours = CheckIns(tuple(patterns)).of(names, np.full(len(names), interval_ms)).tolist()
        theirs = [supported and not match_regex_list(name, patterns) for name in names]
        assert [one for one, other in zip(ours, theirs, strict=True) if other and not one] == []
        assert ours == theirs or interval_ms == 90_000, "leaving is always right, only slower"
    assert check_ins() is None
