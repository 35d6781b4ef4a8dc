"""Queue lag: since when what is at the head of a queue has been waiting, from two counters and without marking a run.

Whatever had entered at a look has left as soon as as many have left as had entered then. What enters late, or again
because a broker refused it, counts from that moment: this is about a lane that is too slow, and about nothing else.
"""

from __future__ import annotations

from collections import deque

LOOKS_KEPT = 3_600
"""Looks of which something is still waiting; with more of them the lag is that of the oldest kept."""


class QueueLag:
    """See the module."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=LOOKS_KEPT)
        """Instant → how many had entered by then; all of them above what has left."""

    def look(self, now_s: float, *, left: int, waiting: int) -> float:
        """Return for how long, in seconds, some of what waits has been waiting; 0 where nothing has for long.

        ``left``: how many ever left the queue.
        """
        looks = self._looks
        while looks and looks[0][1] <= left:
            looks.popleft()
        entered = left + waiting
        if waiting and (not looks or entered > looks[-1][1]):
            looks.append((now_s, entered))
        return now_s - looks[0][0] if looks else 0.0

    def forget(self) -> None:
        """Begin anew: nothing could leave."""
        self._looks.clear()
