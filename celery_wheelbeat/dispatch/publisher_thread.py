"""Backoff between attempts to reconnect: doubling, bounded, with jitter."""

from __future__ import annotations

import random

FIRST_S = 0.01
LONGEST_S = 5.0


class Backoff:
    """Waits of 10 ms, 20 ms, … 5 s, each shortened at random by up to a half to spread the reconnects of many beats."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def next_s(self) -> float:
        """Return the next wait in seconds."""
        wait_s, self._next_s = self._next_s, min(self._next_s * 2, LONGEST_S)
        return wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads reconnects, protects nothing

    def reset(self) -> None:
        """Start again at the shortest wait."""
        self._next_s = FIRST_S
