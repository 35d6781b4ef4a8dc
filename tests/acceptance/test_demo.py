"""``make demo``, from its first line to its last process: what it runs, that an edit arrives, and how it ends."""

from __future__ import annotations

import http.cookiejar
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from contextlib import closing
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from services import free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
START_S = 150.0

pytestmark = pytest.mark.processes


class Demo:
    """The demo's runner in a copy of the example project."""

    def __init__(self, project: Path, port: int | None = None) -> None:
        self.project = project
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "demo.py"],
            cwd=project,
            env={**os.environ, "WHEELBEAT_EXAMPLE_PORT": str(port or free_port()), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def line(self, pattern: str) -> re.Match[str]:
        """Wait for a line that the demo prints."""
        self.wait(lambda: self._match(pattern) is not None, f"a line like {pattern}")
        found = self._match(pattern)
        assert found is not None
        return found

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for ``condition``; fails with what the demo printed and logged."""
        try:
            wait_until(lambda: bool(condition()) or self.process.poll() is not None, what, START_S)
            assert condition(), f"the demo ended before {what}"
        except Exception as error:
            logs = "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in self.project.glob("var/log/*"))
            raise AssertionError(f"{error}\n{''.join(self.lines)}\n{logs}") from error

    def end(self, how: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(how)
        return self.wait_for_end()

    def wait_for_end(self) -> int:
        """Return the exit code; no process of the demo is left then."""
        code = self.process.wait(60)
        self._reader.join(30)
        wait_until(lambda: processes_of(self.project) == [], "the end of every process of the demo")
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGTERM)
        self._reader.join(30)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Read from the demo's database."""
        with closing(sqlite3.connect(f"file:{self.project}/var/example.sqlite3?mode=ro", uri=True, timeout=10)) as db:
            return db.execute(query, values).fetchall()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    def _match(self, pattern: str) -> re.Match[str] | None:
        return next((found for line in list(self.lines) if (found := re.search(pattern, line))), None)


class Form(HTMLParser):
    """The fields of the page's main form, with the values that a browser would send."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self._select: str | None = None
        self._textarea: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, value = given.get("name"), given.get("value") or ""
        if tag == "input" and name and given.get("type") not in ("submit", "button"):
            if given.get("type") not in ("checkbox", "radio"):
                self.fields[name] = value
            elif "checked" in given:
                self.fields[name] = value or "on"
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select and "selected" in given:
            self.fields[self._select] = value
        elif tag == "textarea" and name:
            self._textarea = name
            self.fields[name] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("select", "textarea"):
            self._select = self._textarea = None

    def handle_data(self, data: str) -> None:
        if self._textarea:
            self.fields[self._textarea] += data


class Browser:
    """A session with the admin."""

    def __init__(self, admin: str) -> None:
        self.admin = admin
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

    def get(self, path: str) -> str:
        with self._opener.open(self.admin + path, timeout=30) as response:
            return str(response.read().decode())

    def submit(self, path: str, **changes: str) -> str:
        """Open the form at ``path``, change some fields, send it, and return the page that follows."""
        form = Form(self.get(path))
        unknown = set(changes) - set(form.fields)
        assert not unknown, f"{path} has no fields {unknown}; it has {sorted(form.fields)}"
        body = urllib.parse.urlencode({**form.fields, **changes}).encode()
        with self._opener.open(self.admin + path, body, timeout=30) as response:
            return str(response.read().decode())


def processes_of(project: Path) -> list[str]:
    """Command lines of all processes whose working directory is ``project``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve() == project:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    copy = tmp_path.resolve() / "example_project"
    shutil.copytree(ROOT / "example_project", copy, ignore=shutil.ignore_patterns("var", "__pycache__"))
    return copy


@pytest.fixture
def start(project: Path) -> Iterator[Callable[..., Demo]]:
    demos: list[Demo] = []

    def start(port: int | None = None) -> Demo:
        demos.append(Demo(project, port))
        return demos[-1]

    yield start
    for demo in demos:
        demo.close()


def checks_of(demo: Demo, monitor_id: int, since: datetime) -> list[datetime]:
    """Fire times of the checks that were stored for a monitor after an instant."""
    rows = demo.rows("SELECT fire_at FROM uptime_check WHERE monitor_id = ? ORDER BY fire_at", monitor_id)
    fires = [datetime.fromisoformat(fire_at).replace(tzinfo=UTC) for (fire_at,) in rows]
    return [fire for fire in fires if fire > since]


@pytest.mark.timeout(600)
def test_demo_runs_checks_follows_an_edit_and_leaves_nothing_behind(start: Callable[..., Demo], project: Path) -> None:
    demo = start()
    admin = demo.line(r"admin +(http://127\.0\.0\.1:\d+/admin)/").group(1)
    demo.wait(lambda: demo.rows("SELECT 1 FROM uptime_check LIMIT 1"), "the first check")
    demo.wait(lambda: demo.rows("SELECT 1 FROM uptime_site WHERE NOT up LIMIT 1"), "a site that is down")
    demo.line(r"20[1-9] jobs · sent [1-9]\d* · skipped 0 ")

    worker_log = project / "var/log/worker.log"
    assert "Copies of runs are dropped; claims in wheelbeat_dedup_url (sqlite)" in worker_log.read_text()
    demo.wait(
        lambda: demo.rows("SELECT 1 FROM wheelbeat_claim WHERE state <> 'R' LIMIT 1"), "a run whose claim is done"
    )

    browser = Browser(admin)
    browser.submit("/login/", username="admin", password="admin")
    ((monitor_id,),) = demo.rows("SELECT id FROM wheelbeat_monitor WHERE interval_ms = 300000 ORDER BY id LIMIT 1")
    changed = f"/wheelbeat/monitor/{monitor_id}/change/"
    page = browser.submit(changed, interval_ms="2s")
    committed = datetime.now(UTC)
    assert "was changed successfully" in page, page
    demo.wait(lambda: len(checks_of(demo, monitor_id, committed)) >= 3, "three checks at the new interval")
    checks = checks_of(demo, monitor_id, committed)
    steps = [later - earlier for earlier, later in pairwise(checks)]
    assert {step % timedelta(seconds=2) for step in steps} == {timedelta(0)}, "the grid of the new interval"
    assert max(steps) < timedelta(minutes=5), "and not the one before it"

    status_page = Browser(admin.removesuffix("/admin")).get("/")
    assert re.search(r"\d+ of 200 sites down", status_page)
    assert status_page.count('class="state up"') > 20

    assert len(processes_of(project)) >= 5
    assert demo.end(signal.SIGINT) == 0, "".join(demo.lines)


@pytest.mark.timeout(600)
def test_demo_starts_again_on_its_data_and_ends_when_a_part_dies(start: Callable[..., Demo]) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        demo = start(port)
        admin = demo.line(r"admin +http://127\.0\.0\.1:(\d+)/admin/")
        assert int(admin.group(1)) > port, "the port is in use"
    second = start()
    assert second.process.wait(60) == 1
    second.close()
    assert "A demo is already running" in "".join(second.lines)
    demo.line(r"20\d jobs")
    assert demo.end(signal.SIGTERM) == 0, "".join(demo.lines)

    again = start()
    again.line(r"0 monitors made, 200 kept")
    again.line(r"20\d jobs")
    ((beat_pid,),) = again.rows("SELECT pid FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 1")
    os.kill(beat_pid, signal.SIGKILL)
    again.line(r"beat ended with code -9")
    assert again.wait_for_end() == 1
