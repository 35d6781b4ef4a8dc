"""Circuit breaker of a claim store: while it is open, no task waits for the store."""

from __future__ import annotations


class Breaker:
    """Opens at a failure for ``hold_s``; each further failure doubles the time, up to ``max_hold_s``.

    Instants are monotonic seconds, passed by the caller. Shared by the threads of one process without a lock: a race
    costs at most one extra attempt.
    """

    def __init__(self, hold_s: float = 1.0, max_hold_s: float = 30.0) -> None:
        self._first_hold_s = hold_s
        self._max_hold_s = max_hold_s
        self._hold_s = hold_s
        self._open_until_s = 0.0
        self.failing = False

    def allows(self, now_s: float) -> bool:
        """Whether the store may be asked at ``now_s``."""
        return not self.failing or now_s >= self._open_until_s

    def failed(self, now_s: float) -> bool:
        """Record a failure; returns True for the first one of an outage."""
        first = not self.failing
        self._hold_s = self._first_hold_s if first else min(self._hold_s * 2, self._max_hold_s)
        self._open_until_s = now_s + self._hold_s
        self.failing = True
        return first

    def succeeded(self) -> bool:
        """Record an answer; returns True if it ends an outage."""
        ended, self.failing = self.failing, False
        return ended
