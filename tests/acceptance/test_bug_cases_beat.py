"""Public reports about a running beat, tried in real processes; ids as in ``docs/reference/public-reports.md``.

Most of them share one beat: each job that went wrong elsewhere runs beside the others, and disturbs none of them.
"""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, NamedTuple

import pytest
import redis
from support.processes import DjangoProject, Project, redis_conf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.processes import RunLine

pytestmark = pytest.mark.processes

GOOD = [f"good {number}" for number in range(5)]
NAME = "Zürich–東京 😀"
TEXT = "é\u2028😀"

TASKS = """
    from celery.schedules import schedule
    from datetime import timedelta

    class Raising(schedule):
        def is_due(self, last_run_at):
            raise RuntimeError("I never know")

    @app.task
    def routed(): ...

    @app.task(queue="q3")
    def own_queue(): ...

    app.conf.task_routes = {"proj.routed": {"queue": "q1"}}
    app.conf.beat_schedule = {
        "raising": {"task": "proj.note", "schedule": Raising(timedelta(seconds=1))},
        "old name": {"task": "proj.note", "schedule": 1.0},
    }
"""

MONITORS = """
    from datetime import timedelta
    from django.utils import timezone

    now = timezone.now()
    second = {{"task": "proj.note", "interval_ms": 1000}}
    for name in {good!r}:
        Monitor.objects.create(name=name, **second)
    Monitor.objects.create(name="disabled", enabled=False, **second)
    Monitor.objects.create(name="ended", start_at=now - timedelta(days=2), end_at=now - timedelta(days=1), **second)
    Monitor.objects.create(name={name!r}, kwargs={kwargs!r}, **second)
    Monitor.objects.create(name="empty", args="", kwargs=" \\n", **second)
    Monitor.objects.create(name="parked", queue="parked", expires_next=True, **second)
    Monitor.objects.create(name="by route", task="proj.routed", interval_ms=1000)
    Monitor.objects.create(name="by queue", task="proj.routed", queue="q2", interval_ms=1000)
    Monitor.objects.create(name="by task", task="proj.own_queue", interval_ms=1000)
    Monitor.objects.create(name="clean-up of my own", task="proj.note", cron="0 4 * * *")
"""


class Trouble(NamedTuple):
    """One beat that has run for a while, stopped, and everything that is left of it."""

    project: DjangoProject
    runs: list[RunLine]
    queues: dict[str, int]
    """Messages in the queues that no worker has listened to."""
    output: str


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[Trouble]:
    conf = redis_conf(redis_url, result_expires=3600, result_backend="db+sqlite:///results.sqlite3")
    prefix = conf["broker_transport_options"]["global_keyprefix"]
    with DjangoProject(tmp_path_factory.mktemp("trouble"), conf, extra=TASKS) as project:
        project.django(MONITORS.format(good=GOOD, name=NAME, kwargs=json.dumps({"s": TEXT})))
        (project.folder / "celerybeat-schedule").write_bytes(b"\0 not a shelf")
        project.worker()
        beat = project.beat(env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
        client = redis.Redis.from_url(redis_url)
        project.wait_for_runs(
            lambda runs: all(sum(run.name == name for run in runs) >= 5 for name in (*GOOD, NAME, "empty", "old name")),
            "five runs of every good job",
        )
        project.wait_for(
            lambda: all(client.llen(prefix + name) >= 4 for name in ("q1", "q2", "q3", "parked")),
            "runs in every queue that nobody listens to",
        )
        assert beat.stop() == 0
        queues = {name: int(client.llen(prefix + name)) for name in ("q1", "q2", "q3", "parked")}
        client.close()
        yield Trouble(project, project.runs(), queues, beat.output)


def test_jobs_that_cannot_run_stop_no_other(trouble: Trouble) -> None:
    """B61: the loop ended at the first entry that was disabled, ended or broken."""
    runs = trouble.runs
    assert {run.name for run in runs} == {*GOOD, NAME, "empty", "old name"}
    for name in GOOD:
        fires = [run.fire_ms for run in runs if run.name == name and run.fire_ms is not None]
        assert fires == list(range(fires[0], fires[0] + 1000 * len(fires), 1000))
    assert "The schedule of raising failed" in trouble.output


def test_any_text_is_a_name_and_an_argument_in_any_locale(trouble: Trouble) -> None:
    """B121: a name or an argument that is not ASCII crashed beat or its log."""
    run = next(run for run in trouble.runs if run.name == NAME)
    assert run.kwargs == {"s": TEXT}
    assert "UnicodeEncodeError" not in trouble.output
    assert "Sending due task Z" in trouble.output


def test_empty_arguments_are_no_arguments(trouble: Trouble) -> None:
    """B119: empty text instead of a list crashed the send."""
    run = next(run for run in trouble.runs if run.name == "empty")
    assert (run.args, run.kwargs) == ([], {})


def test_routes_queues_and_task_defaults_all_count(trouble: Trouble) -> None:
    """B116: options that were None overrode the router."""
    assert all(trouble.queues[name] >= 4 for name in ("q1", "q2", "q3"))


def test_after_an_outage_of_the_workers_no_old_run_is_executed(trouble: Trouble) -> None:
    """B115: thousands of identical tasks ran when the workers were back."""
    waiting = trouble.queues["parked"]
    assert waiting >= 4
    worker = trouble.project.worker("-Q", "parked", "-n", "late@%h")
    seen = 0
    for _ in range(waiting):
        seen = worker.wait_for("proj.note[", after=seen)
    trouble.project.wait_for(
        lambda: sum("Discarding revoked" in line or " succeeded in " in line for line in worker.lines) >= waiting,
        "every message is settled",
    )
    assert worker.stop() == 0
    assert len(trouble.project.runs("parked")) <= 2


def test_celerys_own_files_are_neither_read_nor_written(trouble: Trouble) -> None:
    """B93 B98: a corrupt schedule file or a left-over pid file kept beat from starting."""
    folder = trouble.project.folder
    assert (folder / "celerybeat-schedule").read_bytes() == b"\0 not a shelf"
    others = {path.name for path in folder.iterdir() if "beat" in path.name} - {"celerybeat-schedule"}
    assert others <= {"celerybeat-schedule.wheelbeat-installation"}, "nothing but our own file beside Celery's"


def test_a_renamed_entry_runs_under_its_new_name_only(trouble: Trouble) -> None:
    """B51 B52: what was removed from the settings kept running; a start deleted jobs with the clean-up's schedule."""
    project = trouble.project
    source = project.folder / "proj.py"
    source.write_text(source.read_text().replace("old name", "new name"))
    project.worker("-n", "again@%h")
    old_runs = len(project.runs("old name"))
    for _ in range(2):
        beat = project.beat()
        beat.wait_for("jobs loaded")
        seen = len(project.runs("new name"))
        project.wait_for_runs(lambda runs, n=seen + 2: sum(run.name == "new name" for run in runs) >= n, "the new name")
        assert beat.stop() == 0
    assert len(project.runs("old name")) == old_runs
    stored = project.django("print(*Monitor.objects.filter(enabled=True).values_list('name', flat=True), sep='|')")
    assert {"clean-up of my own", *GOOD} <= {*stored.strip().split("|")}


def test_a_beat_with_nothing_to_do_is_healthy(tmp_path: Path, redis_url: str) -> None:
    """B88 B98: idle and hanging looked alike; an unwritable folder kept beat from starting."""
    extra = """
    from celery.schedules import crontab
    app.conf.beat_schedule = {"yearly": {"task": "proj.note", "schedule": crontab("0", "0", "*", "29", "2")}}
    """
    conf = redis_conf(redis_url, beat_enable_remote_control=True)
    with Project(tmp_path, conf, extra=extra) as project:
        beat = project.beat()
        mark_file = project.folder / "celerybeat-schedule.wheelbeat"
        project.wait_for(mark_file.exists, "a status is written")
        assert project.celery("wheelbeat", "status").wait() == 0
        project.wait_for(
            lambda: project.celery("inspect", "ping", "-t", "1").wait() == 0, "ping is answered", timeout_s=60
        )
        assert beat.stop() == 0
        unwritable = project.beat("-s", "/proc/nowhere/schedule", env={"HOME": ""})
        unwritable.wait_for("cannot be written")
        assert unwritable.stop() == 0
        assert sum("cannot be written" in line for line in unwritable.lines) == 1


def test_sigterm_during_a_publish_that_hangs(tmp_path: Path, redis_url: str) -> None:
    """B91: beat ignored TERM during a blocking call and was killed after the grace time."""
    hang = """
    from celery.signals import before_task_publish

    @before_task_publish.connect
    def hang(**_):
        open("hanging", "w").close()
        time.sleep(600)
    """
    schedule = {"tick": {"task": "proj.note", "schedule": 1.0}}
    with Project(tmp_path, redis_conf(redis_url, beat_schedule=schedule), extra=hang) as project:
        beat = project.beat()
        project.wait_for((tmp_path / "hanging").exists, "a publish hangs")
        assert beat.stop(timeout_s=60) == 0


def test_a_once_that_was_sent_before_a_kill_has_run_once(tmp_path: Path, redis_url: str) -> None:
    """B75: a clocked job that had run already ran again after a restart."""
    with DjangoProject(tmp_path, redis_conf(redis_url, result_backend=redis_url)) as project:
        project.worker()
        project.django(
            """
            from datetime import timedelta
            from django.utils import timezone
            Monitor.objects.create(name="once", task="proj.note", once_at=timezone.now() + timedelta(seconds=5))
            Monitor.objects.create(name="go", task="proj.note", interval_ms=1000)
            """
        )
        beat = project.beat()
        beat.wait_for("Sending due task once")
        beat.kill()
        again = project.beat()
        again.wait_for("jobs loaded")
        seen = len(project.runs("go"))
        project.wait_for_runs(lambda runs: sum(run.name == "go" for run in runs) >= seen + 4, "the second beat runs")
        count = "print(Monitor.objects.filter(name='once', finished_at__isnull=False).count())"
        project.wait_for(lambda: project.django(count).strip() == "1", "it is shown as finished")
        assert again.stop() == 0
        assert len(project.runs("once")) == 1


ROUTED = """
    class Router:
        def db_for_read(self, model, **_):
            return "jobs" if model._meta.app_label == "wheelbeat" else None
        db_for_write = db_for_read
        def allow_migrate(self, db, app_label, **_):
            return (db == "jobs") == (app_label == "wheelbeat") if db == "jobs" or app_label == "wheelbeat" else None

    DATABASE_ROUTERS = [Router()]
"""


def test_a_database_router_is_followed(tmp_path: Path, redis_url: str) -> None:
    """B49: the default connection was used for the change flag, whatever the router answered."""
    with DjangoProject(tmp_path, redis_conf(redis_url)) as project:
        settings = tmp_path / "settings.py"
        jobs = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "jobs.sqlite3")}
        more = f"DATABASES['jobs'] = {jobs!r}\nDATABASES['default']['NAME'] += '.other'\n"
        settings.write_text(settings.read_text() + more + textwrap.dedent(ROUTED))
        migrate = "from django.core.management import call_command; call_command('migrate', database={!r}, verbosity=0)"
        for alias in ("default", "jobs"):
            project.django(migrate.format(alias))
        project.django('Monitor.objects.create(name="a", task="proj.note", interval_ms=1000, args="[1]")')
        project.worker()
        beat = project.beat()
        project.wait_for_runs(lambda runs: [1] in [run.args for run in runs], "a run")
        project.django("Monitor.objects.update(args='[2]')")
        project.wait_for_runs(lambda runs: [2] in [run.args for run in runs], "the edit is in force")
        assert beat.stop() == 0
        tables = project.django(
            """
            from django.db import connections
            from django_wheelbeat.models import Beat
            print(json.dumps([connections["default"].introspection.table_names(), Beat.objects.count()]))
            """.replace("print", "import json\n            print")
        )
        on_default, beats = json.loads(tables)
        assert beats == 1
        assert not [name for name in on_default if name.startswith("wheelbeat")]
