"""A private etcd server of one node."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING

from .server import PrivateServer, free_port, program

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrivateEtcd(PrivateServer):
    """etcd on loopback, without TLS and users."""

    name = "etcd"
    users = ("etcd",)

    @property
    def url(self) -> str:
        return f"etcd://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        clients, peers = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{free_port()}"
        words = [program("etcd", package="etcd-server"), "--data-dir", str(self.folder / "data")]
        words += ["--listen-client-urls", clients, "--advertise-client-urls", clients, "--logger", "zap"]
        words += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        return [*words, "--initial-cluster", f"default={peers}"]

    def answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
