"""A private Redis server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .server import PrivateServer, ServiceError, program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .certificates import Certificates


class PrivateRedis(PrivateServer):
    """Redis without persistence, unless options say otherwise: ``PrivateRedis(appendonly="yes", maxmemory="10mb")``.

    With ``tls`` it speaks nothing else, to its replicas neither.
    """

    name = "redis"

    def __init__(self, port: int | None = None, *, tls: Certificates | None = None, **options: str) -> None:
        super().__init__(port)
        self.tls = tls
        self.options = {"save": "", "appendonly": "no", **options}

    @property
    def url(self) -> str:
        if self.tls is None:
            return f"redis://127.0.0.1:{self.port}/0"
        return f"rediss://127.0.0.1:{self.port}/0?ssl_cert_reqs=required&ssl_ca_certs={self.tls.authority}"

    def listening(self) -> Mapping[str, str]:
        """Options that say where it listens, and how."""
        if self.tls is None:
            return {"port": str(self.port)}
        return {"port": "0", "tls-port": str(self.port), "tls-replication": "yes", **self.tls.redis}

    def client(self, **options: object) -> redis.Redis:
        """Return a client of the test's own."""
        trusted = {} if self.tls is None else self.tls.redis_client
        return redis.Redis(host="127.0.0.1", port=self.port, ssl=self.tls is not None, **trusted, **options)

    def command(self) -> Sequence[str]:
        words = [program("redis-server", package="redis-server"), "--bind", "127.0.0.1"]
        for key, value in {**self.listening(), **self.options}.items():
            words += [f"--{key}", value]
        return words

    def start(self) -> None:
        try:
            super().start()
        except ServiceError as error:
            if self.tls is not None and "Bad directive" in str(error):
                raise ServiceError(
                    f"{self.command()[0]} was built without TLS: put one that has it first on PATH, as that of the "
                    "package redis-server of Debian or Ubuntu, or of its source with `make BUILD_TLS=yes`"
                ) from error
            raise

    def answers(self) -> bool:
        client = self.client(socket_timeout=2, retry=Retry(NoBackoff(), 0))
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()
