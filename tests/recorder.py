"""A consumer of a Redis queue that executes nothing: it notes every message as it arrives, in order."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, Self

import redis

if TYPE_CHECKING:
    from collections.abc import Callable


class Arrival(NamedTuple):
    """One message, as its headers describe it."""

    name: str
    id: str
    fire_ms: int
    at_ms: float


class Recorder:
    """Empties one list of a Redis broker; use as a context manager."""

    def __init__(self, url: str, queue: str = "celery") -> None:
        self.arrivals: list[Arrival] = []
        self._client = redis.Redis.from_url(url)
        self._queue = queue
        self._over = False
        self._thread = threading.Thread(target=self._take, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over = True
        self._thread.join(10)
        self._client.close()

    def _take(self) -> None:
        while not self._over:
            popped = self._client.brpop([self._queue], timeout=1)
            if popped is None:
                continue
            at_ms = time.time() * 1000
            headers = json.loads(popped[1])["headers"]
            self.arrivals.append(
                Arrival(headers["periodic_task_name"], headers["id"], headers["wheelbeat_fire_ms"], at_ms)
            )

    def wait_until(self, enough: Callable[[], object], what: str, timeout_s: float = 30) -> None:
        """Wait for a condition on what has arrived."""
        deadline = time.monotonic() + timeout_s
        while not enough():
            assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s; {len(self.arrivals)} arrived"
            time.sleep(0.05)
