"""Entries of ``beat_schedule`` as changes: ids, phases, what is refused, what a restart knows of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedule

from celery_wheelbeat.jobs import identity as runs
from celery_wheelbeat.jobs.definitions import Misfire, misfire_of
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.schedules.kinds import Kind
from celery_wheelbeat.sources.beat_schedule.celery_zones import timezone_of
from celery_wheelbeat.sources.beat_schedule.entries import Entries

if TYPE_CHECKING:
    from celery_wheelbeat.jobs.definitions import EntryMark

NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def app() -> Celery:
    return Celery("entries", broker="memory://", set_as_current=False)


def an_entry(app: Celery, name: str, schedule: Any = 10.0, task: Any = "a.task", **options: Any) -> ScheduleEntry:
    return ScheduleEntry(name=name, task=task, schedule=schedule, options=options, app=app)


def entries_of(app: Celery, stored: dict[str, EntryMark] | None = None) -> tuple[Entries, CronTable]:
    crons = CronTable()
    return Entries(timezone_of(app), crons, stored), crons


def test_an_interval_and_a_crontab_are_compiled(app: Celery) -> None:
    entries, crons = entries_of(app)
    changes = entries.changes(
        {"b": an_entry(app, "b", 90.0), "a": an_entry(app, "a", crontab(minute=5), "other.task")}, NOW_MS
    )
    batch = changes.upserts
    at = {name: int(batch.ids.searchsorted(entries.id_of(name))) for name in "ab"}
    assert sorted(batch.ids.tolist()) == batch.ids.tolist() == sorted(runs.entry_id(name) for name in "ab")
    assert [entries.name_of(job_id) for job_id in batch.ids.tolist()] == sorted("ab", key=runs.entry_id)
    assert batch.kind[at["b"]] == Kind.INTERVAL
    assert batch.interval_ms[at["b"]] == 90_000
    assert batch.offset_ms[at["b"]] == 1000 * (runs.fnv1a64(runs.entry_id("b").to_bytes(8, "little", signed=True)) % 90)
    assert batch.kind[at["a"]] == Kind.CRON
    assert batch.offset_ms[at["a"]] == 0
    hour_ms = 3_600_000
    assert crons.next_fire(int(batch.cron_index[at["a"]]), 0) == 5 * 60_000
    assert crons.next_fire(int(batch.cron_index[at["a"]]), hour_ms) == hour_ms + 5 * 60_000
    assert batch.route_at(at["a"]).task == "other.task"
    assert {misfire_of(int(flags)) for flags in batch.flags} == {Misfire.LATEST}
    assert batch.effective_from_ms.tolist() == [NOW_MS, NOW_MS]
    assert not len(changes.deleted_ids)


def test_what_has_not_changed_is_not_a_change_and_what_left_is_deleted(app: Celery) -> None:
    entries, _ = entries_of(app)
    given = {"a": an_entry(app, "a"), "b": an_entry(app, "b")}
    entries.changes(given, NOW_MS)
    again = entries.changes(given, NOW_MS + 1)
    assert len(again.upserts) == len(again.deleted_ids) == 0
    gone_id = entries.id_of("a")
    changes = entries.changes({"b": given["b"]}, NOW_MS + 2)
    assert changes.deleted_ids.tolist() == [gone_id]
    assert "a" not in entries
    assert len(entries) == 1


def test_a_collision_moves_the_id_and_not_the_phase(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "entry_id", lambda _: -(2**63))
    entries, _ = entries_of(app)
    changes = entries.changes({name: an_entry(app, name, 3600.0) for name in ("a", "b", "c")}, NOW_MS)
    assert sorted(entries.id_of(name) for name in "abc") == [-(2**63), -2, -1]
    assert len(set(changes.upserts.offset_ms.tolist())) == 1
    before = {name: entries.id_of(name) for name in "bc"}
    entries.changes({name: an_entry(app, name, 60.0) for name in ("b", "c")}, NOW_MS)
    assert {name: entries.id_of(name) for name in "bc"} == before


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"task": None}, "task: None: expected the name of a task"),
        ({"schedule": None}, "schedule: None (NoneType): expected a number of seconds, a timedelta or"),
        ({"schedule": -5.0}, "schedule: interval of -5.0 s: expected more than 0 s"),
        ({"schedule": 0}, "schedule: interval of 0.0 s: expected more than 0 s"),
        ({"args": 5}, "args: 5 (int): expected a list or a tuple"),
        ({"args": iter([1])}, "args: <list_iterato"),
        ({"kwargs": [1]}, "kwargs: [1] (list): expected a dict"),
        ({"options": [("queue", "a")]}, "options: [('queue', 'a')] (list): expected a dict"),
    ],
)
def test_a_broken_entry_is_refused_alone(app: Celery, broken: dict[str, Any], reason: str) -> None:
    entries, _ = entries_of(app)
    bad = an_entry(app, "bad", **{name: broken[name] for name in ("schedule", "task") if name in broken})
    vars(bad).update({name: value for name, value in broken.items() if name in ("args", "kwargs", "options")})
    changes = entries.changes({"bad": bad, "good": an_entry(app, "good")}, NOW_MS)
    assert changes.upserts.ids.tolist() == [entries.id_of("good")]
    assert str(entries.refused["bad"]).startswith(reason)
    entries.changes({"bad": an_entry(app, "bad"), "good": an_entry(app, "good")}, NOW_MS)
    assert entries.refused == {}
    assert "bad" in entries


class _Mute(schedule):
    def __repr__(self) -> str:
        raise ValueError("no repr")


@pytest.mark.parametrize(
    ("name", "every", "reason"),
    [
        (5, 10.0, "name: 5: expected a text"),
        (None, 10.0, "name: None: expected a text"),
        ("\ud800", 10.0, "name: contains a lone surrogate"),
        ("é" * 40_000, 10.0, "name: has 80,000 bytes, at most 65,535 are allowed"),
        ("mute", _Mute(-1), "schedule: interval of -1.0 s"),
    ],
)
def test_a_name_or_schedule_that_breaks_the_reader_is_refused_alone(
    app: Celery, name: Any, every: Any, reason: str
) -> None:
    entries, _ = entries_of(app)
    changes = entries.changes({name: an_entry(app, name, every), "good": an_entry(app, "good")}, NOW_MS)
    assert changes.upserts.ids.tolist() == [entries.id_of("good")]
    assert str(entries.refused[name]).startswith(reason)


class _Counted:
    """A value that is no mapping, and counts how often somebody looks at it."""

    looks = 0

    def __bool__(self) -> bool:
        self.looks += 1
        return True


def test_what_was_refused_is_looked_at_again_when_something_in_it_is_replaced(app: Celery) -> None:
    entries, _ = entries_of(app)
    entry, kwargs = an_entry(app, "a"), _Counted()
    entry.kwargs = kwargs
    for _ in range(5):
        entries.changes({"a": entry}, NOW_MS)
    assert kwargs.looks == 1
    assert list(entries.refused) == ["a"]
    entry.kwargs = {"k": 1}
    assert entries.changes({"a": entry}, NOW_MS).upserts.ids.tolist() == [entries.id_of("a")]
    assert entries.refused == {}


class _Raising:
    """An object whose every attribute raises."""

    def __getattr__(self, name: str) -> Any:
        raise OSError(name)

    def __repr__(self) -> str:
        raise OSError("repr")


@pytest.mark.parametrize(
    "thing", [5, None, "text", object(), {"task": "t"}, _Raising()], ids=lambda one: type(one).__name__
)
def test_what_is_no_entry_at_all_is_refused_alone(app: Celery, thing: Any) -> None:
    entries, _ = entries_of(app)
    changes = entries.changes({"bad": thing, "good": an_entry(app, "good")}, NOW_MS)
    assert changes.upserts.ids.tolist() == [entries.id_of("good")]
    assert str(entries.refused["bad"]).startswith("entry: ")


def test_replaced_parts_are_followed_and_nothing_else_is_a_change(app: Celery) -> None:
    entries, _ = entries_of(app)
    entry = an_entry(app, "a")
    entries.changes({"a": entry}, NOW_MS)
    entry.args, entry.kwargs, entry.options = (1,), {"k": 2}, {"queue": "q"}
    assert len(entries.changes({"a": entry}, NOW_MS).upserts) == 0
    entry.schedule = schedule(timedelta(seconds=7))
    assert entries.changes({"a": entry}, NOW_MS).upserts.interval_ms.tolist() == [7_000]
    entry.update(an_entry(app, "a", schedule=60.0, task="other"))
    changed = entries.changes({"a": entry}, NOW_MS).upserts
    assert changed.interval_ms.tolist() == [60_000]
    assert changed.route_at(0).task == "other"
    assert len(entries.changes({"a": entry}, NOW_MS).upserts) == 0


def test_an_entry_that_breaks_leaves_the_wheel(app: Celery) -> None:
    entries, _ = entries_of(app)
    entries.changes({"a": an_entry(app, "a")}, NOW_MS)
    job_id = entries.id_of("a")
    changes = entries.changes({"a": an_entry(app, "a", schedule=-1)}, NOW_MS)
    assert changes.deleted_ids.tolist() == [job_id]
    assert list(entries.refused) == ["a"]


def test_a_restart_knows_since_when_a_schedule_is_in_force(app: Celery) -> None:
    before, _ = entries_of(app)
    before.changes({"same": an_entry(app, "same", 60.0), "other": an_entry(app, "other", 60.0)}, NOW_MS)
    after, _ = entries_of(app, before.marks())
    later_ms = NOW_MS + 3_600_000
    after.changes(
        {
            "same": an_entry(app, "same", timedelta(minutes=1)),
            "other": an_entry(app, "other", 61.0),
            "new": an_entry(app, "new"),
        },
        later_ms,
    )
    assert {name: mark.effective_from_ms for name, mark in after.marks().items()} == {
        "same": NOW_MS,
        "other": later_ms,
        "new": later_ms,
    }


def test_an_entry_that_was_removed_and_comes_back_has_its_schedule_since_then(app: Celery) -> None:
    """Else a restart would count, or offer again, what fell due while there was no such entry."""
    before, _ = entries_of(app)
    before.changes({"a": an_entry(app, "a")}, NOW_MS)
    entries, _ = entries_of(app, before.marks())
    entries.changes({"a": an_entry(app, "a")}, NOW_MS + 1_000)
    assert entries.marks()["a"].effective_from_ms == NOW_MS
    entries.changes({}, NOW_MS + 2_000)
    entries.changes({"a": an_entry(app, "a")}, NOW_MS + 3_000)
    assert entries.marks()["a"].effective_from_ms == NOW_MS + 3_000


def test_a_custom_schedule_is_polled(app: Celery) -> None:
    class Odd(BaseSchedule):
        def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
            return True, 5.0

    entries, _ = entries_of(app)
    changes = entries.changes({"odd": an_entry(app, "odd", Odd(app=app))}, NOW_MS)
    job_id = entries.id_of("odd")
    assert changes.upserts.kind.tolist() == [Kind.POLLED]
    assert changes.upserts.polled[job_id].ask(NOW_MS + 1).fire_ms == NOW_MS


def test_the_apps_zone_is_that_of_its_crontabs() -> None:
    app = Celery("zone", broker="memory://", set_as_current=False)
    app.conf.timezone = "America/New_York"
    entries, crons = entries_of(app)
    batch = entries.changes({"noon": an_entry(app, "noon", crontab(minute=0, hour=12))}, NOW_MS).upserts
    fire_ms = crons.next_fire(int(batch.cron_index[0]), NOW_MS)
    assert fire_ms is not None
    assert datetime.fromtimestamp(fire_ms / 1000, UTC).hour == 17
