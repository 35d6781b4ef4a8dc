"""The broker or the database away, and a thread that hangs: the wheel goes on, and says what it left out."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from services import PrivatePostgres, PrivateRedis
from support.processes import DjangoProject, Project, redis_conf
from support.site.settings import database_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

EVERY_SECOND = {"tick": {"task": "proj.note", "schedule": 1.0}}


def status_of(project: Project) -> dict[str, Any]:
    """Return the status document in the mark file, or {} where there is none yet."""
    path = project.folder / "celerybeat-schedule.wheelbeat"
    return dict(json.loads(path.read_text())["status"]) if path.exists() else {}


@pytest.mark.promise("the-broker-or-the-database-being-down-never-stops-the-wheel")
def test_the_broker_goes_away_and_comes_back(tmp_path: Path) -> None:
    with PrivateRedis() as redis, Project(tmp_path, redis_conf(redis.url, beat_schedule=EVERY_SECOND)) as project:
        beat = project.beat()
        beat.wait_for("Sending due task tick (proj.note)")
        redis.stop()
        beat.wait_for("beat: Connection error: ")
        project.wait_for(
            lambda: status_of(project).get("runs", {}).get("skipped", {}).get("backlog", 0) >= 2,
            "older runs of the job are skipped",
        )
        seen = len(beat.lines)
        back_ms = time.time() * 1000
        redis.start()
        beat.wait_for(" again", after=seen)
        project.worker()
        runs = project.wait_for_runs(
            lambda runs: sum((run.fire_ms or 0) > back_ms for run in runs) >= 2, "runs after the outage"
        )
        late = [run for run in runs if (run.fire_ms or 0) <= back_ms]
        assert len(late) <= 2, "of an outage the newest run is sent, and perhaps the one that failed before it"
        assert beat.stop() == 0
        account = status_of(project)["runs"]
        assert account["difference"] == 0
        assert account["expected"] == account["sent"] + sum(account["skipped"].values()) + account["pending"]


def test_a_beat_that_starts_before_its_broker(tmp_path: Path) -> None:
    redis = PrivateRedis()
    with Project(tmp_path, redis_conf(redis.url, beat_schedule=EVERY_SECOND)) as project:
        beat = project.beat()
        beat.wait_for("beat: Connection error: ")
        with redis:
            project.worker()
            project.wait_for_runs(lambda runs: len(runs) >= 2, "two runs")
            assert beat.stop() == 0


@pytest.mark.promise("the-broker-or-the-database-being-down-never-stops-the-wheel")
def test_the_database_goes_away_and_comes_back(tmp_path: Path, redis_url: str) -> None:
    with PrivatePostgres() as postgres:
        conf = redis_conf(redis_url, beat_schedule=EVERY_SECOND)
        with DjangoProject(tmp_path, conf, database=database_of(postgres.url)) as project:
            project.django('Monitor.objects.create(name="a", task="proj.note", interval_ms=1000, args="[1]")')
            project.worker()
            beat = project.beat()
            project.wait_for_runs(lambda runs: {run.name for run in runs} == {"a", "tick"}, "both run")
            postgres.stop()
            beat.wait_for("changelog.read")
            seen = len(project.runs())
            project.wait_for_runs(lambda runs: len(runs) >= seen + 6, "loaded jobs go on")
            postgres.start()
            project.django('Monitor.objects.update(args="[2]")')
            project.wait_for_runs(lambda runs: [2] in [run.args for run in runs], "an edit arrives")
            assert beat.stop() == 0
            for name in ("a", "tick"):
                fires = [run.fire_ms for run in project.runs(name) if run.fire_ms is not None]
                assert fires == list(range(fires[0], fires[0] + 1000 * len(fires), 1000))


def test_ping_falls_silent_when_a_thread_hangs_and_the_wheel_continues(tmp_path: Path, redis_url: str) -> None:
    hang = """
    from celery.signals import before_task_publish

    @before_task_publish.connect
    def hang(**_):
        if os.path.exists("hang"):
            while os.path.exists("hang"):
                time.sleep(0.05)
    """
    conf = redis_conf(
        redis_url,
        beat_schedule=EVERY_SECOND,
        beat_enable_remote_control=True,
        beat_remote_control_max_tick_age=3,
        wheelbeat_live_timeout=2,
    )
    with Project(tmp_path, conf, extra=hang) as project:
        beat = project.beat()
        beat.wait_for("Sending due task tick (proj.note)")
        ping = ("inspect", "ping", "-t", "1")
        project.wait_for(lambda: project.celery(*ping).wait() == 0, "ping answers", timeout_s=60)
        (tmp_path / "hang").touch()
        beat.wait_for("beat: Hung threads: publisher; no progress for 2 s")
        project.wait_for(lambda: project.celery(*ping).wait() != 0, "ping is silent")
        expected = status_of(project)["runs"]["expected"]
        project.wait_for(lambda: status_of(project)["runs"]["expected"] >= expected + 3, "the wheel turns")
        assert "publisher" in status_of(project)["wedged"]
        (tmp_path / "hang").unlink()
        beat.wait_for("beat: All threads make progress again")
        assert beat.stop() == 0
