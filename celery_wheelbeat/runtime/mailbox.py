"""The two ways in which threads reach each other: a wake-up, and a queue that wakes the thread that reads it.

The scheduling thread waits on a ``Wake`` for outcomes, edits and messages of the I/O thread. It is one lock. A signal
handler may call ``ring`` while it interrupts the wait, an exception from a handler leaves nothing locked, and
``Lock.acquire`` keeps its deadline across any number of interruptions.

The users of a ``Mailbox`` bound its length. The standard library's queues are not safe in a thread that runs signal
handlers: an exception from a handler can leave a ``Queue`` locked, and a handler that outlasts the time-out makes
``SimpleQueue.get`` wait for ever (before Python 3.13).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import Empty
from typing import Generic, TypeVar

T = TypeVar("T")


class Wake:
    """Wake-up of one waiting thread by any other."""

    def __init__(self) -> None:
        self._unrung = threading.Lock()
        """Locked until ``ring`` is called; ``wait`` acquires it."""
        self._unrung.acquire()

    def ring(self) -> None:
        """End the current wait, or the next one."""
        try:
            self._unrung.release()
        except RuntimeError:  # rung already
            return

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``; returns whether ``ring`` was called. Several calls count once."""
        return self._unrung.acquire(timeout=max(0.0, seconds))


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
