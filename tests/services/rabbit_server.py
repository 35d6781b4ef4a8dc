"""A private RabbitMQ node with its own name, ports, cookie, data and port mapper (epmd)."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from .server import PrivateServer, ServiceError, free_port, program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCRIPTS = ("/usr/lib/rabbitmq/bin", "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin", "/opt/homebrew/sbin")
"""Debian's wrappers on PATH insist on the system node's user and folder, so the scripts behind them are called."""


class PrivateRabbit(PrivateServer):
    """One node, user ``guest``/``guest``, virtual host ``/``; options are lines of ``rabbitmq.conf``.

    ``PrivateRabbit(**{"vm_memory_high_watermark.absolute": "64MB"})``
    """

    name = "rabbit"
    users = ("rabbitmq",)

    def __init__(self, port: int | None = None, **options: str) -> None:
        super().__init__(port)
        self._distribution_port = free_port()
        self._epmd_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None
        lines = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "log.console": "true",
            "log.console.level": "warning",
            "log.file": "false",
            "disk_free_limit.absolute": "1MB",
            **options,
        }
        (self.folder / "rabbitmq.conf").write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
        (self.folder / "enabled_plugins").write_text("[].\n")

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    @property
    def pid(self) -> int:
        shell = super().pid
        try:
            return int((self.folder / "pid").read_text())
        except (OSError, ValueError):
            return shell

    def environment(self) -> Mapping[str, str]:
        return {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"wheelbeat{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_FLAGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def command(self) -> Sequence[str]:
        return [_script("rabbitmq-server")]

    def start(self) -> None:
        if self._epmd is None:
            self._epmd = self._start_epmd()
        super().start()

    def answers(self) -> bool:
        """Whether the broker takes a login: a protocol header is answered with connection.start."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return connection.recv(1) == b"\x01"
        except OSError:
            return False

    def ctl(self, *words: str) -> str:
        """Run ``rabbitmqctl`` on this node."""
        return self.run(_script("rabbitmqctl"), "--node", self.environment()["RABBITMQ_NODENAME"], *words)

    def close(self) -> None:
        try:
            super().close()
        finally:
            if self._epmd is not None:
                self._epmd.terminate()
                self._epmd.wait(10)
                self._epmd = None

    def _start_epmd(self) -> subprocess.Popen[bytes]:
        """Start our port mapper as a child: one that the node starts itself is a daemon that nobody ends."""
        environment = {"PATH": "/usr/bin:/bin", "ERL_EPMD_PORT": str(self._epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        epmd = program("epmd", "/usr/lib/erlang/bin", "/usr/lib/erlang/erts-*/bin", package="rabbitmq-server")
        return subprocess.Popen(
            [epmd, "-port", str(self._epmd_port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


def _script(name: str) -> str:
    for pattern in SCRIPTS:
        for folder in sorted(Path("/").glob(pattern.lstrip("/"))):
            if (folder / name).exists():
                return str(folder / name)
    try:
        return program(name, package="rabbitmq-server")
    except ServiceError:
        raise ServiceError(f"{name} is not installed: run `make services`, or install rabbitmq-server") from None
