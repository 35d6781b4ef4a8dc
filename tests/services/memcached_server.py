"""A private memcached server."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from .server import PrivateServer, program

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrivateMemcached(PrivateServer):
    """memcached with 64 MB."""

    name = "memcached"
    users = ("memcache",)

    @property
    def url(self) -> str:
        return f"memcached://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        return [program("memcached", package="memcached"), "-l", "127.0.0.1", "-p", str(self.port), "-m", "64"]

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"version\r\n")
                return connection.recv(7) == b"VERSION"
        except OSError:
            return False
