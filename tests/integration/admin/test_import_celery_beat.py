"""The tables of django-celery-beat and the keys of redbeat, taken over."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule

from celery_wheelbeat.jobs.compile import schedule_of
from celery_wheelbeat.schedules.fire_times import fires

if TYPE_CHECKING:
    from celery import Celery

LAST = datetime(2026, 11, 28, 7, 13, 21, 345_000, tzinfo=UTC)
NOW = datetime(2026, 11, 30, 12, 0, 7, tzinfo=UTC)


def run(command: str, **options: Any) -> str:
    from django.core.management import call_command

    out = io.StringIO()
    call_command(command, stdout=out, stderr=out, **options)
    return out.getvalue()


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
    output = run("wheelbeat_import_celery_beat", reason="the move")
    full = Monitor.objects.get(name="full")
    assert (full.task, full.args, full.kwargs) == ("shop.check", '[1, {"__type__": "x"}]', '{"url": "é"}')
    assert (full.queue, full.routing_key, full.priority, full.headers) == ("q", "r", 7, '{"h": 1}')
    assert (full.expires_s, full.one_off, full.enabled, full.description) == (90.0, True, False, "why")
    assert full.start_at == NOW
    assert Monitor.objects.get(name="ends").end_at == NOW + timedelta(days=9)
    assert "Note: ends: ends at its expires" in output
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
    output = run("wheelbeat_import_celery_beat")
    assert "1 new, 0 changed, 0 unchanged, 3 refused" in output
    assert list(Monitor.objects.values_list("name", flat=True)) == ["good"]
    for reason in ("never: cron", "none: expected one schedule, got none", "bad arguments: args"):
        assert reason in output, output
    assert "Note: in the code: is an entry of beat_schedule" in output


@pytest.mark.parametrize("kind", ["interval", "clocked"])
def test_a_one_off_that_has_run_there_does_not_run_again(dcb: Any, site_app: Celery, kind: str) -> None:
    from django_celery_beat.schedulers import ModelEntry

    from django_wheelbeat.models import Monitor

    schedules = {
        "interval": lambda: dcb.IntervalSchedule.objects.create(every=5, period="seconds"),
        "clocked": lambda: dcb.ClockedSchedule.objects.create(clocked_time=datetime.now(UTC) - timedelta(seconds=5)),
    }
    for name in ("has run", "is to run"):
        dcb.PeriodicTask.objects.create(name=name, task="t", one_off=True, **{kind: schedules[kind]()})
    entry = ModelEntry(dcb.PeriodicTask.objects.get(name="has run"), app=site_app)
    next(entry).save()  # as its beat does for each run; it disables the task when it looks at it again
    assert dcb.PeriodicTask.objects.get(name="has run").enabled
    output = run("wheelbeat_import_celery_beat")
    enabled = dict(Monitor.objects.values_list("name", "enabled"))
    assert enabled == {"has run": False, "is to run": True}
    assert "Note: has run: is a one-off that has run: it is imported disabled" in output
    assert "1 new, 1" not in run("wheelbeat_import_celery_beat")


@pytest.mark.parametrize(
    ("minute", "hour", "text"),
    [
        (",".join(map(str, range(60))), ",".join(map(str, range(24))), "0-59 0-23 1-31 1-12 0-6"),
        (
            ",".join(map(str, range(0, 60, 2))),
            "*/2" + ",1,3,5" * 9,
            "{} */24,1,2,3,4,5,6,8,10,12,14,16,18,20,22 1-31 1-12 0-6",
        ),
    ],
    ids=["every value", "a field that starts with a star"],
)
def test_a_crontab_longer_than_ours_is_written_with_ranges(
    dcb: Any, site_app: Celery, minute: str, hour: str, text: str
) -> None:
    from django_wheelbeat.models import Monitor
    from django_wheelbeat.monitors.rows import row_of, to_ms

    fields = {
        "minute": minute,
        "hour": hour,
        "day_of_month": ",".join(map(str, range(1, 32))),
        "month_of_year": ",".join(map(str, range(1, 13))),
        "day_of_week": ",".join(map(str, range(7))),
    }
    long = dcb.CrontabSchedule.objects.create(timezone="UTC", **fields)
    dcb.PeriodicTask.objects.create(name="long", task="t", crontab=long)
    output = run("wheelbeat_import_celery_beat")
    assert "1 new, 0 changed, 0 unchanged, 0 refused" in output, output
    monitor = Monitor.objects.get()
    assert monitor.cron == text.format(minute)
    assert f"Note: long: its cron expression is rewritten as “{monitor.cron}”" in output
    ours, at = next(fires(schedule_of(row_of(monitor)), to_ms(NOW))), NOW
    long.schedule.nowfun = None
    theirs = crontab(**fields, app=site_app)
    theirs.nowfun, site_app.conf.timezone = lambda: at, "UTC"
    assert ours == to_ms(at + theirs.remaining_estimate(at))


def test_a_task_that_cannot_be_read_is_its_own_problem(dcb: Any) -> None:
    from django_wheelbeat.models import Monitor

    every = dcb.IntervalSchedule.objects.create(every=1, period="hours")
    odd = dcb.IntervalSchedule.objects.create(every=1, period="fortnights")
    huge = dcb.IntervalSchedule.objects.create(every=2**31 - 1, period="days")
    for name, interval in (("a", every), ("odd", odd), ("huge", huge), ("z", every)):
        dcb.PeriodicTask.objects.create(name=name, task="t", interval=interval)
    output = run("wheelbeat_import_celery_beat")
    assert "2 new, 0 changed, 0 unchanged, 2 refused" in output
    assert "odd: cannot be read: TypeError" in output
    assert "huge: cannot be read: OverflowError" in output
    assert sorted(Monitor.objects.values_list("name", flat=True)) == ["a", "z"]


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
    output = run("wheelbeat_import_celery_beat", dry_run=True)
    assert "~ a: queue: '' → 'moved'" in output
    run("wheelbeat_import_celery_beat")
    assert Monitor.objects.get().queue == "moved"
    assert dcb.PeriodicTask.objects.count() == 1


def test_what_the_source_no_longer_has_is_named_and_pruned_only_if_the_import_made_it(dcb: Any) -> None:
    from django_wheelbeat.models import Change, Monitor

    hourly = dcb.IntervalSchedule.objects.create(every=1, period="hours")
    Monitor.objects.create(name="ours", task="t", interval_ms=60_000)
    Monitor.objects.create(name="both", task="t", interval_ms=60_000)
    for name in ("both", "deleted", "renamed", "stays", "renamed here", "bad later"):
        dcb.PeriodicTask.objects.create(name=name, task="t", interval=hourly, last_run_at=LAST)
    assert "gone" not in run("wheelbeat_import_celery_beat")
    dcb.PeriodicTask.objects.filter(name__in=["deleted", "both", "renamed here"]).delete()
    dcb.PeriodicTask.objects.filter(name="renamed").update(name="new name")
    dcb.PeriodicTask.objects.filter(name="bad later").update(args="(1,)")
    Monitor.objects.filter(name="renamed here").update(name="mine now")
    output = run("wheelbeat_import_celery_beat")
    assert "- deleted: no longer in the source" in output
    assert "2 monitors of earlier imports are no longer in the source and still run; --prune deletes them." in output
    assert Monitor.objects.filter(name="deleted").exists()
    assert "Would delete: 2." in run("wheelbeat_import_celery_beat", prune=True, dry_run=True)
    assert Monitor.objects.filter(name="deleted").exists()
    assert "Deleted: 2." in run("wheelbeat_import_celery_beat", prune=True, reason="tidy")
    left = set(Monitor.objects.values_list("name", flat=True))
    assert left == {"ours", "both", "stays", "mine now", "new name", "bad later"}
    assert set(Change.objects.filter(operation="D").values_list("actor", "reason")) == {("manage.py", "tidy")}
    assert "gone" not in run("wheelbeat_import_celery_beat", prune=True)


def test_an_empty_source_prunes_nothing(dcb: Any) -> None:
    from django_wheelbeat.models import Monitor

    hourly = dcb.IntervalSchedule.objects.create(every=1, period="hours")
    dcb.PeriodicTask.objects.create(name="a", task="t", interval=hourly, last_run_at=LAST)
    run("wheelbeat_import_celery_beat")
    dcb.PeriodicTask.objects.all().delete()
    assert "check that it is the right source" in run("wheelbeat_import_celery_beat", prune=True)
    assert Monitor.objects.count() == 1


def test_many_notes_of_one_kind_are_few_lines(dcb: Any) -> None:
    hourly = dcb.IntervalSchedule.objects.create(every=1, period="hours")
    dcb.PeriodicTask.objects.bulk_create(
        dcb.PeriodicTask(name=f"t{number:02}", task="t", interval=hourly) for number in range(30)
    )
    output = run("wheelbeat_import_celery_beat")
    assert output.count("has never run") == 20
    assert "Note: and 10 more of these." in output


@pytest.mark.redis
def test_redbeat_is_taken_over(db: Any, site_app: Celery, redis_url: str) -> None:
    from redbeat import RedBeatSchedulerEntry
    from redbeat.schedules import rrule
    from redis import Redis

    from django_wheelbeat.models import Monitor
    from django_wheelbeat.monitors.rows import row_of, to_datetime, to_ms

    site_app.conf.redbeat_redis_url = redis_url
    site_app.conf.redbeat_redis_options = {}

    def put(name: str, given: Any, **more: Any) -> None:
        entry = RedBeatSchedulerEntry(name, "t", given, args=[1], kwargs={"a": 2}, app=site_app, **more)
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
        put("never", schedule(600))
        client.hdel("redbeat:never", "meta")
        client.zadd("redbeat::schedule", {"redbeat:lost": 1, "redbeat:never": LAST.timestamp()})
        output = run("wheelbeat_import_redbeat")
        RedBeatSchedulerEntry.from_key("redbeat:cron", app=site_app).delete()
        pruned = run("wheelbeat_import_redbeat", dry_run=True, prune=True)
        client.flushdb()
    assert "- cron: no longer in the source" in pruned
    assert "Would delete: 1." in pruned
    assert "3 new, 0 changed, 0 unchanged, 2 refused" in output, output
    assert "Note: never: has never run" in output
    never = next(fires(schedule_of(row_of(Monitor.objects.get(name="never"))), to_ms(LAST)))
    assert to_datetime(never) == LAST.replace(microsecond=0) + timedelta(seconds=600), "due at its score, not together"
    assert "rule: 'rrule' has no counterpart" in output
    assert "Note: in the code: is an entry of beat_schedule" in output
    every, cron = Monitor.objects.get(name="every"), Monitor.objects.get(name="cron")
    assert (every.queue, every.expires_s, every.options, every.enabled) == ("q", 30.0, '{"shadow": "s"}', False)
    assert (every.args, every.kwargs, every.jitter_s) == ("[1]", '{"a": 2}', 0)
    first = next(fires(schedule_of(row_of(every)), to_ms(LAST)))
    assert to_datetime(first) == LAST + timedelta(seconds=90)
    assert (cron.cron, cron.timezone) == ("*/5 3 * * *", "Europe/Berlin")


@pytest.mark.redis
def test_instants_in_the_arguments_of_redbeat_arrive_as_instants(db: Any, site_app: Celery, redis_url: str) -> None:
    from kombu.utils import json as kombu_json
    from redbeat import RedBeatSchedulerEntry
    from redis import Redis

    from django_wheelbeat.models import Monitor

    site_app.conf.update(redbeat_redis_url=redis_url, redbeat_redis_options={})
    begin = datetime(2030, 5, 6, 7, 8, 9, 123_456, tzinfo=ZoneInfo("Europe/Berlin"))
    args = [begin, [{"deep": datetime(2030, 1, 1)}], "2030-01-01"]  # noqa: DTZ001 - redbeat takes it as UTC
    kwargs = {"when": begin.astimezone(UTC), "plain": {"year": 2030}}
    for name, given in (("typed", kwargs), ("object", {"cron": crontab(minute=5)})):
        options = {"eta": begin, "headers": {"since": begin}}
        RedBeatSchedulerEntry(name, "t", schedule(60), args=args, kwargs=given, options=options, app=site_app).save()
    theirs = RedBeatSchedulerEntry.from_key("redbeat:typed", app=site_app)
    with Redis.from_url(redis_url) as client:
        output = run("wheelbeat_import_redbeat")
        again = run("wheelbeat_import_redbeat")
        client.flushdb()
    typed = Monitor.objects.get()
    assert typed.name == "typed"
    assert "object: hold a crontab of redbeat, which Celery cannot send as JSON" in output
    assert "1 unchanged, 1 refused" in again
    read = kombu_json.loads(typed.args), kombu_json.loads(typed.kwargs)
    sent = (kombu_json.loads(kombu_json.dumps(value)) for value in (list(theirs.args), theirs.kwargs))
    assert read == tuple(sent)
    assert read[0][0] == begin
    assert read[1] == kwargs
    assert kombu_json.loads(typed.headers)["since"] == begin
    assert typed.options == '{"eta": "2030-05-06T07:08:09.123456+02:00"}'


@pytest.mark.redis
def test_lists_in_crontabs_and_settings_in_capitals_are_redbeats_too(db: Any, site_app: Celery, redis_url: str) -> None:
    from redbeat import RedBeatSchedulerEntry
    from redis import Redis

    from django_wheelbeat.models import Monitor

    site_app.conf.broker_url = "redis://127.0.0.1:1"
    site_app.conf.update(REDBEAT_REDIS_URL=redis_url, REDBEAT_KEY_PREFIX="mine:", REDBEAT_REDIS_OPTIONS={})
    with Redis.from_url(redis_url) as client:
        RedBeatSchedulerEntry("half", "t", crontab(minute=[0, 30], hour=[1, 5]), app=site_app).save()
        output = run("wheelbeat_import_redbeat")
        client.flushdb()
    assert "1 new, 0 changed, 0 unchanged, 0 refused" in output
    assert Monitor.objects.get().cron == "0,30 1,5 * * *"


def test_without_a_name_for_its_zone_no_crontab_of_redbeat_is_taken_over(
    db: Any, site_app: Celery, redis_url: str
) -> None:
    from redbeat import RedBeatSchedulerEntry
    from redis import Redis

    from django_wheelbeat.models import Monitor

    site_app.conf.update(redbeat_redis_url=redis_url, redbeat_redis_options={})
    site_app.conf.timezone = timezone(timedelta(hours=5, minutes=30))
    del site_app.timezone
    with Redis.from_url(redis_url) as client:
        RedBeatSchedulerEntry("every", "t", schedule(90), app=site_app).save()
        RedBeatSchedulerEntry("cron", "t", crontab(minute=30, hour=9), app=site_app).save()
        output = run("wheelbeat_import_redbeat")
        client.flushdb()
    assert "cron: Celery's time zone is not an IANA zone of this machine" in output
    assert "1 new, 0 changed, 0 unchanged, 1 refused" in output
    assert set(Monitor.objects.values_list("name", flat=True)) == {"every"}


def test_a_url_of_redbeat_that_cannot_be_read_is_refused_without_its_password(db: Any) -> None:
    from django.core.management.base import CommandError

    with pytest.raises(CommandError, match=r"redbeat cannot be read: .*%2F") as refused:
        run("wheelbeat_import_redbeat", url="redis://:secret/s@127.0.0.1:6379/0")
    assert "secret" not in str(refused.value)
