"""A queue between threads: any thread puts values, one thread gets them in order.

Its users bound its length. The standard library's queues are not safe in a thread that runs signal handlers: an
exception from a handler can leave a ``Queue`` locked, and a handler that outlasts the time-out makes
``SimpleQueue.get`` wait for ever (before Python 3.13).
"""

from __future__ import annotations

import time
from collections import deque
from queue import Empty
from typing import Generic, TypeVar

from celery_wheelbeat.runtime.wake import Wake

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Unbounded queue; any thread puts, one thread gets."""

    def __init__(self) -> None:
        self._values: deque[T] = deque()
        self._wake = Wake()
        self._closed = False

    def put(self, value: T) -> None:
        """Add ``value``; never blocks."""
        self._values.append(value)
        self._wake.ring()

    def get(self, timeout_s: float = 0.0) -> T:
        """Remove and return the oldest value, waiting up to ``timeout_s``; raises ``queue.Empty``."""
        deadline_s = time.monotonic() + timeout_s
        while not self._values:
            if self._closed or not self._wake.wait(deadline_s - time.monotonic()):
                raise Empty
        return self._values.popleft()

    def close(self) -> None:
        """End the current wait and every later one; values can still be put and taken."""
        self._closed = True
        self._wake.ring()

    def empty(self) -> bool:
        """Return whether the mailbox is empty."""
        return not self._values

    def __len__(self) -> int:
        return len(self._values)

    def waiting(self) -> list[T]:
        """Return the values that were put and not taken, to bound them."""
        return list(self._values)
