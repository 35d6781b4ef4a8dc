"""Python code in a process of its own that need not import Django and Celery first.

A warm process has imported them and nothing else: no settings, no app, no connection, no thread. It forks for each
call, so what code leaves behind ends with its process. To start an interpreter and to import takes half a second of a
core each time, and the tests run code in a new process a hundred times.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
PATH = [str(ROOT / part) for part in (".", "django_app", "tests")]
IMPORTED = (
    "celery.app.base",
    "celery.app.amqp",
    "celery.fixups.django",
    "kombu.transport.redis",
    "django.apps",
    "django.contrib.auth.hashers",
    "django.core.management.commands.migrate",
    "django.db.backends.postgresql.psycopg_any",
    "celery_wheelbeat.beat.scheduler",
    "celery_wheelbeat.later",
)
"""Modules that do not ask for settings when they are imported."""


class Done(NamedTuple):
    """How code ended."""

    returncode: int
    output: str
    errors: str


class Warm:
    """One warm process, started by the first call; calls come one after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def run(
        self, code: str, arguments: Sequence[str] = (), *, cwd: Path, env: Mapping[str, str], timeout_s: float
    ) -> Done:
        """Execute ``code`` as ``python -c`` does. Raises ``TimeoutExpired`` if it takes longer."""
        with self._lock, tempfile.TemporaryDirectory() as folder:
            out, errors = Path(folder, "out"), Path(folder, "errors")
            call = {"code": code, "arguments": ["-c", *arguments], "cwd": str(cwd), "env": dict(env)}
            call |= {"out": str(out), "errors": str(errors), "timeout_s": timeout_s}
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(call) + "\n")
            process.stdin.flush()
            returncode = json.loads(process.stdout.readline())
            if returncode == -signal.SIGALRM:
                raise subprocess.TimeoutExpired("python -c", timeout_s, out.read_bytes(), errors.read_bytes())
            return Done(returncode, out.read_text(errors="replace"), errors.read_text(errors="replace"))

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.warm"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(PATH)},
            )
        return self._process

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


warm = Warm()


def pytest_sessionfinish() -> None:
    """Leave no process behind."""
    warm.close()


def main() -> None:
    """Fork for each call that comes in; answer with its exit code."""
    for name in IMPORTED:
        importlib.import_module(name)
    path = sys.path[1 + len(PATH) :]  # without the folder of ``-m`` and PYTHONPATH
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        call = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _execute(call, path)
        answers.write(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) + "\n")
        answers.flush()


def _execute(call: Mapping[str, Any], path: Sequence[str]) -> NoReturn:
    """Become the process of ``call``: its environment, folder, streams and ``__main__``."""
    code = 1
    signal.setitimer(signal.ITIMER_REAL, call["timeout_s"])  # its default action ends the process
    try:
        for stream, name in ((1, "out"), (2, "errors")):
            os.dup2(os.open(call[name], os.O_CREAT | os.O_WRONLY), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(call["env"])
        time.tzset()
        os.chdir(call["cwd"])
        sys.path[:] = ["", *filter(None, call["env"].get("PYTHONPATH", "").split(os.pathsep)), *path]
        sys.argv[:] = call["arguments"]
        main_module = type(sys)("__main__")
        sys.modules["__main__"] = main_module
        code = _exit_code(call["code"], main_module.__dict__)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _exit_code(code: str, names: dict[str, Any]) -> int:
    try:
        exec(compile(code, "<string>", "exec"), names)  # noqa: S102 - code of a test
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
