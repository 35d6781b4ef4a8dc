"""What interrupts the scheduling thread's wait: outcomes, edits, news of the I/O thread.

A ``SimpleQueue`` and nothing else, because ``ring`` may be called in a signal handler that interrupts the wait itself.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Wake:
    """Rung by any thread, waited on by the scheduling thread."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """End the current wait, or the next one."""
        self._rings.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``; returns whether it was rung. Rings that came meanwhile count once."""
        try:
            self._rings.get(timeout=max(0.0, seconds))
        except Empty:
            return False
        while not self._rings.empty():
            self._rings.get()
        return True
