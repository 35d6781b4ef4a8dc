"""The tutorial does what it says: its own code blocks and commands, in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.processes import Process

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = Path(__file__).parents[2] / "docs" / "tutorial"
ENV = {"DJANGO_SETTINGS_MODULE": "proj.settings", "PYTHONUNBUFFERED": "1"}

pytestmark = pytest.mark.processes


def blocks(language: str, page: str) -> list[str]:
    """Return the code blocks of a page of the tutorial."""
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / page).read_text(), flags=re.DOTALL)


def block(language: str, start: str, page: str = "first-monitor.md") -> str:
    """Return the code block of a page that contains ``start``."""
    (found,) = [text for text in blocks(language, page) if start in text]
    return found


class Folder:
    """What the reader of the tutorial has in front of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes: list[Process] = []

    def write(self, name: str, text: str) -> None:
        with (self.path / name).open("a") as file:
            file.write(text)

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=self.path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, *command: str) -> Process:
        process = Process([sys.executable, *command], cwd=self.path, env=ENV)
        self.processes.append(process)
        return process


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    yield folder
    for process in folder.processes:
        process.close()


def make_project(folder: Folder) -> None:
    """Follow the first two sections of the first page."""
    folder.run("-m", "django", "startproject", "proj", ".")
    (folder.path / "broker").mkdir()
    folder.write("proj/celery.py", block("python", "config_from_object"))
    folder.write("proj/__init__.py", block("python", "celery_app"))
    folder.write("proj/settings.py", block("python", "INSTALLED_APPS"))
    folder.run("manage.py", "migrate")


def test_one_off_runs_are_sent_cancelled_moved_and_rolled_back(folder: Folder) -> None:
    make_project(folder)
    page = "first-one-off-run.md"
    task, *demo = blocks("python", page)
    folder.write("proj/celery.py", f"\n\n{task}")
    folder.write("later_demo.py", "\n".join(demo))
    worker = folder.start("-m", "celery", "-A", "proj", "worker", "--loglevel", "info", "--pool", "solo")
    beat = folder.start("-m", "celery", "-A", "proj", "beat", "-S", "wheelbeat", "--loglevel", "info")
    printed = folder.run("later_demo.py").split()
    assert uuid.UUID(printed[0]).version == 7
    assert printed[1] == "Cancelled.CANCELLED"
    (command,) = [text for text in blocks("sh", page) if "later list" in text]
    listed = folder.run("-m", *command.split())
    assert "shop.remind" in listed
    for order in (5, 3, 1):
        worker.wait_for(f"reminder of order {order}")
    assert "reminder of order 2" not in worker.output
    assert "reminder of order 4" not in worker.output
    assert beat.stop() == 0


def test_tutorial_leads_to_a_monitor_that_follows_an_edit(folder: Folder) -> None:
    make_project(folder)
    add = (
        "from django_wheelbeat.models import Monitor; m = Monitor(name='greet', task='shop.hello', args='[\"world\"]', "
    )
    folder.run("manage.py", "shell", "-c", f"{add}interval_ms=10_000); m.full_clean(); m.save()")

    worker = folder.start("-m", "celery", "-A", "proj", "worker", "--loglevel", "info", "--pool", "solo")
    beat = folder.start("-m", "celery", "-A", "proj", "beat", "-S", "wheelbeat", "--loglevel", "info")
    beat.wait_for("Scheduler: Sending due task greet (shop.hello)")
    worker.wait_for("hello world, from greet, due at ")

    printed = folder.run("-m", "celery", "-A", "proj", "wheelbeat", "next", "greet", "-n", "5")
    fires = [datetime.fromisoformat(line) for line in printed.split()]
    assert [later - fire for fire, later in pairwise(fires)] == [timedelta(seconds=10)] * 4

    edit = block("sh", "update(interval_ms").partition('-c "')[2].rpartition('"')[0]
    folder.run("manage.py", "shell", "-c", edit.replace("20_000", "1_000"))
    due: list[int] = []
    seen = len(worker.lines)
    while len(due) < 3 or due[-1] - due[-3] != 2_000:  # one second apart, on the grid of the new interval
        seen = worker.wait_for("hello world, from greet, due at ", after=seen)
        due.append(int(worker.lines[seen - 1].rpartition("due at ")[2]))

    assert "sent" in folder.run("-m", "celery", "-A", "proj", "wheelbeat", "status")
    assert beat.stop() == 0
