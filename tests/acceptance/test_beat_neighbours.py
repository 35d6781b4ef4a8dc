"""The oldest supported Celery, an app that still has django-celery-beat, and embedded beats under Django."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from support.processes import DjangoProject, Project, redis_conf

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.processes

EVERY_SECOND = {"tick": {"task": "proj.note", "schedule": 1.0}}
CREATE = 'Monitor.objects.create(name="a", task="proj.note", interval_ms=1000, args="[1]")'


def test_celery_5_5_runs_beat_and_an_embedded_beat(tmp_path: Path, redis_url: str, celery55: str) -> None:
    conf = redis_conf(redis_url, beat_schedule=EVERY_SECOND)
    with DjangoProject(tmp_path, conf, python=celery55) as project:
        project.django(CREATE)
        assert project.python_code("import celery; print(celery.__version__)").startswith("5.5.")
        worker = project.worker()
        beat = project.beat()
        project.wait_for_runs(lambda runs: {run.name for run in runs} == {"a", "tick"}, "monitor and entry run")
        assert beat.stop() == 0
        assert sum("beat: Stopped" in line for line in beat.lines) == 1
        worker.stop()
        both = project.celery("worker", "-P", "threads", "-l", "info", "-B", "--scheduler", "wheelbeat")
        seen = len(project.runs())
        project.wait_for_runs(lambda runs: {run.name for run in runs[seen:]} == {"a", "tick"}, "both run again")
        both.stop()
        both.wait_for("beat: Stopped")


def test_an_embedded_beat_of_a_prefork_worker_reads_the_database(tmp_path: Path, redis_url: str) -> None:
    with DjangoProject(tmp_path, redis_conf(redis_url, beat_schedule=EVERY_SECOND)) as project:
        project.django(CREATE)
        worker = project.celery("worker", "-c", "1", "-l", "info", "-B", "--scheduler", "wheelbeat")
        project.wait_for_runs(lambda runs: {run.name for run in runs} == {"a", "tick"}, "monitor and entry run")
        worker.stop()
        worker.wait_for("beat: Stopped")


@pytest.mark.django_celery_beat
@pytest.mark.parametrize(
    "setting", [{}, {"beat_scheduler": "celery_wheelbeat.beat.scheduler:WheelScheduler"}], ids=["-S", "setting"]
)
def test_an_app_with_django_celery_beat_still_installed(
    tmp_path: Path, redis_url: str, setting: Mapping[str, str]
) -> None:
    conf = redis_conf(redis_url, beat_schedule=EVERY_SECOND, **setting)
    with DjangoProject(tmp_path, conf, apps=("django_celery_beat", "django_wheelbeat")) as project:
        project.django(CREATE)
        project.django(
            """
            from django_celery_beat.models import IntervalSchedule, PeriodicTask
            every, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
            PeriodicTask.objects.create(name="theirs", task="proj.note", interval=every)
            """
        )
        project.worker()
        beat = project.celery("beat", "-l", "info") if setting else project.beat()
        beat.wait_for("celery_wheelbeat.beat.scheduler")
        runs = project.wait_for_runs(
            lambda runs: {run.name for run in runs} >= {"a", "tick"} and len(runs) >= 4, "monitor and entry run"
        )
        assert "theirs" not in {run.name for run in runs}
        assert beat.stop() == 0


def test_a_detached_beat_starts_its_threads_in_the_process_that_stays(tmp_path: Path, redis_url: str) -> None:
    with Project(tmp_path, redis_conf(redis_url, beat_schedule=EVERY_SECOND)) as project:
        project.worker()
        pidfile, logfile = tmp_path / "beat.pid", tmp_path / "beat.log"
        started = project.beat("--detach", "--pidfile", str(pidfile), "--logfile", str(logfile))
        assert started.wait() == 0
        try:
            project.wait_for_runs(lambda runs: len(runs) >= 2, "two runs")
        finally:
            project.wait_for(pidfile.exists, "the pid file is there")
            os.kill(int(pidfile.read_text()), 15)
        project.wait_for(lambda: not pidfile.exists(), "the beat has ended")
        assert "beat: Stopped" in logfile.read_text()
