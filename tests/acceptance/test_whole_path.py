"""The whole path, in real processes: a monitor in SQLite → change log → wheel → broker → worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.processes import DjangoProject, redis_conf

from celery_wheelbeat import run_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes


@pytest.fixture
def project(tmp_path: Path, redis_url: str) -> Iterator[DjangoProject]:
    with DjangoProject(tmp_path, redis_conf(redis_url, wheelbeat_namespace=None)) as project:
        yield project


def test_a_monitor_fires_is_edited_and_is_deleted(project: DjangoProject) -> None:
    namespace = project.django(
        """
        from django_wheelbeat.models import Installation
        Monitor.objects.create(name="a", task="proj.note", interval_ms=1000, args='["before"]', kwargs='{"x": 1}')
        Monitor.objects.create(name="paused", task="proj.note", interval_ms=1000, enabled=False)
        print(Installation.objects.get().uuid)
        """
    ).strip()
    project.worker()
    beat = project.beat()
    beat.wait_for("jobs loaded")
    runs = project.wait_for_runs(lambda runs: len(runs) >= 2, "two runs")
    for run in runs:
        assert (run.name, run.args, run.kwargs) == ("a", ["before"], {"x": 1})
        assert run.fire_ms is not None
        assert run.id == run_id("monitor:1", run.fire_ms, namespace)

    project.django(
        """Monitor.objects.update(args='["after"]'); Monitor.objects.filter(name="paused").update(enabled=True)"""
    )
    runs = project.wait_for_runs(
        lambda runs: {run.name for run in runs if run.args == ["after"]} == {"a", "paused"}, "the edit is in force"
    )
    assert [run.args for run in project.runs("a")] == sorted((run.args for run in project.runs("a")), reverse=True)

    project.django("""Monitor.objects.filter(name="a").delete(); Monitor.objects.update(args='["alone"]')""")
    project.wait_for_runs(lambda runs: runs[-1].args == ["alone"], "the other one goes on")
    last_of_a = project.runs("a")[-1]
    project.wait_for_runs(lambda runs: sum(run.args == ["alone"] for run in runs) >= 4, "a few more runs")
    assert project.runs("a")[-1] == last_of_a
    assert beat.stop() == 0
    fires = [run.fire_ms for run in project.runs("a") if run.fire_ms is not None]
    assert fires == list(range(fires[0], fires[0] + 1000 * len(fires), 1000))


def test_a_one_off_runs_once_and_is_finished_in_the_database(project: DjangoProject) -> None:
    project.django(
        """
        from datetime import timedelta
        from django.utils import timezone
        Monitor.objects.create(name="one", task="proj.note", interval_ms=1000, one_off=True)
        Monitor.objects.create(name="once", task="proj.note", once_at=timezone.now() + timedelta(seconds=3))
        Monitor.objects.create(name="go", task="proj.note", interval_ms=1000)
        """
    )
    project.worker()
    beat = project.beat()
    project.wait_for_runs(lambda runs: {"one", "once"} <= {run.name for run in runs}, "both ran")
    project.wait_for(
        lambda: project.django("print(Monitor.objects.filter(finished_at__isnull=False).count())").strip() == "2",
        "both are finished",
    )
    assert beat.stop() == 0
    again = project.beat()
    seen = len(project.runs("go"))
    project.wait_for_runs(lambda runs: sum(run.name == "go" for run in runs) >= seen + 3, "the second beat runs")
    assert again.stop() == 0
    assert len(project.runs("one")) == 1
    assert len(project.runs("once")) == 1


@pytest.mark.promise("a-bad-job-affects-only-itself")
def test_bad_rows_are_quarantined_and_the_others_continue(project: DjangoProject) -> None:
    project.django(
        """
        from django.db import connection
        Monitor.objects.create(name="good", task="proj.note", interval_ms=1000)
        Monitor.objects.create(name="bad cron", task="proj.note", cron="0 0 31 2 *")
        Monitor.objects.create(name="bad json", task="proj.note", interval_ms=1000, args="[1,")
        Monitor.objects.create(name="entry", task="proj.note", interval_ms=1000)
        """
    )
    (project.folder / "proj.py").write_text(
        (project.folder / "proj.py").read_text()
        + '\napp.conf.beat_schedule = {"entry": {"task": "proj.note", "schedule": 1.0, "args": ("entry",)}}\n'
    )
    project.worker()
    beat = project.beat()
    runs = project.wait_for_runs(lambda runs: {"good", "entry"} <= {run.name for run in runs}, "the good ones run")
    assert {run.name for run in runs} == {"good", "entry"}
    assert all(run.args == ["entry"] for run in runs if run.name == "entry")
    code = """
        from django_wheelbeat.models import Quarantine
        for row in Quarantine.objects.order_by("job_key"): print(row.job_key, row.reason)
        """
    project.wait_for(lambda: project.django(code).count("\n") >= 3, "three are in quarantine")
    listed = project.django(code)
    assert "monitor:2 cron" in listed
    assert "monitor:3 args" in listed
    assert "same name as a beat_schedule entry" in listed
    project.django("""Monitor.objects.filter(name="bad json").update(args="[1]")""")
    project.wait_for_runs(lambda runs: "bad json" in {run.name for run in runs}, "the mended one runs")
    project.wait_for(lambda: "monitor:3" not in project.django(code), "it left the quarantine")
    assert beat.stop() == 0
