"""``celery beat -S wheelbeat`` for an app without Django: real processes on Redis."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.pauses import pause
from support.processes import Project, redis_conf

from celery_wheelbeat import run_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes

EVERY_SECOND = {"tick": {"task": "proj.note", "schedule": 1.0, "args": (1,), "kwargs": {"a": 2}}}


@pytest.fixture
def project(tmp_path: Path, redis_url: str) -> Iterator[Project]:
    with Project(tmp_path, redis_conf(redis_url, beat_schedule=EVERY_SECOND)) as project:
        yield project


def status_of(project: Project) -> dict[str, Any]:
    """Return what the mark file says."""
    return dict(json.loads((project.folder / "celerybeat-schedule.wheelbeat").read_text()))


def test_the_banner_makes_no_connection_and_the_runs_have_computed_ids(project: Project) -> None:
    beat = project.beat()
    beat.wait_for(". wheelbeat -> ")
    beat.wait_for("beat: Starting...")
    project.worker()
    runs = project.wait_for_runs(lambda runs: len(runs) >= 3, "three runs")
    for run in runs:
        assert run.fire_ms is not None
        assert run.fire_ms % 1000 == 0
        assert run.id == run_id("entry:tick", run.fire_ms, "tests")
        assert (run.name, run.args, run.kwargs, run.beat) == ("tick", [1], {"a": 2}, True)
        assert run.at_ms >= run.fire_ms
    fires = [run.fire_ms for run in runs]
    assert fires == list(range(fires[0], fires[0] + 1000 * len(fires), 1000))
    assert len({run.nonce for run in runs}) == len(runs)


def test_sigterm_ends_it_in_good_order_and_it_stops_once(project: Project) -> None:
    beat = project.beat()
    beat.wait_for("Sending due task tick (proj.note)")
    assert beat.stop() == 0
    assert sum("beat: Stopped" in line for line in beat.lines) == 1
    assert "Traceback" not in beat.output
    row = status_of(project)
    assert row["status"]["state"] == "stopped"
    assert row["status"]["runs"]["difference"] == 0
    assert row["marks"]["broker"]["mark_ms"] > 0
    assert "tick" in row["marks"]["broker"]["entries"]


@pytest.mark.promise("same-run-same-id")
def test_a_killed_beat_offers_the_uncertain_seconds_again_with_the_same_ids(tmp_path: Path, redis_url: str) -> None:
    conf = redis_conf(redis_url, beat_schedule=EVERY_SECOND, wheelbeat_restart_lookback=60)  # however slow the restart
    with Project(tmp_path, conf) as project:
        beat = project.beat()
        row_written = project.folder / "celerybeat-schedule.wheelbeat"
        beat.wait_for("Sending due task tick (proj.note)")
        project.wait_for(lambda: row_written.exists() and status_of(project)["marks"], "the mark is written")
        beat.wait_for("Sending due task tick (proj.note)", after=len(beat.lines))
        beat.kill()
        mark_ms = status_of(project)["marks"]["broker"]["mark_ms"]
        again = project.beat()
        project.worker()
        begun_ms = time.time() * 1000
        runs = project.wait_for_runs(
            lambda runs: any((run.fire_ms or 0) > begun_ms for run in runs), "the second beat is past its start"
        )
        assert again.stop() == 0
    fires = sorted({run.fire_ms for run in runs if run.fire_ms is not None})
    assert fires == list(range(fires[0], fires[0] + 1000 * len(fires), 1000))
    assert fires[0] <= mark_ms + 1000 <= fires[-1]
    assert all(run.id == run_id("entry:tick", run.fire_ms or 0, "tests") for run in runs)
    twice = {run.fire_ms for run in runs if sum(other.id == run.id for other in runs) > 1}
    assert all(fire_ms is not None and fire_ms > mark_ms for fire_ms in twice)


def test_a_stopped_process_replays_every_slot_in_order_when_it_goes_on(project: Project) -> None:
    beat = project.beat()
    beat.wait_for("Sending due task tick (proj.note)")
    beat.send(signal.SIGSTOP)
    pause(4, "the stall")
    beat.send(signal.SIGCONT)
    beat.wait_for("passed without a tick (stalled)")
    project.worker()
    runs = project.wait_for_runs(lambda runs: len(runs) >= 7, "the missed runs and some more")
    fires = [run.fire_ms for run in runs if run.fire_ms is not None]
    assert fires == list(range(fires[0], fires[0] + 1000 * len(fires), 1000))


@pytest.mark.promise("a-bad-job-affects-only-itself")
def test_one_broken_entry_is_named_and_the_others_continue(tmp_path: Path, redis_url: str) -> None:
    broken = {
        "no task": {"schedule": 1.0},
        "text": {"task": "proj.note", "schedule": "every minute"},
        "zero": {"task": "proj.note", "schedule": 0},
        "unknown key": {"task": "proj.note", "schedule": 1.0, "nonsense": 1},
    }
    with Project(tmp_path, redis_conf(redis_url, beat_schedule={**broken, **EVERY_SECOND})) as project:
        beat = project.beat()
        beat.wait_for("Sending due task tick (proj.note)")
        for name in broken:
            beat.wait_for(f"Entry {name!r} of beat_schedule is left out: ")
        assert beat.stop() == 0


def test_entries_of_every_origin_are_seen(tmp_path: Path, redis_url: str) -> None:
    extra = """
    from celery.signals import beat_init

    @app.on_after_configure.connect
    def configured(sender, **_):
        sender.add_periodic_task(1.0, note.s("configured"), name="configured")

    @app.on_after_finalize.connect
    def finalized(sender, **_):
        sender.add_periodic_task(1.0, note.s("finalized"), name="finalized")

    @beat_init.connect
    def begun(sender, **_):
        app.add_periodic_task(1.0, note.s("late"), name="late")
        app.conf.beat_schedule.pop("leaves")
        for name in list(sender.scheduler.schedule):
            entry = sender.scheduler.schedule[name]
            entry.options.setdefault("headers", {})["seen"] = name
    """
    schedule = {**EVERY_SECOND, "leaves": {"task": "proj.note", "schedule": 1.0}}
    with Project(tmp_path, redis_conf(redis_url, beat_schedule=schedule), extra=extra) as project:
        project.beat()
        project.worker()
        names = {"tick", "configured", "finalized", "late"}
        runs = project.wait_for_runs(lambda runs: {run.name for run in runs} >= names, f"runs of {names}")
        assert {run.name for run in runs} == names


@pytest.mark.parametrize("arguments", [["-B", "--scheduler", "wheelbeat"]])
def test_a_worker_with_an_embedded_beat(tmp_path: Path, redis_url: str, arguments: list[str]) -> None:
    with Project(tmp_path, redis_conf(redis_url, beat_schedule=EVERY_SECOND)) as project:
        worker = project.celery("worker", "-P", "threads", "-l", "info", *arguments)
        project.wait_for_runs(lambda runs: len(runs) >= 2, "two runs")
        worker.stop()
        worker.wait_for("beat: Stopped")


def test_a_beat_in_a_thread(project: Project) -> None:
    project.worker()
    printed = project.python_code(
        """
        import json, pathlib, time
        from celery.beat import EmbeddedService
        from proj import app

        service = EmbeddedService(app, thread=True, scheduler_cls="wheelbeat")
        service.start()
        runs = pathlib.Path("runs.jsonl")
        deadline = time.monotonic() + 40
        while not runs.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        service.stop()
        service.join(15)
        print(json.dumps([runs.exists(), service.is_alive()]))
        """
    )
    assert json.loads(printed.splitlines()[-1]) == [True, False]


def test_more_than_a_hundred_sends_in_a_tick_are_one_line(tmp_path: Path, redis_url: str) -> None:
    extra = """
    app.conf.beat_schedule = {f"job {i}": {"task": "proj.note", "schedule": 1.0} for i in range(150)}
    """
    with Project(tmp_path, redis_conf(redis_url), extra=extra) as project:
        beat = project.beat()
        beat.wait_for("Sending 150 due tasks")
        assert not any("Sending due task job" in line for line in beat.lines)


def test_next_and_status_answer_from_outside(project: Project) -> None:
    listing = project.celery("wheelbeat", "next", "tick", "-n", "3")
    assert listing.wait() == 0
    assert len([line for line in listing.lines if line.endswith("+00:00")]) == 3
    unknown = project.celery("wheelbeat", "next", "nobody")
    assert unknown.wait() == 1
    assert "nobody" in unknown.output
    silent = project.celery("wheelbeat", "status")
    assert silent.wait() == 1
    assert "No beat has reported" in silent.output
    beat = project.beat()
    beat.wait_for("Sending due task tick (proj.note)")
    row_written = project.folder / "celerybeat-schedule.wheelbeat"
    project.wait_for(
        lambda: row_written.exists() and status_of(project)["status"]["state"] == "running", "a status is written"
    )
    status = project.celery("wheelbeat", "status", "--json")
    assert status.wait() == 0
    (report,) = json.loads(status.output)
    assert report["status"]["state"] == "running"
    assert report["namespace"] == "tests"
