"""Django sites of other settings than the tests' own, each in a process of its own: no admin, ``USE_TZ = False``."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from services import OWN_NAME, PrivateMariadb, postgres_database_beside
from support.processes import ROOT
from support.warm import warm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ZONE = "Asia/Kolkata"
CONTRIB = ("django.contrib.contenttypes", "django.contrib.auth")

PROLOGUE = """
import io, json, sys
from datetime import date, datetime, timedelta
given = json.loads(sys.argv[1])
from django.conf import settings
from support.site.settings import database_of
settings.configure(
    SECRET_KEY="x", DATABASES={"default": database_of(given.pop("url"))},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField", **given,
)
import django
django.setup()
from celery import Celery
Celery("site", broker="redis://127.0.0.1:1", set_as_current=True)
from django.core.management import call_command
from django_wheelbeat.models import Monitor
call_command("migrate", verbosity=0, interactive=False)

def run(command, *arguments, **options):
    printed = io.StringIO()
    call_command(command, *arguments, stdout=printed, stderr=printed, **options)
    return printed.getvalue()
"""


def site(body: str, url: str, apps: tuple[str, ...] = (), **settings: Any) -> Any:
    """Run ``body`` in a new site that has ``apps``, Django's users and ours; returns what it leaves in ``seen``."""
    given = {"url": url, "INSTALLED_APPS": [*CONTRIB, "django_wheelbeat", *apps], **settings}
    script = f"{PROLOGUE}\n{body}\njson.dump(seen, sys.stdout)"
    path = os.pathsep.join(str(ROOT / part) for part in (".", "django_app", "tests"))
    env = {**os.environ, "PYTHONPATH": path}
    done = warm.run(script, [json.dumps(given)], cwd=ROOT, env=env, timeout_s=110)
    assert done.returncode == 0, done.errors
    return json.loads(done.output)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """URL of a database file that is still to be made."""
    return f"sqlite:///{tmp_path}/site.sqlite3"


@pytest.fixture(scope="session")
def mariadb_that_knows_zones() -> Iterator[PrivateMariadb]:
    """A MariaDB with the tables of time zones that Django asks for."""
    with PrivateMariadb() as server:
        server.load_zone(ZONE)
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres),
                        pytest.param("mysql", marks=pytest.mark.mysql)])  # fmt: skip
def url(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[str]:
    """URL of an empty database, once per vendor."""
    if request.param == "sqlite":
        yield sqlite_url
    elif request.param == "postgresql":
        with postgres_database_beside(request.getfixturevalue("postgres_url"), f"{OWN_NAME}_naive") as made:
            yield made
    else:
        server = request.getfixturevalue("mariadb_that_knows_zones")
        import MySQLdb

        connection = MySQLdb.connect(host="127.0.0.1", port=server.port, user="root")
        name = f"naive_{uuid4().hex}"
        connection.cursor().execute(f"CREATE DATABASE {name}")
        connection.close()
        yield server.database_url(name)


def test_without_time_zone_support_parts_of_an_instant_are_local(url: str) -> None:
    body = """
Monitor.objects.create(name="once", task="t", once_at=datetime(2031, 7, 1, 2, 30, 5, 250_000))
Monitor.objects.create(name="new year", task="t", once_at=datetime(2032, 1, 1, 0, 30))
Monitor.objects.create(name="never", task="t", interval_ms=1_000)
def found(**condition):
    return sorted(Monitor.objects.filter(**condition).values_list("name", flat=True))
seen = {
    "date": found(once_at__date=date(2031, 7, 1)),
    "later": found(once_at__date__gt=date(2031, 7, 1)),
    "year": found(once_at__year=2032),
    "years": found(once_at__year__lt=2032),
    "month": found(once_at__month=7),
    "hour": found(once_at__hour=2),
    "week_day": found(once_at__week_day=3),
    "time": found(once_at__time__gt="02:30:05.2"),
    "hours": sorted(filter(None, Monitor.objects.values_list("once_at__hour", flat=True))),
    "instant": found(once_at__lt=datetime(2031, 7, 1, 2, 30, 6)),
}
"""
    assert site(body, url, USE_TZ=False, TIME_ZONE=ZONE) == {
        "date": ["once"],
        "later": ["new year"],
        "year": ["new year"],
        "years": ["once"],
        "month": ["once"],
        "hour": ["once"],
        "week_day": ["once"],
        "time": ["once"],
        "hours": [2],
        "instant": ["once"],
    }


def test_without_time_zone_support_an_exported_file_changes_nothing(url: str, tmp_path: Path) -> None:
    body = f"""
soon = datetime.now().replace(microsecond=0) + timedelta(days=1)
Monitor.objects.create(name="once", task="t", once_at=datetime(2031, 7, 1, 2, 30, 5, 250_000))
Monitor.objects.create(
    name="all", task="t", interval_ms=60_000, start_at=datetime(2031, 7, 1), end_at=datetime(2032, 7, 1),
    incident_interval_ms=1_000, incident_until=soon,
)
run("wheelbeat_export", {str(tmp_path / "monitors.jsonl")!r})
seen = {{"again": run("wheelbeat_import", {str(tmp_path / "monitors.jsonl")!r})}}
Monitor.objects.filter(name="once").update(once_at=datetime(2031, 7, 1, 2, 30))
seen["moved"] = run("wheelbeat_import", {str(tmp_path / "monitors.jsonl")!r})
seen["once_at"] = Monitor.objects.get(name="once").once_at.isoformat()
"""
    seen = site(body, url, USE_TZ=False, TIME_ZONE=ZONE)
    assert "0 new, 0 changed, 2 unchanged, 0 refused" in seen["again"]
    assert "0 new, 1 changed, 1 unchanged, 0 refused" in seen["moved"]
    assert seen["once_at"] == "2031-07-01T02:30:05.250000"


@pytest.mark.django_celery_beat
@pytest.mark.parametrize("aware", [True, False], ids=["zones count", "zone is not used"])
def test_without_time_zone_support_periodic_tasks_of_every_kind_are_imported(url: str, aware: bool) -> None:
    body = """
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask
now = datetime.utcnow().replace(microsecond=0)  # as django-celery-beat takes what has no zone
ten_minutes = IntervalSchedule.objects.create(every=10, period="minutes")
nightly = CrontabSchedule.objects.create(minute="5", hour="2", timezone="Asia/Shanghai")
ahead = ClockedSchedule.objects.create(clocked_time=now + timedelta(days=2))
passed = ClockedSchedule.objects.create(clocked_time=now - timedelta(days=2))
def task(name, **columns):
    PeriodicTask.objects.create(name=name, task="t", **columns)
task("ran", interval=ten_minutes, last_run_at=now - timedelta(minutes=3))
task("never ran", interval=ten_minutes)
task("starts", interval=ten_minutes, start_time=now + timedelta(days=1))
task("nightly", crontab=nightly, expires=now + timedelta(days=9))
task("clocked", clocked=ahead, one_off=True)
task("clocked in vain", clocked=ahead, one_off=True, expires=now + timedelta(days=1))
task("clocked before", clocked=passed, one_off=True)
first = run("wheelbeat_import_celery_beat")
def utc(name, column):
    from django_wheelbeat.monitors.rows import to_datetime, to_ms
    return to_datetime(to_ms(getattr(Monitor.objects.get(name=name), column))).replace(tzinfo=None)
seen = {
    "first": first,
    "again": run("wheelbeat_import_celery_beat"),
    "right": [
        utc("ran", "start_at") == now + timedelta(minutes=7),
        utc("starts", "start_at") == now + timedelta(days=1),
        utc("nightly", "end_at") == now + timedelta(days=9),
        utc("clocked", "once_at") == now + timedelta(days=2),
    ],
}
"""
    settings = {"USE_TZ": False, "TIME_ZONE": ZONE, "DJANGO_CELERY_BEAT_TZ_AWARE": aware}
    seen = site(body, url, ("django_celery_beat",), **settings)
    assert "6 new, 0 changed, 0 unchanged, 1 refused" in seen["first"], seen
    assert "clocked in vain: is before its clocked time" in seen["first"]
    assert "Note: clocked before: its clocked time has passed" in seen["first"]
    assert "0 new, 0 changed, 6 unchanged, 1 refused" in seen["again"], seen
    assert seen["right"] == [True] * 4


def test_without_the_tables_of_django_celery_beat_the_import_is_refused(url: str) -> None:
    body = """
from django.core.management.base import CommandError
try:
    run("wheelbeat_import_celery_beat")
except CommandError as refusal:
    seen = str(refusal)
"""
    assert "no table django_celery_beat_" in site(body, url, USE_TZ=True)


IMPORT = """
imported = run("wheelbeat_import_celery_beat")
columns = ("name", "interval_ms", "cron", "timezone", "enabled", "args", "expires_s", "solar_latitude")
seen = {"imported": imported, "rows": sorted(map(list, Monitor.objects.values_list(*columns)))}
"""
IMPORTED = [
    ["every", 600_000, "", "UTC", True, '["é"]', 90.0, None],
    ["nightly", None, "5 2 * * *", "Asia/Shanghai", False, "[]", None, None],
    ["once", None, "", "UTC", True, "[]", None, None],
    ["sun", None, "", "UTC", True, "[]", None, 52.5],
]


def test_tables_that_django_celery_beat_left_behind_are_imported(sqlite_url: str) -> None:
    """With Django 6 its tables are all that there can be: the package requires an older one."""
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as database:
        database.executescript((ROOT / "tests/data/celery_beat_tables.sql").read_text())
    seen = site(IMPORT, sqlite_url, USE_TZ=True, TIME_ZONE="UTC")
    assert "4 new, 0 changed, 0 unchanged, 0 refused" in seen["imported"]
    assert seen["rows"] == IMPORTED


@pytest.mark.django_celery_beat
def test_without_django_celery_beat_its_tables_are_enough(url: str) -> None:
    body = """
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule
from datetime import UTC
def task(name, **columns):
    PeriodicTask.objects.create(name=name, task="t", **columns)
task("every", interval=IntervalSchedule.objects.create(every=10, period="minutes"), args='["é"]', expire_seconds=90,
     last_run_at=datetime(2030, 1, 1, tzinfo=UTC))
task("nightly", crontab=CrontabSchedule.objects.create(minute="5", hour="2", timezone="Asia/Shanghai"), enabled=False)
task("sun", solar=SolarSchedule.objects.create(event="sunset", latitude="52.5", longitude="13.25"))
task("once", clocked=ClockedSchedule.objects.create(clocked_time=datetime(2040, 1, 1, tzinfo=UTC)), one_off=True)
seen = run("wheelbeat_import_celery_beat", dry_run=True)
"""
    with_it = site(body, url, ("django_celery_beat",), USE_TZ=True)
    without = site(f'sys.modules["django_celery_beat"] = None\n{IMPORT}', url, USE_TZ=True, TIME_ZONE="UTC")
    assert "4 new, 0 changed, 0 unchanged, 0 refused" in with_it
    assert "4 new, 0 changed, 0 unchanged, 0 refused" in without["imported"]
    assert without["rows"] == IMPORTED


@pytest.mark.django_celery_beat
@pytest.mark.parametrize(
    ("scheduler", "found", "status"),
    [("wheelbeat", ["wheelbeat.W001"], 500), ("celery_wheelbeat.beat.scheduler:WheelScheduler", [], 200)],
)
def test_the_short_name_of_the_scheduler_breaks_another_admin_and_a_check_says_so(
    sqlite_url: str, scheduler: str, found: list[str], status: int
) -> None:
    from support.site import settings as admin_site

    body = """
from django.contrib.auth.models import User
from django.core import checks
from django.test import Client
seen = {"found": [message.id for message in checks.run_checks() if message.id.startswith("wheelbeat")]}
browser = Client(raise_request_exception=False)
browser.force_login(User.objects.create_superuser("ann"))
seen["theirs"] = browser.get("/admin/django_celery_beat/periodictask/").status_code
seen["ours"] = browser.get("/admin/wheelbeat/monitor/").status_code
"""
    settings = {name: getattr(admin_site, name) for name in ("ROOT_URLCONF", "MIDDLEWARE", "TEMPLATES")}
    beside = [app for app in admin_site.INSTALLED_APPS if app not in (*CONTRIB, "django_wheelbeat")]
    apps = ("django_celery_beat", *beside)
    seen = site(
        body, sqlite_url, apps, ALLOWED_HOSTS=["*"], CELERY_BEAT_SCHEDULER=scheduler, STATIC_URL="/static/", **settings
    )
    assert seen == {"found": found, "theirs": status, "ours": 200}


@pytest.mark.django_celery_beat
@pytest.mark.redis
def test_without_djangos_admin_every_command_works(sqlite_url: str, tmp_path: Path, redis_url: str) -> None:
    body = f"""
from celery import current_app
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from redbeat import RedBeatSchedulerEntry
from celery.schedules import schedule
app = current_app._get_current_object()
app.conf.update(broker_url={redis_url!r}, redbeat_redis_url={redis_url!r}, redbeat_redis_options={{}})
every = IntervalSchedule.objects.create(every=10, period="minutes")
PeriodicTask.objects.create(name="there", task="t", interval=every)
gone = PeriodicTask.objects.create(name="gone", task="t", interval=every)
RedBeatSchedulerEntry("in redis", "t", schedule(90), app=app).save()
Monitor.objects.create(name="here", task="t", interval_ms=60_000)
seen = {{
    "imported": run("wheelbeat_import_celery_beat"),
    "redbeat": run("wheelbeat_import_redbeat"),
    "exported": run("wheelbeat_export", {str(tmp_path / "monitors.csv")!r}),
    "read": run("wheelbeat_import", {str(tmp_path / "monitors.csv")!r}),
}}
gone.delete()
seen["pruned"] = run("wheelbeat_import_celery_beat", prune=True)
seen["left"] = sorted(Monitor.objects.values_list("name", flat=True))
run("wheelbeat_prune"), run("wheelbeat_resync"), run("wheelbeat_triggers", "--check")
run("check", "--fail-level", "WARNING", "--database", "default")
seen["paused"] = Monitor.objects.filter(name="here").pause("maintenance")
seen["run"] = len(Monitor.objects.get(name="here").run_now())
seen["admin"] = sorted(name for name in sys.modules if name.startswith("django.contrib.admin"))
"""
    seen = site(body, sqlite_url, ("django_celery_beat",), USE_TZ=True)
    assert "2 new" in seen["imported"]
    assert "1 new" in seen["redbeat"]
    assert "0 new, 0 changed, 4 unchanged" in seen["read"]
    assert "Deleted: 1." in seen["pruned"]
    assert seen["left"] == ["here", "in redis", "there"]
    assert (seen["paused"], seen["run"]) == (1, 36)
    assert not [name for name in seen["admin"] if name.endswith(".models")]
