"""A wait that other threads can end.

The scheduling thread waits here for outcomes, edits and messages of the I/O thread. It is one lock. A signal handler
may call ``ring`` while it interrupts the wait, an exception from a handler leaves nothing locked, and ``Lock.acquire``
keeps its deadline across any number of interruptions.
"""

from __future__ import annotations

import threading


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
