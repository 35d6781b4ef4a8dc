"""Recent growth rate of a counter. Pure: the caller passes the time."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0


class ClaimRate:
    """Growth of a total over the last minute, or since the first note if that is shorter.

    Instants are monotonic seconds. One thread writes, another reads: a reader may miss the newest note.
    """

    def __init__(self, now_s: float) -> None:
        self._notes = deque([(now_s, 0)])

    def note(self, now_s: float, total: int) -> None:
        """Record ``total``; notes outside the window are dropped."""
        self._notes.append((now_s, total))
        while self._notes[1][0] <= now_s - WINDOW_S:
            self._notes.popleft()

    def per_s(self, now_s: float, total: int) -> float:
        """Return the growth per second up to ``total``."""
        since_s, before = self._notes[0]
        return (total - before) / max(1.0, now_s - since_s)
