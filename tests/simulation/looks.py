"""What a jump of the clock means: the rule of the architecture, written out once more."""

from __future__ import annotations

from celery_wheelbeat.runtime.clock import Motion


class Looks:
    """Judges successive readings of both clocks."""

    def __init__(self) -> None:
        self.reached_ms: int | None = None
        self.last = (0, 0.0)
        self.motion = Motion.STEADY

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
        self.reached_ms, self.last = max(self.reached_ms, wall_ms), (wall_ms, monotonic_s)
        return self.motion, self.reached_ms
