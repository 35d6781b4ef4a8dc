"""What a jump of the clock means: the rule of the architecture, written out once more."""

from __future__ import annotations

from celery_wheelbeat.runtime.clock import Motion


class Looks:
    """Judges successive readings of both clocks."""

    def __init__(self) -> None:
        self.reached_ms: int | None = None
        self.last = (0, 0.0)
        self.motion = Motion.STEADY
        self.right_ms: int | None = None
        """What the clock would show if it had not been set forward in the last minute; None = nothing else."""
        self._right_since: tuple[int, float] | None = None
        """Both clocks before the first step forward that has not held yet."""
        self._held_from_s = 0.0

    def set_forward(self, ms: int) -> None:
        """An earlier process has seen that the clock was set forward by ``ms``."""
        self._right_since = (self.last[0] - ms, self.last[1])
        self._held_from_s = self.last[1]

    def judge(self, wall_ms: int, monotonic_s: float) -> tuple[Motion, int]:
        if self.reached_ms is None:
            self.reached_ms, self.last = wall_ms, (wall_ms, monotonic_s)
        elapsed_ms = round((monotonic_s - self.last[1]) * 1000)
        ahead_ms = wall_ms - self.last[0] - elapsed_ms
        if wall_ms < self.reached_ms - 5_000:
            self.motion, self.reached_ms = Motion.BACK, wall_ms
        elif wall_ms < self.reached_ms:
            self.motion = Motion.WAIT
        elif ahead_ms > 1_000:
            self.motion = Motion.FORWARD
        else:
            self.motion = Motion.STALLED if elapsed_ms > 2_000 else Motion.STEADY
        if self.motion is Motion.FORWARD and ahead_ms > 5_000:
            self._right_since = self._right_since or self.last
            self._held_from_s = monotonic_s
        if monotonic_s - self._held_from_s >= 60 and self.motion is not Motion.BACK:
            self._right_since = None
        self.right_ms = None
        if self._right_since is not None:
            self.right_ms = self._right_since[0] + round((monotonic_s - self._right_since[1]) * 1000)
            if self.motion is Motion.BACK and wall_ms <= self.right_ms + 5_000:
                self._right_since = None
        self.reached_ms, self.last = max(self.reached_ms, wall_ms), (wall_ms, monotonic_s)
        return self.motion, self.reached_ms
