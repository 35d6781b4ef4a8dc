"""The tables of django-celery-beat and the keys of redbeat, taken over: both sides fire at the same instants."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery._state import _set_current_app, current_app
from celery.schedules import crontab, schedule
from django_site import rolled_back, site_database, with_app
from services import OWN_NAME, mysql_database_beside, postgres_database_beside

from celery_wheelbeat.fires import fires
from celery_wheelbeat.monitors import schedule_of

if TYPE_CHECKING:
    from collections.abc import Iterator

LAST = datetime(2026, 11, 28, 7, 13, 21, 345_000, tzinfo=UTC)
NOW = datetime(2026, 11, 30, 12, 0, 7, tzinfo=UTC)


def run(command: str, **options: Any) -> str:
    from django.core.management import call_command

    out = io.StringIO()
    call_command(command, stdout=out, stderr=out, **options)
    return out.getvalue()


@pytest.fixture
def app() -> Iterator[Celery]:
    """The current app, with one entry in its code."""
    former = current_app._get_current_object()
    app = Celery("site", broker="memory://", set_as_current=False)
    app.conf.beat_schedule = {"in the code": {"task": "t", "schedule": 60}}
    app.conf.timezone = "Europe/Berlin"
    app.set_current()
    yield app
    _set_current_app(former)
    app.close()


@pytest.fixture(scope="module")
def beside_dcb() -> Iterator[None]:
    """Let django-celery-beat be installed while this module's databases are migrated."""
    with with_app("django_celery_beat"):
        yield


@pytest.fixture(scope="module")
def sqlite_with_dcb(beside_dcb: None) -> Iterator[Any]:
    """A migrated SQLite database with the tables of both."""
    with site_database("sqlite:///:memory:") as connection:
        yield connection


@pytest.fixture(scope="module")
def postgres_with_dcb(beside_dcb: None, postgres_url: str) -> Iterator[Any]:
    """A migrated PostgreSQL database with the tables of both."""
    with postgres_database_beside(postgres_url, f"{OWN_NAME}_dcb") as url, site_database(url) as connection:
        yield connection


@pytest.fixture(scope="module")
def mysql_with_dcb(beside_dcb: None, mysql_url: str) -> Iterator[Any]:
    """A migrated MariaDB database with the tables of both."""
    with mysql_database_beside(mysql_url, f"{OWN_NAME}_dcb") as url, site_database(url) as connection:
        yield connection


@pytest.fixture(
    params=[
        "sqlite_with_dcb",
        pytest.param("postgres_with_dcb", marks=pytest.mark.postgres),
        pytest.param("mysql_with_dcb", marks=pytest.mark.mysql),
    ]
)
def dcb(request: pytest.FixtureRequest, app: Celery) -> Iterator[Any]:
    """The models of django-celery-beat, once per vendor; what the test writes is undone."""
    with rolled_back(request.getfixturevalue(request.param)):
        from django_celery_beat import models

        yield models


def crons(dcb: Any) -> dict[str, dict[str, Any]]:
    every = dcb.CrontabSchedule.objects.create
    return {
        "nightly": {"crontab": every(minute="30", hour="2", timezone="Europe/Berlin")},
        "both day fields": {"crontab": every(minute="0", hour="0", day_of_month="1-15", day_of_week="mon,fri")},
        "blanks": {"crontab": every(minute="0, 15 ,30", hour="*/4", timezone="Asia/Tokyo")},
        "sunday is 0": {"crontab": every(minute="5", hour="5", day_of_week="0")},
        "quarterly": {"crontab": every(minute="0", hour="12", day_of_month="1", month_of_year="*/3")},
        "wrapping": {"crontab": every(minute="0", hour="22-2")},
    }


def intervals(dcb: Any) -> dict[str, dict[str, Any]]:
    every = dcb.IntervalSchedule.objects.create
    return {
        "ten minutes": {"interval": every(every=10, period="minutes"), "last_run_at": LAST},
        "a week": {"interval": every(every=7, period="days"), "last_run_at": LAST},
        "half a second": {"interval": every(every=500_000, period="microseconds"), "last_run_at": LAST},
        "starts later": {
            "interval": every(every=1, period="hours"), "last_run_at": LAST, "start_time": NOW + timedelta(hours=5),
        },
    }  # fmt: skip


def next_of(task: Any, count: int) -> list[datetime]:
    """Ask the schedule of django-celery-beat for its next fires, run by run, as its scheduler does."""
    sched, found = task.schedule, []
    if isinstance(sched, crontab):
        at = NOW
        for _ in range(count):
            start, delta, _ = sched.remaining_delta(at)
            at = (start + delta).astimezone(UTC)
            found.append(at)
        return found
    assert isinstance(sched, schedule)
    at = task.start_time or task.last_run_at
    while len(found) < count:
        at = at if not found and task.start_time else at + sched.run_every
        if at > NOW:
            found.append(at)
    return found


def test_both_schedulers_fire_at_the_same_instants(dcb: Any) -> None:
    from django_wheelbeat.models import Monitor
    from django_wheelbeat.rows import row_of, to_datetime, to_ms

    for name, fields in {**crons(dcb), **intervals(dcb)}.items():
        dcb.PeriodicTask.objects.create(name=name, task="t", **fields)
    said = run("wheelbeat_import_celery_beat")
    assert "Imported: 10 new, 0 changed, 0 unchanged, 0 refused." in said, said
    for task in dcb.PeriodicTask.objects.all():
        row = row_of(Monitor.objects.get(name=task.name))
        ours = [to_datetime(ms) for ms in islice(fires(schedule_of(row), to_ms(NOW)), 10)]
        assert ours == next_of(task, 10), task.name
        assert (row.jitter_s, row.misfire, row.day_rule) == (0, "latest", "and")


def test_everything_that_a_task_says_is_kept(dcb: Any) -> None:
    from django_wheelbeat.models import Change, Monitor

    every = dcb.IntervalSchedule.objects.create(every=1, period="hours")
    clock = dcb.ClockedSchedule.objects.create(clocked_time=NOW + timedelta(days=1))
    sun = dcb.SolarSchedule.objects.create(event="sunset", latitude="52.5", longitude="13.4")
    make = dcb.PeriodicTask.objects.create
    make(
        name="full", task="shop.check", interval=every, args='[1, {"__type__": "x"}]', kwargs='{"url": "é"}', queue="q",
        routing_key="r", priority=7, headers='{"h": 1}', expire_seconds=90, one_off=True, enabled=False,
        description="why", start_time=NOW,
    )  # fmt: skip
    make(name="ends", task="t", interval=every, expires=NOW + timedelta(days=9), last_run_at=LAST)
    make(name="clocked", task="t", clocked=clock, one_off=True)
    make(name="sun", task="t", solar=sun)
    said = run("wheelbeat_import_celery_beat", reason="the move")
    full = Monitor.objects.get(name="full")
    assert (full.task, full.args, full.kwargs) == ("shop.check", '[1, {"__type__": "x"}]', '{"url": "é"}')
    assert (full.queue, full.routing_key, full.priority, full.headers) == ("q", "r", 7, '{"h": 1}')
    assert (full.expires_s, full.one_off, full.enabled, full.description) == (90.0, True, False, "why")
    assert full.start_at == NOW
    assert Monitor.objects.get(name="ends").end_at == NOW + timedelta(days=9)
    assert "Note: ends: ends at its expires" in said
    clocked = Monitor.objects.get(name="clocked")
    assert (clocked.once_at, clocked.one_off, clocked.start_at) == (NOW + timedelta(days=1), False, None)
    assert Monitor.objects.get(name="sun").solar_event == "sunset"
    assert set(Change.objects.values_list("actor", "reason")) == {("manage.py", "the move")}


def test_what_never_ran_is_refused_and_what_the_code_has_is_left_to_it(dcb: Any) -> None:
    from django_wheelbeat.models import Monitor

    never = dcb.CrontabSchedule.objects.create(minute="0", hour="0", day_of_month="31", month_of_year="2")
    hourly = dcb.CrontabSchedule.objects.create(minute="0")
    tasks = [
        dcb.PeriodicTask(name="in the code", task="t", crontab=hourly),
        dcb.PeriodicTask(name="celery.backend_cleanup", task="celery.backend_cleanup", crontab=hourly),
        dcb.PeriodicTask(name="never", task="t", crontab=never),
        dcb.PeriodicTask(name="none", task="t"),
        dcb.PeriodicTask(name="bad arguments", task="t", crontab=hourly, args="(1,)"),
        dcb.PeriodicTask(name="good", task="t", crontab=hourly),
    ]
    dcb.PeriodicTask.objects.bulk_create(tasks)
    said = run("wheelbeat_import_celery_beat")
    assert "1 new, 0 changed, 0 unchanged, 3 refused" in said
    assert list(Monitor.objects.values_list("name", flat=True)) == ["good"]
    for reason in ("never: cron", "none: expected one schedule, got none", "bad arguments: args"):
        assert reason in said, said
    assert "Note: in the code: stands in beat_schedule" in said


def test_repeating_it_keeps_both_in_step(dcb: Any) -> None:
    from django_wheelbeat.models import Change, Monitor

    every = dcb.IntervalSchedule.objects.create(every=1, period="hours")
    task = dcb.PeriodicTask.objects.create(name="a", task="t", interval=every, last_run_at=LAST)
    run("wheelbeat_import_celery_beat")
    changes = Change.objects.count()
    assert "1 unchanged" in run("wheelbeat_import_celery_beat")
    assert Change.objects.count() == changes
    task.queue = "moved"
    task.save()
    said = run("wheelbeat_import_celery_beat", dry_run=True)
    assert "~ a: queue: '' → 'moved'" in said
    run("wheelbeat_import_celery_beat")
    assert Monitor.objects.get().queue == "moved"
    assert dcb.PeriodicTask.objects.count() == 1


@pytest.mark.redis
def test_redbeat_is_taken_over(db: Any, app: Celery, redis_url: str) -> None:
    from redbeat import RedBeatSchedulerEntry
    from redbeat.schedules import rrule
    from redis import Redis

    from django_wheelbeat.models import Monitor
    from django_wheelbeat.rows import row_of, to_datetime, to_ms

    app.conf.redbeat_redis_url = redis_url
    app.conf.redbeat_redis_options = {}

    def put(name: str, given: Any, **more: Any) -> None:
        entry = RedBeatSchedulerEntry(name, "t", given, args=[1], kwargs={"a": 2}, app=app, **more)
        entry.save()

    with Redis.from_url(redis_url, decode_responses=True) as client:
        put(
            "every", schedule(90), options={"queue": "q", "expires": 30, "shadow": "s"}, enabled=False, last_run_at=LAST
        )
        put("cron", crontab(minute="*/5", hour=3))
        put("rule", rrule("DAILY"))
        put("in the code", schedule(60))
        put("static", schedule(60))
        client.sadd("redbeat::statics", "static", "celery.backend_cleanup")
        client.zadd("redbeat::schedule", {"redbeat:lost": 1})
        said = run("wheelbeat_import_redbeat")
        client.flushdb()
    assert "2 new, 0 changed, 0 unchanged, 2 refused" in said, said
    assert "rule: 'rrule' has no counterpart" in said
    assert "Note: in the code: stands in beat_schedule" in said
    every, cron = Monitor.objects.get(name="every"), Monitor.objects.get(name="cron")
    assert (every.queue, every.expires_s, every.options, every.enabled) == ("q", 30.0, '{"shadow": "s"}', False)
    assert (every.args, every.kwargs, every.jitter_s) == ("[1]", '{"a": 2}', 0)
    first = next(fires(schedule_of(row_of(every)), to_ms(LAST)))
    assert to_datetime(first) == LAST + timedelta(seconds=90)
    assert (cron.cron, cron.timezone) == ("*/5 3 * * *", "Europe/Berlin")
