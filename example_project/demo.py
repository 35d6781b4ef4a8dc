"""``make demo``: prepares the database, starts the target, the admin, a worker and the beat, and reports once a second.

Everything runs on loopback in separate processes, with logs under ``var/log``. Ctrl-C, SIGTERM or a closed terminal
stops all of them. If one exits by itself, the demo prints the end of its log and exits, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self

from status_line import status_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).resolve().parent
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
PORTS = 100
"""Number of ports to try."""
USER = "admin"


class DemoFailed(Exception):
    """A part did not start, or exited by itself; the message names it and shows its log."""


class Part:
    """One process of the demo, in its own session: Ctrl-C reaches only the demo, which stops its parts in order."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command, cwd=HERE, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.pid = self._process.pid

    def check(self) -> None:
        """Raise DemoFailed if the process has exited."""
        code = self._process.poll()
        if code is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])
            raise DemoFailed(f"{self.name} ended with code {code}; end of {self.log}:\n{tail}")

    def end(self) -> None:
        """Terminate the process; after ten seconds kill it with its children."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _signal(self, how: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(how)


class Demo:
    """The running parts in start order; stopped in reverse order. One demo per folder at a time."""

    def __init__(self, var: Path, stopping: threading.Event) -> None:
        self.logs = var / "log"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.stopping = stopping
        self.parts: list[Part] = []
        self._lock = (var / "lock").open("w")

    def __enter__(self) -> Self:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DemoFailed(f"A demo is already running on the data in {self.logs.parent}: stop it first.") from None
        return self

    def __exit__(self, *_: object) -> None:
        for part in reversed(self.parts):
            part.end()
        self._lock.close()

    def start(self, name: str, *command: str) -> Part:
        """Start one part."""
        part = Part(name, [sys.executable, *command], self.logs / f"{name}.log")
        self.parts.append(part)
        return part

    def check(self) -> None:
        """Raise DemoFailed if any part has exited."""
        for part in self.parts:
            part.check()

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` is true or the demo is stopped; raises DemoFailed after ``START_TIMEOUT_S``."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.stopping.is_set() and not condition():
            self.check()
            if time.monotonic() > deadline:
                raise DemoFailed(f"{what}: not within {START_TIMEOUT_S:g} s; see the logs in {self.logs}")
            self.stopping.wait(0.1)


def port_near(wanted: int) -> int:
    """Return ``wanted``, or the first port above it without a listener on loopback.

    A port chosen by the kernel is not used: an outgoing connection could take it before the server binds it.
    """
    for port in range(wanted, wanted + PORTS):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise DemoFailed(f"no free TCP port on 127.0.0.1 from {wanted} to {wanted + PORTS - 1}")


def answers(url: str) -> bool:
    """Whether an HTTP server answers at ``url``."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def prepare(target: str) -> None:
    """Create or update the tables, the administrator and the monitors."""
    from django.contrib.auth import get_user_model
    from django.core.management import call_command

    call_command("migrate", interactive=False, verbosity=0)
    users = get_user_model().objects
    if not users.filter(username=USER).exists():
        users.create_superuser(USER, "", USER)
    call_command("seed", target=target)


def where_to_look(port: int, logs: Path) -> str:
    """Return the addresses and credentials to print once everything runs."""
    return (
        f"\n  status page  http://127.0.0.1:{port}/"
        f"\n  admin        http://127.0.0.1:{port}/admin/   (user {USER}, password {USER})"
        f"\n  logs         {logs}"
        "\n  Ctrl-C stops everything\n"
    )


def main() -> None:
    """Run the demo until it is stopped."""
    stopping = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: stopping.set())
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    import django
    from django.conf import settings

    django.setup()
    with Demo(settings.VAR, stopping) as demo:
        print("Preparing the database …")
        port = port_near(int(os.environ.get("WHEELBEAT_EXAMPLE_PORT", "8000")))
        target_port = port_near(port + 1)
        prepare(f"http://127.0.0.1:{target_port}")
        if stopping.is_set():
            return
        demo.start("target", "target.py", str(target_port))
        demo.start("admin", "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}")
        demo.start("worker", "-m", "celery", "-A", "project", "worker", "--loglevel", "info", "--concurrency", "4")
        beat = demo.start("beat", "-m", "celery", "-A", "project", "beat", "-S", "wheelbeat", "--loglevel", "info")
        demo.wait("the admin answers", lambda: answers(f"http://127.0.0.1:{port}/admin/login/"))
        demo.wait("the beat reports", lambda: status_line(beat.pid) is not None)
        if not stopping.is_set():
            print(where_to_look(port, demo.logs))
        while not stopping.is_set():
            demo.check()
            print(status_line(beat.pid), flush=True)
            stopping.wait(1.0)
        print("\nStopping …")


if __name__ == "__main__":
    try:
        main()
    except DemoFailed as error:
        sys.exit(f"\n{error}")
