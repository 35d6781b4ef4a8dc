"""Countdowns that are stored cost no memory of a worker, and neither a purge nor the death of a worker loses one."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.processes import Project, redis_conf

pytestmark = [pytest.mark.processes, pytest.mark.redis]

GROWTH_MAX = 5_000_000
"""Bytes. Celery needs about 9 KB for each task with an eta, 18 MB for the shorter of the tests."""


def memory_of(pid: int) -> int:
    """Return the resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4_096


@pytest.mark.parametrize(
    "tasks",
    [
        pytest.param(2_000, marks=pytest.mark.timeout(180)),
        pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)]),
    ],
)
def test_countdowns_lie_in_no_worker(tmp_path: Path, redis_url: str, tasks: int) -> None:
    path = tmp_path / "wheelbeat.sqlite3"
    conf = redis_conf(
        redis_url, wheelbeat_database_url=f"sqlite:///{path}", wheelbeat_later_from=1, wheelbeat_tick=0.25
    )
    extra = "\n    from celery_wheelbeat import worker\n    worker.install(app)\n"
    with Project(tmp_path, conf, extra=extra) as project:
        assert project.celery("wheelbeat", "migrate").wait() == 0
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = wal")
        worker = project.worker()
        before = memory_of(worker.pid)
        for first in range(0, tasks, 10_000):
            project.python_code(
                f"""
                from proj import note
                for number in range({first}, {min(tasks, first + 10_000)}):
                    note.apply_async((number,), countdown=36_000)
                """
            )
        project.python_code("from proj import note; note.delay('seen')")
        project.wait_for_runs(bool, "the worker has taken what was sent")
        assert memory_of(worker.pid) - before < GROWTH_MAX
        project.python_code("from proj import note\nfor n in range(20): note.apply_async(('soon', n), countdown=2)")
        purge = project.celery("purge", "-f")
        assert purge.wait() == 0
        worker.send(signal.SIGKILL)
        worker.wait()
        project.worker()
        project.beat()
        runs = project.wait_for_runs(lambda runs: len(runs) >= 21, "the runs that came due meanwhile")
        assert sorted(run.args[1] for run in runs if run.args[0] == "soon") == list(range(20))
        with closing(sqlite3.connect(path)) as connection:
            (stored,) = connection.execute("SELECT count(*) FROM wheelbeat_later WHERE task <> ''").fetchone()
        assert stored == tasks + 20
