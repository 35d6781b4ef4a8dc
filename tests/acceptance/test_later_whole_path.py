"""The whole path of a one-off run, in real processes: a transaction → the table → the wheel → broker → worker."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from support.processes import DjangoProject, Project, redis_conf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.redis]

STORE = """
    import json
    from datetime import UTC, datetime, timedelta
    from django.db import transaction
    from celery_wheelbeat import later
    from proj import note

    def in_s(seconds):
        return datetime.now(UTC) + timedelta(seconds=seconds)
"""


@pytest.fixture
def project(tmp_path: Path, redis_url: str) -> Iterator[DjangoProject]:
    with DjangoProject(tmp_path, redis_conf(redis_url, wheelbeat_dedup_url=redis_url)) as project:
        yield project


def stored(project: DjangoProject, code: str) -> Any:
    """Run code of the application; returns the JSON that it prints last."""
    lines = "\n".join(STORE.strip("\n").splitlines() + ["    " + line for line in code.strip().splitlines()])
    return json.loads(project.django(lines).strip().splitlines()[-1])


def test_runs_are_sent_once_cancelled_moved_and_rolled_back(project: DjangoProject) -> None:
    before = stored(project, 'print(json.dumps(later.now(note.s("before the first start"))))')
    project.worker()
    beat = project.beat()
    project.wait_for_runs(lambda runs: [run.id for run in runs] == [before], "what was stored before is sent")
    ids = stored(
        project,
        """
ids = {
    "soon": later.apply_at(note.s("soon", x=1), in_s(4)),
    "moved": later.apply_at(note.s("moved"), in_s(600), key="order:2"),
    "expiring": later.apply_at(note.s("expiring").set(expires=60), in_s(3)),
    "expired": later.apply_at(note.s("expired").set(expires=0.5), in_s(3)),
    "chosen": later.apply_at(note.s("chosen").set(queue="celery", headers={"tenant": 7}), in_s(3)),
}
try:
    with transaction.atomic():
        later.now(note.s("rolled back"))
        later.apply_at(note.s("rolled back"), in_s(3))
        raise ValueError
except ValueError:
    pass
later.apply_at(note.s("cancelled"), in_s(6), key="order:1")
assert later.cancel(key="order:1").value == "cancelled"
ids["moved"] = later.move(in_s(5), key="order:2")
with transaction.atomic():
    ids["now"] = later.now(note.s("now"))
print(json.dumps(ids))
        """,
    )
    last = stored(project, 'print(json.dumps(later.apply_at(note.s("last"), in_s(8))))')
    runs = project.wait_for_runs(lambda runs: any(run.id == last for run in runs), "the last one is sent")
    by_id = {run.id: run for run in runs}
    assert len(by_id) == len(runs)
    assert by_id.keys() == {before, last, ids["soon"], ids["moved"], ids["expiring"], ids["chosen"], ids["now"]}
    assert (by_id[ids["soon"]].args, by_id[ids["soon"]].kwargs) == (["soon"], {"x": 1})
    assert beat.stop() == 0
    assert "0 left for the next start" in beat.output


RENAMED = """
    from pathlib import Path
    path = Path("proj.py")
    path.write_text(path.read_text().replace("'wheelbeat_namespace': 'tests'", "'wheelbeat_namespace': 'renamed'"))
"""
AN_HOUR_FAST = """
    import json
    from django_wheelbeat.models import Beat
    row = Beat.objects.get()
    marks = json.loads(row.marks)
    marks["broker"]["mark_ms"] += 3_600_000
    Beat.objects.update(marks=json.dumps(marks))
"""


@pytest.mark.parametrize("meanwhile", [RENAMED, AN_HOUR_FAST], ids=["the namespace changed", "the clock was fast"])
def test_a_start_without_a_mark_to_go_by_sends_nothing_again(tmp_path: Path, redis_url: str, meanwhile: str) -> None:
    """Workers without claims would execute it again. What is sent depends on the table and its clock alone."""
    with DjangoProject(tmp_path, redis_conf(redis_url)) as project:
        project.worker()
        beat = project.beat()
        ids = stored(project, "print(json.dumps([later.now(note.s(n)) for n in range(20)]))")
        project.wait_for_runs(lambda runs: len(runs) >= len(ids), "every run is sent")
        assert beat.stop() == 0
        project.django(meanwhile)
        ids.append(stored(project, 'print(json.dumps(later.now(note.s("last"))))'))
        beat = project.beat()
        project.wait_for_runs(lambda runs: any(run.id == ids[-1] for run in runs), "the last one is sent")
        assert "First start" in beat.output
        assert sorted(run.id for run in project.runs()) == sorted(ids)


def test_a_beat_that_is_killed_loses_nothing_and_the_next_one_sends_nothing_again(project: DjangoProject) -> None:
    project.worker()
    beat = project.beat()
    ids = stored(project, "print(json.dumps([later.apply_at(note.s(n), in_s(n / 20)) for n in range(200)]))")
    project.wait_for_runs(lambda runs: len(runs) >= 60, "a part is sent")
    beat.send(signal.SIGKILL)
    beat.wait()
    ids += stored(project, 'print(json.dumps([later.now(note.s("nobody runs")), later.apply_at(note.s(), in_s(1))]))')
    project.beat()
    runs = project.wait_for_runs(lambda runs: {run.id for run in runs} == set(ids), "every run is sent")
    assert sorted(run.id for run in runs) == sorted(ids), "copies are dropped by the claims of the worker"


def test_an_app_without_django_has_monitors_and_one_off_runs(tmp_path: Path, redis_url: str) -> None:
    conf = redis_conf(redis_url, wheelbeat_database_url=f"sqlite:///{tmp_path}/wheelbeat.sqlite3")
    with Project(tmp_path, conf) as project:
        beat = project.beat()
        beat.wait_for("no such table")
        made = project.celery("wheelbeat", "migrate")
        made.wait()
        assert "Made wheelbeat_actor, " in made.output
        project.worker()
        project.python_code(
            f"""
            import sqlite3
            from celery_wheelbeat import later
            from proj import note
            later.now(note.s("one-off"))
            with sqlite3.connect({str(tmp_path / "wheelbeat.sqlite3")!r}, timeout=30) as connection:
                connection.execute(
                    "INSERT INTO wheelbeat_monitor (name, task, interval_ms, args) VALUES "
                    "('each second', 'proj.note', 1000, '[\\"monitor\\"]')"
                )
            """
        )
        project.wait_for_runs(
            lambda runs: {"one-off", "monitor"} <= {run.args[0] for run in runs}, "both kinds of runs"
        )
        listed = project.celery("wheelbeat", "later", "count", "--from", "2020-01-01")
        listed.wait()
        assert listed.output.strip().endswith("1")
        assert beat.stop() == 0
