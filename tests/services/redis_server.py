"""A private Redis server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .server import PrivateServer, program

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrivateRedis(PrivateServer):
    """Redis without persistence, unless options say otherwise: ``PrivateRedis(appendonly="yes", maxmemory="10mb")``."""

    name = "redis"

    def __init__(self, port: int | None = None, **options: str) -> None:
        super().__init__(port)
        self.options = {"save": "", "appendonly": "no", **options}

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str]:
        words = [program("redis-server", package="redis-server"), "--bind", "127.0.0.1", "--port", str(self.port)]
        for key, value in self.options.items():
            words += [f"--{key}", value]
        return words

    def answers(self) -> bool:
        client = redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=2, retry=Retry(NoBackoff(), 0))
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()
