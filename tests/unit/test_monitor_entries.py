"""Monitors as Celery's entries: real schedule objects, private options, what was handed out keeps counting."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule

from celery_wheelbeat.beat.schedule_view import MonitorEntries, ScheduleView, private_entry
from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.definitions import ChangeBatch
from celery_wheelbeat.jobs.rows import MonitorRow
from celery_wheelbeat.schedules.cron import Cron, CronTable
from celery_wheelbeat.schedules.intervals import Bounded, Interval, Once
from celery_wheelbeat.sources.beat_schedule.celery_objects import ComputedSchedule, celery_schedule_of

if TYPE_CHECKING:
    from collections.abc import Iterator

START_MS = 1_700_000_000_000
ROW = MonitorRow(
    id=1, name="a", task="t", args='["x"]', kwargs='{"k": 1}', interval_ms=60_000, cron=None, timezone="UTC",
    day_rule="and", once_at_ms=None, solar_event=None, solar_latitude=None, solar_longitude=None, jitter_s=0,
    start_at_ms=None, end_at_ms=None, one_off=False, queue="q", exchange=None, routing_key=None, priority=5,
    headers='{"h": "v"}', expires_s=None, expires_next=False, options=None, misfire="auto", overlap="allow",
    enabled=True, incident_interval_ms=None, incident_until_ms=None, effective_from_ms=0, finished_at_ms=None,
)  # fmt: skip


class Bench:
    def __init__(self) -> None:
        self.crons = CronTable()
        self.engine = Engine(EngineConfig(shards=2), self.crons, Ledger())
        self.engine.start(START_MS)
        app = Celery("monitors", broker="memory://", set_as_current=False)
        self.entries = MonitorEntries(app, ScheduleEntry, self.engine)

    def define(self, *rows: MonitorRow) -> None:
        batch = compile_rows(rows, crons=self.crons).batch
        changes = ChangeBatch(batch, np.empty(0, np.int64))
        self.engine.apply(changes)
        self.entries.redefined(changes)

    def entry(self, job_id: int, fire_ms: int = START_MS) -> Any:
        (view,) = self.engine.lookup([job_id])
        assert view is not None
        return self.entries.entry_for(view, fire_ms)


@pytest.fixture
def short_turns() -> Iterator[None]:
    """Have threads interrupt each other as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_run_gets_an_entry_of_its_own(bench: Bench) -> None:
    bench.define(ROW)
    first, second = bench.entry(1), bench.entry(1)
    assert (first.name, first.task, first.args, first.kwargs) == ("a", "t", ["x"], {"k": 1})
    assert first.options == {"queue": "q", "priority": 5, "headers": {"h": "v"}}
    assert first.last_run_at == datetime.fromtimestamp(START_MS / 1000, UTC)
    first.options["headers"]["written"] = first.options["more"] = 1
    assert second.options == bench.entry(1).options == {"queue": "q", "priority": 5, "headers": {"h": "v"}}


def test_a_run_may_expire_at_the_following_fire_time(bench: Bench) -> None:
    bench.define(ROW._replace(expires_next=True))
    fire_ms = START_MS - START_MS % 60_000
    assert bench.entry(1, fire_ms).options["expires"] == datetime.fromtimestamp(fire_ms / 1000, UTC) + timedelta(
        minutes=1
    )


def test_options_changed_by_name_affect_later_sends_until_the_definition_changes(bench: Bench) -> None:
    bench.define(ROW, ROW._replace(id=2, name="b"))
    bench.entries.find("a").options["headers"]["mine"] = 1
    assert bench.entry(1).options["headers"] == {"h": "v", "mine": 1}
    assert bench.entry(2).options["headers"] == {"h": "v"}
    bench.define(ROW._replace(queue="other"))
    assert bench.entry(1).options == {"queue": "other", "priority": 5, "headers": {"h": "v"}}


def test_only_changed_entries_are_remembered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_wheelbeat.beat.schedule_view.REMEMBERED_MAX", 3)
    bench.define(*(ROW._replace(id=number, name=f"m{number}") for number in range(1, 9)))
    bench.entries.find("m2").options["queue"] = "mine"
    for number in range(1, 9):
        bench.entries.find(f"m{number}")
    assert len(bench.entries._handed_out) <= 4
    assert bench.entry(2).options["queue"] == "mine"


def test_the_view_shows_entries_and_enabled_monitors(bench: Bench) -> None:
    bench.define(ROW, ROW._replace(id=2, name="paused", enabled=False), ROW._replace(id=3, name="c"))
    mine = ScheduleEntry(name="mine", task="t", schedule=1, app=Celery(set_as_current=False))
    view = ScheduleView({"mine": mine})
    assert list(view) == ["mine"]
    view.monitors = bench.entries
    assert sorted(view) == ["a", "c", "mine"]
    assert len(view) == 3
    assert view["a"].task == "t"
    assert "paused" not in view
    assert view.version == 0


def test_a_private_entry_leaves_the_users_alone() -> None:
    entry = ScheduleEntry(
        name="e", task="t", schedule=1, options={"headers": {"h": 1}, "queue": "q"}, app=Celery(set_as_current=False)
    )
    private = private_entry(entry, START_MS)
    private.options["headers"]["x"] = private.options["more"] = 1
    assert entry.options == {"headers": {"h": 1}, "queue": "q"}
    assert private.schedule is entry.schedule


def test_schedules_are_celerys_own_where_they_mean_the_same() -> None:
    every = celery_schedule_of(Bounded(Interval(90)))
    assert type(every) is schedule
    assert every.seconds == 90
    noon = celery_schedule_of(Bounded(Cron("30 12 * * mon-fri", "Europe/Paris"), offset_ms=17_000))
    assert type(noon) is crontab
    assert (noon._orig_minute, noon._orig_hour, noon._orig_day_of_week) == ("30", "12", "mon-fri")
    assert str(noon.tz) == "Europe/Paris"


@pytest.mark.parametrize(
    "base", [Cron("0 0 L * *"), Cron("0 0 13 * fri", day_rule="or"), Cron("0 0 * * mon#2"), Once(START_MS)]
)
def test_other_schedules_are_computed(base: Any) -> None:
    found = celery_schedule_of(Bounded(base))
    assert type(found) is ComputedSchedule
    before = datetime.fromtimestamp(START_MS / 1000 - 86_400 * 40, UTC)
    assert found.is_due(before).is_due
    assert not found.is_due(datetime.now(UTC) + timedelta(days=400 if isinstance(base, Once) else 0)).is_due


def test_a_polled_schedule_is_never_due_by_itself() -> None:
    assert not celery_schedule_of(None).is_due(datetime.now(UTC)).is_due


def test_a_name_is_found_without_looking_at_every_job(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"probe {number}" for number in range(1, 12_001)]
    bench.define(*(ROW._replace(id=number, name=name) for number, name in enumerate(names, start=1)))
    bench.define(ROW._replace(id=11, name="renamed"), ROW._replace(id=12, name=names[11], enabled=False))
    looked_up: list[int] = []
    lookup = bench.engine.lookup

    def counted(ids: Any) -> Any:
        looked_up.extend(ids)
        return lookup(ids)

    monkeypatch.setattr(bench.engine, "lookup", counted)
    view = ScheduleView({})
    view.monitors = bench.entries
    assert [view[name].name for name in ("probe 1", "renamed", "probe 12000")] == ["probe 1", "renamed", "probe 12000"]
    for missing in ("probe 11", "probe 12", "probe", "\ud800", 5, None):
        assert missing not in view
    assert len(looked_up) <= 6


def test_names_may_be_looked_up_in_another_thread(bench: Bench, short_turns: None) -> None:
    """An override of ``apply_entry`` runs in the lane's thread, and may read ``scheduler.schedule``."""
    names = [f"job {number}" for number in range(1, 400)]
    bench.define(*(ROW._replace(id=number, name=name) for number, name in enumerate(names, 1)))
    found: list[Any] = []
    changes = ChangeBatch(compile_rows([], crons=bench.crons).batch, np.array([1], np.int64))
    reader = threading.Thread(target=lambda: found.extend(map(bench.entries.find, names)))
    reader.start()
    while reader.is_alive():
        bench.entries.handed_out()
        bench.entries.redefined(changes)
    reader.join()
    assert [entry.name for entry in found] == names
