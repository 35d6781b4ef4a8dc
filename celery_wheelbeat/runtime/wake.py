"""A wait that other threads can end. The scheduling thread waits here for outcomes, edits and news of the I/O thread.

It consists of one lock. A signal handler may call ``ring`` while it interrupts the wait; an exception of a handler
leaves nothing locked; and ``Lock.acquire`` keeps its deadline however often and long it is interrupted.
"""

from __future__ import annotations

import threading


class Wake:
    """Rung by any thread, waited on by one."""

    def __init__(self) -> None:
        self._unrung = threading.Lock()
        """Held while nobody has rung."""
        self._unrung.acquire()

    def ring(self) -> None:
        """End the current wait, or the next one."""
        try:
            self._unrung.release()
        except RuntimeError:  # rung already
            return

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``; returns whether it was rung. Rings that came meanwhile count once."""
        return self._unrung.acquire(timeout=max(0.0, seconds))
