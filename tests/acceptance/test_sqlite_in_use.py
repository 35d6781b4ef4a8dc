"""SQLite as people use it: the web process holds the lock, the file is read-only, or it is replaced under the beat."""

from __future__ import annotations

import os
import shutil
import sqlite3
from typing import TYPE_CHECKING

import pytest
from support.processes import DjangoProject, redis_conf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

ONE = 'Monitor.objects.create(name="a", task="proj.note", interval_ms=1000, args="[1]")'
LOCKED_RUNS = 7
"""Longer than a beat waits for a lock before it says so."""


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_write_lock_of_the_web_process_delays_nothing_but_the_edit(
    tmp_path: Path, redis_url: str, journal: str
) -> None:
    """B95 B91: "database is locked" ended the scheduler."""
    with DjangoProject(tmp_path, redis_conf(redis_url)) as project:
        project.django(ONE)
        web = sqlite3.connect(tmp_path / "db.sqlite3", isolation_level=None)
        assert web.execute(f"PRAGMA journal_mode = {journal}").fetchone() == (journal,)
        project.worker()
        beat = project.beat()
        project.wait_for_runs(lambda runs: len(runs) >= 2, "two runs")
        web.execute("BEGIN EXCLUSIVE")
        web.execute("UPDATE wheelbeat_monitor SET args = '[2]'")
        seen = len(project.runs())
        project.wait_for_runs(lambda runs: len(runs) >= seen + LOCKED_RUNS, "runs go on while the file is locked")
        assert [2] not in [run.args for run in project.runs()]
        web.execute("COMMIT")
        runs = project.wait_for_runs(lambda runs: [2] in [run.args for run in runs], "the edit is in force")
        fires = [run.fire_ms for run in runs if run.fire_ms is not None]
        assert fires == list(range(fires[0], fires[0] + 1000 * len(fires), 1000))
        web.execute("BEGIN EXCLUSIVE")
        assert beat.stop() == 0
        web.close()
        assert "Traceback" not in beat.output


def test_a_read_only_file_is_followed_and_a_replaced_one_is_reread(tmp_path: Path, redis_url: str) -> None:
    """B95: whatever the file is, sending goes on."""
    with DjangoProject(tmp_path, redis_conf(redis_url)) as project:
        project.django(ONE)
        path, other = tmp_path / "db.sqlite3", tmp_path / "other.sqlite3"
        shutil.copy(path, other)
        with sqlite3.connect(other) as copy:
            copy.execute("UPDATE wheelbeat_monitor SET args = '[3]'")
        copy.close()
        settings = tmp_path / "settings.py"
        writable = settings.read_text()
        read_only = writable.replace(repr(str(path)), f"'file:{path}?mode=ro', 'OPTIONS': {{'uri': True}}")
        assert read_only != writable
        settings.write_text(read_only)
        project.worker()
        beat = project.beat()
        beat.wait_for("jobs loaded")
        settings.write_text(writable)
        project.wait_for_runs(lambda runs: [1] in [run.args for run in runs], "a run")
        project.django("Monitor.objects.update(args='[2]')")
        project.wait_for_runs(lambda runs: [2] in [run.args for run in runs], "an edit by somebody who may write")
        beat.wait_for("readonly database")
        os.replace(other, path)
        project.wait_for_runs(lambda runs: [3] in [run.args for run in runs], "the other file is read")
        assert beat.stop() == 0
        fires = [run.fire_ms for run in project.runs() if run.fire_ms is not None]
        assert fires == list(range(fires[0], fires[0] + 1000 * len(fires), 1000))
