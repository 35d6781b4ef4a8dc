"""The life of a private server: started from an own folder on an own port, ended by pid.

A private server may be stopped, killed, paused or filled, since nobody else uses it. Every wait has a deadline; a
server that does not come up fails the test with the tail of its log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to outgoing connections: a server that restarts must find its port free."""


class ServiceError(Exception):
    """A test service is missing or did not do what the test needs of it."""


def free_port() -> int:
    """Return a TCP port of loopback that nobody listens on, and that no other test process will be given."""
    for port in random.sample(PORTS, len(PORTS)):
        if _reserved(port):
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise ServiceError(f"no free TCP port between {PORTS.start} and {PORTS.stop}")


def _reserved(port: int) -> bool:
    """Whether ``port`` is ours until this process ends, by the lock of a file that stays open."""
    folder = Path(tempfile.gettempdir(), f"wheelbeat-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    lock = os.open(folder / str(port), os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return False
    return True


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
    """Ask ``condition`` until it is true; raises ServiceError naming ``what`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise ServiceError(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(0.05)


def program(name: str, *folders: str, package: str) -> str:
    """Return the path of the program ``name``, looked up on PATH and in ``folders`` (glob patterns)."""
    found = shutil.which(name)
    if found is None:
        candidates = [
            str(path) for pattern in folders for path in sorted(Path("/").glob(f"{pattern.lstrip('/')}/{name}"))
        ]
        found = candidates[-1] if candidates else None
    if found is None:
        raise ServiceError(f"{name} is not installed: run `make services`, or install the package {package}")
    return found


def unprivileged_user(*names: str) -> str | None:
    """Return the first existing user of ``names`` when we are root (servers refuse to run as root), else None."""
    if os.geteuid() != 0:
        return None
    for name in (*names, "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise ServiceError(f"none of the users {names} exists, and the server refuses to run as root")


def tree(pid: int) -> list[int]:
    """Return ``pid`` and all its descendants, parents first (reads /proc)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found.extend(children.get(one, ()))
    return found


class PrivateServer(ABC):
    """One server process (with its children) that this test run started."""

    name: str
    stop_signal = signal.SIGTERM
    users: tuple[str, ...] = ()

    def __init__(self, port: int | None = None) -> None:
        self.port = port or free_port()
        self.user = unprivileged_user(*self.users) if self.users else None
        self.folder = Path(tempfile.mkdtemp(prefix=f"wheelbeat-{self.name}-"))
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        self.log = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._paused: list[int] = []

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect to."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Command line that runs the server in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server serves clients."""

    def environment(self) -> Mapping[str, str]:
        """Environment variables on top of ours."""
        return {}

    @property
    def pid(self) -> int:
        """Process id of the server; raises ServiceError while it is not running."""
        if self._process is None:
            raise ServiceError(f"private {self.name} on port {self.port} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there (it may be paused)."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server on its folder and port, and wait until it answers."""
        if self.running:
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, **self.environment()},
                start_new_session=True,
                **self._as_user(),
            )
        self._wait_for_answer(self._process)

    def stop(self) -> None:
        """End the server in good order; its data stay."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End the server and its children at once, as a power cut would; its data stay."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the server and its children: connections stay open and nothing answers."""
        self._paused = tree(self.pid)
        self._signal(self._paused, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal(self._paused, signal.SIGCONT)
        self._paused = []

    def close(self) -> None:
        """Stop the server, with force where needed, and remove its folder."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str, timeout_s: float = 60.0) -> str:
        """Run a tool as the server's user and return what it printed; raises ServiceError when it fails."""
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, **self.environment()},
            timeout=timeout_s,
            check=False,
            **self._as_user(),
        )
        if done.returncode != 0:
            raise ServiceError(f"{' '.join(command)} failed ({done.returncode}): {done.stdout}{done.stderr}")
        return done.stdout

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _as_user(self) -> dict[str, object]:
        if self.user is None:
            return {}
        return {"user": self.user, "group": pwd.getpwnam(self.user).pw_gid, "extra_groups": []}

    def _wait_for_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.answers():
            if process.poll() is not None or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-2000:]
                raise ServiceError(f"private {self.name} did not start on port {self.port}; end of its log:\n{tail}")
            time.sleep(0.05)

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if self._paused:
            self.resume()
        family = tree(process.pid) if process.poll() is None else []
        self._signal(family if how == signal.SIGKILL else family[:1], how)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._signal(family, signal.SIGKILL)
            process.wait(STOP_TIMEOUT_S)
        self._process = None

    @staticmethod
    def _signal(pids: Sequence[int], how: signal.Signals) -> None:
        for pid in pids:
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                continue
