"""Real celery processes of a small app in a folder of its own: started, watched by their log, ended by pid.

Every wait names what it waits for and has a deadline; a process that ends too early fails the test with its log.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from support.warm import warm

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 120.0
FOLDER_BROKER = ROOT / "example_project/project/folder_broker.py"

DJANGO = """
    SECRET_KEY = "only for tests"
    DATABASES = {{"default": {database!r}}}
    INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", *{apps!r}]
    DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
    USE_TZ = True
"""

APP = """
    import json, os, time
    from celery import Celery

    app = Celery({name!r})
    app.conf.update({conf!r})

    @app.task(bind=True)
    def note(self, *args, **kwargs):
        headers = self.request.headers or {{}}
        line = {{
            "name": headers.get("periodic_task_name"), "id": self.request.id, "args": args, "kwargs": kwargs,
            "fire_ms": headers.get("wheelbeat_fire_ms"), "nonce": headers.get("wheelbeat_nonce"),
            "beat": headers.get("celery_beat_task"), "headers": sorted(headers), "at_ms": round(time.time() * 1000),
        }}
        with open({runs!r}, "a") as out:
            out.write(json.dumps(line) + "\\n")
"""


class RunLine(NamedTuple):
    """One execution of the task ``note``, as the worker saw it."""

    name: str | None
    id: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    fire_ms: int | None
    nonce: str | None
    beat: bool | None
    headers: Sequence[str]
    """Names of all headers of our and other people's making."""
    at_ms: int


class Process:
    """One celery process (and its children) that a test started."""

    def __init__(self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        self.command = list(command)
        self.lines: list[str] = []
        self.started_s = time.monotonic()
        self._news = threading.Condition()
        self._popen = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    @property
    def output(self) -> str:
        """Everything printed so far."""
        return "\n".join(self.lines)

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for raw in self._popen.stdout:
            with self._news:
                self.lines.append(raw.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, text: str, *, after: int = 0, timeout_s: float = WAIT_S) -> int:
        """Wait for a line that contains ``text``; return the number of lines up to and with it."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            while True:
                for number in range(after, len(self.lines)):
                    if text in self.lines[number]:
                        return number + 1
                after = max(after, len(self.lines))
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._reader.is_alive():
                    why = "within the time" if left_s <= 0 else f"before the process ended ({self._popen.poll()})"
                    raise AssertionError(f"{text!r} was not printed {why} by {' '.join(self.command)}:\n{self.output}")
                self._news.wait(min(left_s, 0.2))

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Wait for the end and return the exit code."""
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{' '.join(self.command)} did not end within {timeout_s} s:\n{self.output}") from None
        self._reader.join(WAIT_S)
        return code

    def stop(self, timeout_s: float = WAIT_S) -> int:
        """SIGTERM, then wait; return the exit code."""
        if self._popen.poll() is None:
            self.send(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL to the process and all that it started, as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill()
        if self._popen.stdout is not None:
            self._popen.stdout.close()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._popen.poll() is None


class Project:
    """A folder with a Celery app ``proj``; use as a context manager, which ends every process at exit."""

    def __init__(self, folder: Path, conf: Mapping[str, Any], *, extra: str = "", python: str = sys.executable) -> None:
        self.folder = folder
        self.conf = dict(conf)
        self.runs_file = folder / "runs.jsonl"
        self.python = python
        self.env = {
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), str(ROOT / "django_app")]),
            "PYTHONUNBUFFERED": "1",
        }
        self.processes: list[Process] = []
        folder.mkdir(parents=True, exist_ok=True)
        text = textwrap.dedent(APP).format(name="proj", conf=dict(conf), runs=str(self.runs_file))
        (folder / "proj.py").write_text(text + textwrap.dedent(extra))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self.processes:
            process.close()

    def celery(self, *arguments: str, env: Mapping[str, str] | None = None) -> Process:
        """Start ``celery -A proj …``."""
        process = Process(
            [self.python, "-m", "celery", "-A", "proj", *arguments], cwd=self.folder, env={**self.env, **(env or {})}
        )
        self.processes.append(process)
        return process

    def beat(self, *arguments: str, scheduler: str = "wheelbeat", env: Mapping[str, str] | None = None) -> Process:
        """Start ``celery beat`` and return at once."""
        return self.celery("beat", "-S", scheduler, "-l", "info", *arguments, env=env)

    def worker(self, *arguments: str, env: Mapping[str, str] | None = None) -> Process:
        """Start a solo worker and wait until it is ready."""
        worker = self.celery("worker", "-P", "solo", "-l", "info", *arguments, env=env)
        worker.wait_for(" ready.")
        return worker

    def python_code(self, code: str, *, env: Mapping[str, str] | None = None) -> str:
        """Run a few lines in a process of the project and return what they print."""
        code, env = textwrap.dedent(code), {**os.environ, **self.env, **(env or {})}
        if self.python == sys.executable:
            fresh = warm.run(code, cwd=self.folder, env=env, timeout_s=WAIT_S * 2)
            assert fresh.returncode == 0, fresh.output + fresh.errors
            return fresh.output
        done = subprocess.run(
            [self.python, "-"],  # through the standard input: an argument may not be as long
            input=code,
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=WAIT_S * 2,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def runs(self, name: str | None = None) -> list[RunLine]:
        """Return what the workers executed so far."""
        if not self.runs_file.exists():
            return []
        whole = self.runs_file.read_text().rpartition("\n")[0]  # behind it, a line that is being written
        lines = [RunLine(**json.loads(line)) for line in whole.splitlines()]
        return [line for line in lines if name is None or line.name == name]

    def wait_for(self, condition: Callable[[], object], what: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait until ``condition`` holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {timeout_s} s\n{self._logs()}")
            time.sleep(0.05)

    def _logs(self) -> str:
        return "\n\n".join(f"$ {' '.join(process.command)}\n{process.output}" for process in self.processes)

    def wait_for_runs(
        self, enough: Callable[[list[RunLine]], bool], what: str, *, timeout_s: float = WAIT_S
    ) -> list[RunLine]:
        """Wait until the executed runs satisfy ``enough``."""
        deadline = time.monotonic() + timeout_s
        while not enough(found := self.runs()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {timeout_s} s; runs: {found[-10:]}\n{self._logs()}")
            time.sleep(0.05)
        return found


MIGRATED: dict[tuple[str, ...], bytes] = {}
"""A migrated SQLite file per interpreter and apps: to copy one takes no process."""


class DjangoProject(Project):
    """A project whose monitors live in a database of Django, SQLite by default; it is migrated."""

    def __init__(
        self,
        folder: Path,
        conf: Mapping[str, Any],
        *,
        database: Mapping[str, Any] | None = None,
        apps: Sequence[str] = ("django_wheelbeat",),
        extra: str = "",
        python: str = sys.executable,
    ) -> None:
        super().__init__(folder, conf, extra=extra, python=python)
        sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db.sqlite3")}
        settings = textwrap.dedent(DJANGO).format(database=dict(database or sqlite), apps=list(apps))
        (folder / "settings.py").write_text(settings)
        self.env["DJANGO_SETTINGS_MODULE"] = "settings"
        kind = (python, *apps)
        if database is None and kind in MIGRATED:
            (folder / "db.sqlite3").write_bytes(MIGRATED[kind])
            return
        self.django("from django.core.management import call_command; call_command('migrate', verbosity=0)")
        if database is None:
            MIGRATED[kind] = (folder / "db.sqlite3").read_bytes()

    def django(self, code: str) -> str:
        """Run a few lines with Django set up and ``Monitor`` imported; return what they print."""
        begin = "import django\ndjango.setup()\n"
        if "migrate" not in code:
            begin += "from django_wheelbeat.models import Monitor\n"
        return self.python_code(begin + textwrap.dedent(code))


def filesystem_conf(folder: Path, **more: Any) -> dict[str, Any]:
    """Return settings of an app in ``folder``; its broker is files (kombu's own transport shows half-written ones)."""
    broker = folder / "broker"
    control = folder / "control"
    for path in (broker, control):
        path.mkdir(parents=True, exist_ok=True)
    shutil.copy(FOLDER_BROKER, folder)
    return {
        "broker_url": "filesystem://",
        "broker_transport": f"{FOLDER_BROKER.stem}:Transport",
        "broker_transport_options": {
            "data_folder_in": str(broker),
            "data_folder_out": str(broker),
            "control_folder": str(control),
        },
        "worker_hijack_root_logger": True,
        "broker_connection_retry_on_startup": True,
        "wheelbeat_namespace": "tests",
        **more,
    }


def redis_conf(url: str, **more: Any) -> dict[str, Any]:
    """Return settings of an app that has a key prefix of its own on a Redis."""
    return {
        "broker_url": url,
        "broker_transport_options": {"global_keyprefix": f"{uuid.uuid4()}:"},
        "broker_connection_retry_on_startup": True,
        "wheelbeat_namespace": "tests",
        **more,
    }


def matching(lines: Sequence[str], pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Return the matches of ``pattern`` in a log."""
    return [found for line in lines if (found := pattern.search(line))]
