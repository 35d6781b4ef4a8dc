"""How fast a total grew lately. No clock of its own."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0


class Pace:
    """The growth of a total over the last minute, or since the beginning where that is shorter.

    Instants are monotonic seconds given by the caller. Noted by one thread, read by another: a reader may miss the
    newest note, and no more.
    """

    def __init__(self, now_s: float) -> None:
        self._notes = deque([(now_s, 0)])

    def note(self, now_s: float, total: int) -> None:
        """Remember ``total``; only notes that the window still needs are kept."""
        self._notes.append((now_s, total))
        while self._notes[1][0] <= now_s - WINDOW_S:
            self._notes.popleft()

    def per_s(self, now_s: float, total: int) -> float:
        """Return by how much per second the total has grown to ``total``."""
        since_s, before = self._notes[0]
        return (total - before) / max(1.0, now_s - since_s)
