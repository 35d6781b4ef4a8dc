"""The circuit breaker of a claim store: while it is open, no task waits for a store that is known to be down."""

from __future__ import annotations


class Breaker:
    """Opens at a failure for ``hold_s``, twice as long at each further one, up to ``max_hold_s``.

    Instants are monotonic seconds given by the caller. Used by several threads of one process: a race costs one
    superfluous attempt, never a wrong answer.
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
        """Take note of a failure; returns True for the first one of an outage."""
        first = not self.failing
        self._hold_s = self._first_hold_s if first else min(self._hold_s * 2, self._max_hold_s)
        self._open_until_s = now_s + self._hold_s
        self.failing = True
        return first

    def succeeded(self) -> bool:
        """Take note of an answer; returns True where it ends an outage."""
        ended, self.failing = self.failing, False
        return ended
