"""The contract of ``celery.beat.Scheduler`` that Celery's service, its command line and extensions rely on."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import uuid
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry, Scheduler, Service
from celery.schedules import BaseSchedule, crontab, schedule
from celery.signals import beat_embedded_init
from kombu import Queue

from celery_wheelbeat import run_id
from celery_wheelbeat.beat import loading
from celery_wheelbeat.beat.scheduler import WheelScheduler
from celery_wheelbeat.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from pathlib import Path

    MakeScheduler = Callable[..., WheelScheduler]

PATIENCE_S = 120


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("contract", broker="memory://", set_as_current=False)
    app.conf.update(wheelbeat_tick=0.1, wheelbeat_namespace="tests")

    @app.task(name="contract.note", shared=False)
    def note(*args: Any, **kwargs: Any) -> None: ...

    sent(app)  # the memory transport is one for the whole process
    yield app
    app.close()


@pytest.fixture
def make(app: Celery, tmp_path: Path) -> Iterator[MakeScheduler]:
    made: list[WheelScheduler] = []

    def make(cls: type[WheelScheduler] = WheelScheduler, **keywords: Any) -> WheelScheduler:
        keywords.setdefault("schedule_filename", str(tmp_path / "schedule"))
        made.append(cls(app=app, **keywords))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()


def sent(app: Celery) -> list[Any]:
    with app.connection_for_read() as connection:
        queue = Queue("celery")(connection.default_channel)
        queue.declare()
        found = []
        while (message := queue.get(no_ack=True)) is not None:
            found.append(message)
        return found


def tick_until(scheduler: WheelScheduler, condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        assert 0 <= scheduler.tick() <= scheduler.max_interval
        if condition():
            return
    raise AssertionError(f"{PATIENCE_S} s were not enough")


def every(seconds: float, **more: Any) -> dict[str, Any]:
    return {"task": "contract.note", "schedule": seconds, **more}


def test_it_is_found_by_its_short_name(app: Celery) -> None:
    service = Service(app, scheduler_cls="wheelbeat")
    assert type(service.get_scheduler(lazy=True)) is WheelScheduler


@pytest.mark.parametrize(
    ("given", "configured", "expected"), [(None, 0, 5), (0, 0, 5), (0, 7, 7), (3, 7, 3), (1, 0, 1)]
)
def test_max_interval_goes_by_truth(
    app: Celery, make: MakeScheduler, given: int | None, configured: int, expected: int
) -> None:
    app.conf.beat_max_loop_interval = configured
    assert make(max_interval=given).max_interval == expected


def test_unknown_keywords_are_accepted(make: MakeScheduler) -> None:
    scheduler = make(sync_every_tasks=3, lock_key="of another scheduler")
    assert scheduler.sync_every_tasks == 3


@pytest.mark.parametrize("lazy", [True, False])
def test_neither_constructor_nor_banner_reaches_out(
    app: Celery, make: MakeScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lazy: bool
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("something connects")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    app.conf.broker_url = "redis://127.0.0.1:9/0"
    app.conf.wheelbeat_database_url = "postgresql://127.0.0.1:9/nowhere"
    app.conf.beat_schedule = {"a": every(1)}
    before = set(threading.enumerate())
    scheduler = make(lazy=lazy)
    lines = scheduler.info.splitlines()
    assert all(line.startswith("    . ") and " -> " in line for line in lines)
    assert "    . source -> beat_schedule and monitors in postgresql" in lines
    assert set(threading.enumerate()) == before
    assert list(tmp_path.iterdir()) == []
    assert list(scheduler.schedule) == ([] if lazy else ["a", "celery.backend_cleanup"])


@pytest.mark.timeout(200)
def test_a_signal_in_the_constructor_ends_the_start(make: MakeScheduler) -> None:
    """The handler of Celery then constructs a scheduler itself, and closes that."""

    class Interrupted(WheelScheduler):
        depth = 0

        def setup_schedule(self) -> None:
            type(self).depth += 1
            if self.depth == 1:
                with beat_embedded_init.lock:
                    make(Interrupted).close()
                    raise SystemExit
            super().setup_schedule()

    with pytest.raises(SystemExit):
        make(Interrupted)
    assert Interrupted.depth == 2


def test_a_beat_inside_a_worker_knows_it(app: Celery) -> None:
    alone, inside, other = (Service(app, scheduler_cls=cls) for cls in (WheelScheduler, WheelScheduler, Scheduler))
    beat_embedded_init.send(sender=inside)
    beat_embedded_init.send(sender=other)
    assert (alone.scheduler._embedded, inside.scheduler._embedded) == (False, True)


@pytest.mark.parametrize(
    ("embedded", "expected"), [(False, ["prepare", "settle"]), (True, [])], ids=["standalone", "inside a worker"]
)
def test_only_a_standalone_beat_tunes_the_memory_of_its_process(
    make: MakeScheduler, monkeypatch: pytest.MonkeyPatch, embedded: bool, expected: list[str]
) -> None:
    calls: list[str] = []
    for name in ("prepare", "settle"):
        monkeypatch.setattr(loading, name, lambda name=name: calls.append(name))
    scheduler = make()
    scheduler._embedded = embedded
    tick_until(scheduler, lambda: scheduler._beat is not None and scheduler._beat.startup.state == "running")
    scheduler.tick()
    assert calls == expected


def test_the_signals_of_a_service_are_guarded_until_it_has_ended(app: Celery) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    found: list[object] = []

    def handle(*_: object) -> None:
        found.append(service.scheduler._in_tick)
        raise SystemExit

    class Interrupted(WheelScheduler):
        def should_sync(self) -> bool:
            for _ in range(2):
                with suppress(SystemExit):
                    signal.raise_signal(signal.SIGTERM)
            return False

    service = Service(app, scheduler_cls=Interrupted)
    signal.signal(signal.SIGTERM, handle)
    try:
        service.start()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert found == [True]
    assert service.scheduler._beat is None


def test_a_wrong_setting_stops_the_start(app: Celery, make: MakeScheduler) -> None:
    app.conf.wheelbeat_tik = 1
    with pytest.raises(InvalidSetting, match="wheelbeat_tik"):
        make()


def test_configuration_is_merged_and_unchanged_entries_keep_their_objects(app: Celery, make: MakeScheduler) -> None:
    app.conf.beat_schedule = {"stays": every(1), "changes": every(1), "leaves": every(1)}
    scheduler = make()
    stays = scheduler.schedule["stays"]
    stays.options["queue"] = "mine"
    scheduler.add(name="added", task="contract.note", schedule=1)
    scheduler.merge_inplace({"stays": every(1), "changes": every(2), "comes": every(3)})
    assert sorted(scheduler.schedule) == ["added", "celery.backend_cleanup", "changes", "comes", "stays"]
    assert scheduler.schedule["stays"] is stays
    assert stays.options == {"queue": "mine"}
    assert scheduler.schedule["changes"].schedule.seconds == 2


class _Unequal:
    def __eq__(self, other: object) -> bool:
        raise ValueError("no comparison")

    __hash__ = None  # type: ignore[assignment]


def test_what_is_no_entry_is_left_out_and_reported(app: Celery, make: MakeScheduler) -> None:
    app.conf.beat_schedule = {
        "none": None,
        "number": 5,
        "list": [1],
        "key": {"task": "contract.note", "schedule": 1, "colour": "red"},
        "odd": every(3600, args=(_Unequal(),)),
        "good": every(3600),
    }
    scheduler = make()
    tick_until(scheduler, lambda: scheduler._beat and scheduler._beat.entries.in_force.ids())
    refused = scheduler._beat.entries.in_force.refused
    assert {name: str(problem)[:17] for name, problem in refused.items()} == dict.fromkeys(
        ("none", "number", "list", "key"), "entry: TypeError:"
    )
    assert {"odd", "good", *refused} & set(scheduler.schedule.data) == {"odd", "good"}
    app.conf.beat_schedule = {**app.conf.beat_schedule, "none": every(3600)}
    scheduler.merge_inplace(app.conf.beat_schedule)
    scheduler.tick()
    assert "none" not in refused
    assert "number" in refused


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (every("every minute"), "schedule: 'every minute' (str): expected a number of seconds"),  # type: ignore[arg-type]
        (every(-3.0), "schedule: interval of -3.0 s: expected more than 0 s"),
        (every(1, kwargs=[1]), "kwargs: [1] (list): expected a dict"),
        ({"schedule": 1}, "task: None: expected the name of a task"),
    ],
)
def test_a_broken_entry_is_reported_once_in_words(
    app: Celery, make: MakeScheduler, caplog: pytest.LogCaptureFixture, given: dict[str, Any], reason: str
) -> None:
    app.conf.beat_schedule = {"bad": given, "good": every(0.1)}
    scheduler = make()
    messages: list[Any] = []
    tick_until(scheduler, lambda: messages.extend(sent(app)) or len(messages) > 2)
    (line,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert line.startswith(f"beat: Entry 'bad' of beat_schedule is left out: {reason}")
    assert "Message Error" not in caplog.text


@pytest.mark.parametrize(("backend", "installed"), [("disabled://", True), ("cache+memory://", False)])
def test_the_default_entry_is_installed_as_persistent_scheduler_does(
    app: Celery, make: MakeScheduler, backend: str, installed: bool
) -> None:
    app.conf.result_backend = backend
    assert ("celery.backend_cleanup" in make().schedule) is installed


def test_an_entry_of_that_name_replaces_the_default(app: Celery, make: MakeScheduler) -> None:
    app.conf.beat_schedule = {"celery.backend_cleanup": every(9)}
    assert make().schedule["celery.backend_cleanup"].task == "contract.note"


def test_entries_are_of_the_schedulers_entry_class(app: Celery, make: MakeScheduler) -> None:
    class Mine(ScheduleEntry):
        pass

    class Scheduler(WheelScheduler):
        Entry = Mine

        def merge_inplace(self, b: Any) -> None:
            super().merge_inplace({f"{name} of tenant": entry for name, entry in b.items()})

    app.conf.beat_schedule = {"a": every(1)}
    scheduler = make(Scheduler)
    assert "a of tenant" in scheduler.schedule
    assert {type(entry) for entry in scheduler.schedule.values()} == {Mine}


def test_schedule_can_be_replaced_and_is_the_data(app: Celery, make: MakeScheduler) -> None:
    scheduler = make(schedule={"a": ScheduleEntry(name="a", task="contract.note", schedule=1, app=app)}, lazy=True)
    assert list(scheduler.schedule) == list(scheduler.data) == ["a"]
    scheduler.schedule = {}
    assert dict(scheduler.schedule) == scheduler.data == {}
    scheduler.schedule["b"] = ScheduleEntry(name="b", task="contract.note", schedule=1, app=app)
    assert list(scheduler.data) == ["b"]
    del scheduler.schedule["b"]
    with pytest.raises(KeyError, match="b"):
        scheduler.schedule["b"]


def test_due_entries_are_sent_with_computed_ids_and_changed_options(app: Celery, make: MakeScheduler) -> None:
    app.conf.beat_schedule = {"a": every(0.5, args=(1,)), "b": every(0.5, options={"headers": {"x": 1}})}
    scheduler = make()
    scheduler.schedule["a"].options.setdefault("headers", {})["seen"] = "yes"
    messages: dict[str, Any] = {}

    def both() -> bool:
        messages.update({message.headers["periodic_task_name"]: message for message in sent(app)})
        return len(messages) == 2

    tick_until(scheduler, both)
    headers = messages["a"].headers
    assert headers["seen"] == "yes"
    assert headers["id"] == run_id("entry:a", headers["wheelbeat_fire_ms"], "tests")
    assert json.loads(messages["a"].body)[0] == [1]
    assert messages["b"].headers["x"] == 1
    assert scheduler.schedule["b"].options == {"headers": {"x": 1}}


def test_an_entry_added_while_it_runs_is_sent_and_a_removed_one_is_not(app: Celery, make: MakeScheduler) -> None:
    app.conf.beat_schedule = {"a": every(0.2)}
    scheduler = make()
    tick_until(scheduler, lambda: sent(app))
    scheduler.add(name="later", task="contract.note", schedule=0.2)
    del scheduler.schedule["a"]
    scheduler.tick()
    assert scheduler._beat is not None
    removed_ms = scheduler._beat.engine.cursor_ms
    last_ms = {"a": 0, "later": 0}

    def later_was_sent_long_after_that() -> bool:
        for message in sent(app):
            last_ms[message.headers["periodic_task_name"]] = message.headers["wheelbeat_fire_ms"]
        return last_ms["later"] > removed_ms + 400

    tick_until(scheduler, later_was_sent_long_after_that)
    assert last_ms["a"] <= removed_ms, "what was on its way is sent, and nothing that came after"


def intervals(scheduler: WheelScheduler) -> dict[str, int]:
    """Name → interval in ms, as the engine has them now."""
    assert scheduler._beat is not None
    engine, entries = scheduler._beat.engine, scheduler._beat.entries.in_force
    found = {name: engine.schedule_of(entries.id_of(name)) for name in entries.marks()}
    return {name: schedule.base.interval_ms for name, schedule in found.items() if schedule is not None}


def test_what_is_replaced_while_it_runs_is_followed(app: Celery, make: MakeScheduler) -> None:
    app.conf.result_expires = None
    app.conf.beat_schedule = {"a": every(60), "b": every(60)}
    scheduler = make()
    tick_until(scheduler, lambda: scheduler._beat and intervals(scheduler) == {"a": 60_000, "b": 60_000})
    scheduler.schedule["a"].schedule = schedule(timedelta(hours=1))
    tick_until(scheduler, lambda: intervals(scheduler)["a"] == 3_600_000)
    scheduler.schedule["b"].update(scheduler.Entry(name="b", task="contract.note", schedule=7.0, app=app))
    tick_until(scheduler, lambda: intervals(scheduler)["b"] == 7_000)
    mine = {"c": scheduler.Entry(name="c", task="contract.note", schedule=5.0, app=app)}
    scheduler.schedule = mine
    tick_until(scheduler, lambda: intervals(scheduler) == {"c": 5_000})
    mine["d"] = scheduler.Entry(name="d", task="contract.note", schedule=9.0, app=app)
    tick_until(scheduler, lambda: intervals(scheduler) == {"c": 5_000, "d": 9_000})
    mine.clear()
    tick_until(scheduler, lambda: intervals(scheduler) == {})
    assert scheduler._beat is not None
    assert scheduler._beat.entries.view is scheduler.schedule


def test_garbage_in_the_schedule_is_refused_and_the_others_continue(app: Celery, make: MakeScheduler) -> None:
    app.conf.beat_schedule = {"good": every(0.1)}
    scheduler = make()
    tick_until(scheduler, lambda: sent(app))
    scheduler.schedule["number"] = 5
    scheduler.schedule[7] = scheduler.schedule["good"]  # type: ignore[index]
    scheduler.data["none"] = None
    tick_until(scheduler, lambda: len(scheduler._beat.entries.in_force.refused) == 3)  # type: ignore[union-attr]
    sent(app)
    tick_until(scheduler, lambda: len(sent(app)))


def test_entries_may_come_and_go_in_any_thread(app: Celery, make: MakeScheduler) -> None:
    app.conf.result_expires = None
    app.conf.beat_schedule = {"good": every(0.1)}
    scheduler = make()
    tick_until(scheduler, lambda: sent(app))
    over = threading.Event()

    def churn() -> None:
        number = 0
        while not over.is_set():
            number += 1
            scheduler.add(name=f"n{number % 50}", task="contract.note", schedule=0.1 + number % 3)
            scheduler.schedule.pop(f"n{(number * 7) % 50}", None)

    threads = [threading.Thread(target=churn) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60):
            scheduler.tick()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert scheduler._beat is not None
    tick_until(scheduler, lambda: set(intervals(scheduler)) == set(scheduler.data))
    sent(app)
    tick_until(scheduler, lambda: any(m.headers["periodic_task_name"] == "good" for m in sent(app)))
    ledger, dispatcher = scheduler._beat.engine.ledger, scheduler._beat.dispatcher
    assert ledger.skipped["error"] == 0
    assert dispatcher.quarantined == {}
    assert ledger.difference(dispatcher.pending) == 0


def test_overrides_that_are_never_called_are_named_at_the_start(
    app: Celery, make: MakeScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    class Vetoing(ScheduleEntry):
        def is_due(self) -> Any:
            raise AssertionError("asked")

        def _next_instance(self, last_run_at: Any = None) -> Any:
            raise AssertionError("asked")

        __next__ = next = _next_instance

    class Mine(WheelScheduler):
        Entry = Vetoing

        def is_due(self, entry: Any) -> Any:
            raise AssertionError("asked")

        def reserve(self, entry: Any) -> Any:
            raise AssertionError("asked")

        def apply_entry(self, entry: Any, producer: Any = None) -> None:
            super().apply_entry(entry, producer=producer)

    app.conf.beat_schedule = {"a": every(0.1)}
    tick_until(make(Mine), lambda: sent(app))
    (line,) = [record.getMessage() for record in caplog.records if "Never called" in record.getMessage()]
    assert "Mine.is_due, Mine.reserve, Vetoing.is_due, Vetoing._next_instance, Vetoing.next, Vetoing.__next__." in line


def test_nothing_is_named_where_nothing_is_overridden(
    app: Celery, make: MakeScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    class Tenants(WheelScheduler):
        def apply_entry(self, entry: Any, producer: Any = None) -> None:
            super().apply_entry(entry, producer=producer)

    app.conf.beat_schedule = {"a": every(0.1)}
    tick_until(make(Tenants), lambda: sent(app))
    assert "Never called" not in caplog.text


def test_a_base_exception_of_user_code_comes_out_of_the_tick(app: Celery, make: MakeScheduler) -> None:
    ending = SystemExit(3)

    def end() -> None:
        raise ending

    app.conf.beat_schedule = {"ends": every(0.3, args=(BeatLazyFunc(end),)), "good": every(0.3, args=(1,))}
    scheduler = make()
    with pytest.raises(SystemExit) as raised:
        tick_until(scheduler, lambda: False)
    assert raised.value is ending
    assert scheduler._beat is not None
    ledger, dispatcher = scheduler._beat.engine.ledger, scheduler._beat.dispatcher
    scheduler.close()
    assert ledger.skipped["error"] >= 1  # a slow machine finds several runs due at once
    assert ledger.difference(dispatcher.pending) == 0


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "ä" * 300, " ", "%s %d", "{0}"], ids=repr)
def test_a_name_may_be_any_text(app: Celery, make: MakeScheduler, name: str) -> None:
    app.conf.beat_schedule = {name: every(0.1)}
    messages: list[Any] = []
    tick_until(make(), lambda: messages.extend(sent(app)) or messages)
    assert messages[0].headers["periodic_task_name"] == name


def test_extensions_that_send_several_messages_get_numbered_ids(app: Celery, make: MakeScheduler) -> None:
    class Tenants(WheelScheduler):
        def apply_entry(self, entry: Any, producer: Any = None) -> None:
            for _tenant in "abc":
                self.apply_async(entry, producer=producer, advance=False)

    app.conf.beat_schedule = {"a": every(0.5)}
    messages: list[Any] = []
    tick_until(make(Tenants), lambda: messages.extend(sent(app)) or messages)
    fire_ms = messages[0].headers["wheelbeat_fire_ms"]
    expected = [run_id("entry:a", fire_ms, "tests", suffix) for suffix in ("", "#2", "#3")]
    assert [message.headers["id"] for message in messages[:3]] == expected
    assert [str(uuid.UUID(task_id)) for task_id in expected] == expected


def test_a_custom_schedule_and_a_lazy_argument_are_honoured(app: Celery, make: MakeScheduler) -> None:
    class Odd(schedule):
        def is_due(self, last_run_at: Any) -> Any:
            return True, 0.1

    asked: list[int] = []
    lazy = BeatLazyFunc(lambda: asked.append(1) or len(asked))
    app.conf.beat_schedule = {"odd": every(Odd(1), args=(lazy,))}
    arguments: list[Any] = []
    scheduler = make()
    tick_until(scheduler, lambda: arguments.extend(json.loads(m.body)[0] for m in sent(app)) or len(arguments) > 1)
    assert arguments[:2] == [[1], [2]]


class _Hostile(BaseSchedule):
    """Says when it is due as often as it is asked; cannot say what it is, and breaks in time."""

    asked = 0

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        self.asked += 1
        raise RuntimeError(f"asked {self.asked} times")

    def __repr__(self) -> str:
        raise ValueError("no name")

    __str__ = __repr__


def test_a_hostile_schedule_is_reported_once_and_never_stops_the_beat(
    app: Celery, make: MakeScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = _Hostile(app=app)
    app.conf.beat_schedule = {"hostile": {"task": "contract.note", "schedule": hostile}, "good": every(0.1)}
    scheduler = make()
    tick_until(scheduler, lambda: len(sent(app)) and hostile.asked)
    for _ in range(20):
        scheduler.tick()
    shown = scheduler._supervision.observe(scheduler._beat.clock.wall_ms()).schedule
    assert {state.name: state.schedule for state in shown}["hostile"] == "_Hostile"
    assert caplog.text.count("The schedule of hostile failed") == hostile.asked == 1


def test_close_in_the_middle_of_a_tick_only_leaves_a_note(app: Celery, make: MakeScheduler, tmp_path: Path) -> None:
    closed_inside: list[bool] = []

    class Interrupted(WheelScheduler):
        armed = False

        def should_sync(self) -> bool:
            if self.armed and self._in_tick and not closed_inside:
                self.close()  # as the signal handler does
                closed_inside.append(self._beat is not None)
                raise SystemExit
            return False

    app.conf.beat_schedule = {"a": every(60)}
    scheduler = make(Interrupted)
    tick_until(scheduler, (tmp_path / "schedule.wheelbeat").exists)
    scheduler.armed = True
    with pytest.raises(SystemExit):
        scheduler.tick()
    assert closed_inside == [True]
    scheduler.close()
    assert scheduler._beat is None
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wheelbeat")]
    status = json.loads((tmp_path / "schedule.wheelbeat").read_text())["status"]
    assert status["state"] == "stopped"
    scheduler.close()


@pytest.mark.parametrize("begun", [False, True])
def test_a_closed_scheduler_ends_the_loop_that_ticks(make: MakeScheduler, begun: bool) -> None:
    """The handler's own ``SystemExit`` may have been lost, wherever it was raised."""
    scheduler = make()
    if begun:
        scheduler.tick()
    scheduler.close()
    for _ in range(2):
        with pytest.raises(SystemExit):
            scheduler.tick()
    assert scheduler._beat is None


def test_a_tick_ends_by_itself_where_the_exception_of_the_handler_is_lost(app: Celery, make: MakeScheduler) -> None:
    lost: list[bool] = []

    class Interrupted(WheelScheduler):
        def should_sync(self) -> bool:
            with suppress(SystemExit):
                self.close()
                lost.append(self._in_tick)
                raise SystemExit
            return False

    app.conf.beat_schedule = {"a": every(60)}
    with pytest.raises(SystemExit):
        make(Interrupted).tick()
    assert lost == [True]


def test_close_before_the_first_tick_does_nothing(make: MakeScheduler, tmp_path: Path) -> None:
    make().close()
    assert list(tmp_path.iterdir()) == []


def test_no_wait_of_a_stop_is_longer_than_three_seconds(app: Celery, make: MakeScheduler) -> None:
    """Whatever hangs: each thread is joined with a limit."""
    scheduler = make()
    scheduler.tick()
    assert scheduler._beat is not None
    waits: list[float] = []
    for part in (scheduler._beat.dispatcher, scheduler._beat.sources):

        def close(limit_s: float, *, close: Callable[[float], Any] = part.close) -> Any:
            waits.append(limit_s)
            return close(limit_s)

        part.close = close  # type: ignore[method-assign]
    scheduler.close()
    assert len(waits) == 2
    assert sum(waits) <= 3


def test_another_process_starts_again(make: MakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make()
    scheduler.tick()
    first, supervision = scheduler._beat, scheduler._supervision
    assert first is not None
    assert supervision is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: first.pid + 1)
        scheduler.tick()
        assert scheduler._beat is not first
        assert scheduler._beat is not None
        scheduler.close()
    first.dispatcher.close(5)
    first.sources.close(5)
    supervision.send_log.remove()


def test_entries_show_real_celery_schedules(app: Celery, make: MakeScheduler) -> None:
    app.conf.beat_schedule = {"a": every(crontab(minute=5)), "b": every(30)}
    schedule = make().schedule
    assert type(schedule["a"].schedule) is crontab
    assert schedule["b"].schedule.seconds == 30
    for entry in schedule.values():
        assert entry.name
        assert entry.task
        assert entry.last_run_at
        assert entry.total_run_count == 0


def test_sync_costs_nothing_and_never_raises(make: MakeScheduler) -> None:
    scheduler = make()
    scheduler._do_sync()
    assert not scheduler.should_sync()
    assert scheduler.reserve(ScheduleEntry(name="a", task="t", schedule=1, app=scheduler.app)).total_run_count == 1
