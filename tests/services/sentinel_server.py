"""A private Redis Sentinel that watches one master."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from .redis_server import PrivateRedis
from .server import program

if TYPE_CHECKING:
    from collections.abc import Sequence

MASTER_NAME = "tests"


class PrivateSentinel(PrivateRedis):
    """One Sentinel, which decides alone: a master that is silent for half a second is replaced by its replica.

    It speaks TLS where its master does, to the servers and to clients.
    """

    name = "sentinel"

    def __init__(self, master: PrivateRedis) -> None:
        super().__init__(tls=master.tls)
        self._config = self.folder / "sentinel.conf"
        self._config.write_text(
            "bind 127.0.0.1\n"
            + "".join(f"{key} {value}\n" for key, value in self.listening().items())
            + f"sentinel monitor {MASTER_NAME} 127.0.0.1 {master.port} 1\n"
            f"sentinel down-after-milliseconds {MASTER_NAME} 500\n"
            f"sentinel failover-timeout {MASTER_NAME} 3000\n"
        )
        if self.user is not None:
            shutil.chown(self._config, self.user)

    @property
    def url(self) -> str:
        return f"sentinel://127.0.0.1:{self.port}/0"

    @property
    def transport_options(self) -> dict[str, Any]:
        """``broker_transport_options`` or ``result_backend_transport_options`` of an app that asks it."""
        secure = {} if self.tls is None else {"sentinel_kwargs": {"ssl": True, **self.tls.redis_client}}
        return {"master_name": MASTER_NAME, **secure}

    def command(self) -> Sequence[str]:
        return [program("redis-server", package="redis-server"), str(self._config), "--sentinel"]

    def replicas(self) -> int:
        """How many replicas it knows."""
        with self.client() as client:
            return len(client.sentinel_slaves(MASTER_NAME))

    def master_port(self) -> int:
        """Where the master is, as far as it knows."""
        with self.client() as client:
            return int(client.sentinel_get_master_addr_by_name(MASTER_NAME)[1])
