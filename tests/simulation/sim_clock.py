"""The two clocks of a simulated machine: a wall clock that can be stepped, a monotonic one that stops in suspension."""

from __future__ import annotations


class SimClock:
    """See ``celery_wheelbeat.runtime.clock.Clock``. ``elapsed_ms``: the time that really passed, which nobody knows."""

    def __init__(self, wall_ms: int) -> None:
        self.elapsed_ms = 0
        self._wall_ms = wall_ms
        self._suspended_ms = 0

    def wall_ms(self) -> int:
        """Return what the wall clock shows."""
        return self._wall_ms + self.elapsed_ms

    def monotonic_s(self) -> float:
        """Return what the monotonic clock shows."""
        return (self.elapsed_ms - self._suspended_ms) / 1000

    def let_pass(self, ms: int) -> None:
        """Let time pass."""
        self.elapsed_ms += ms

    def suspend(self, ms: int) -> None:
        """Let time pass that the monotonic clock does not see."""
        self.elapsed_ms += ms
        self._suspended_ms += ms

    def step(self, ms: int) -> None:
        """Set the wall clock forward or back."""
        self._wall_ms += ms
