"""The clock, and the classification of its jumps.

Only ``SystemClock`` reads the time. ``ClockGuard`` is pure: it compares successive pairs of wall clock and monotonic
clock. The time that it returns never goes backwards, except with ``Motion.BACK``.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Final, NamedTuple, Protocol

WAIT_MS: Final = 5_000
"""A wall clock that is behind by at most this is waited for."""
JUMP_MS: Final = 1_000
"""Largest difference between the two clocks' progress from one reading to the next that does not count as a step."""
HOLD_S: Final = 60.0
"""A step forward moves the stored mark only after it has held for this long, in monotonic seconds."""


class Clock(Protocol):
    """Source of the current time."""

    def wall_ms(self) -> int:
        """Return integer milliseconds since the Unix epoch, UTC."""

    def monotonic_s(self) -> float:
        """Return seconds that never go backwards; they may stop while the machine is suspended."""


class SystemClock:
    """The clock of the operating system."""

    def wall_ms(self) -> int:
        """Return integer milliseconds since the Unix epoch, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return ``time.monotonic()``."""
        return time.monotonic()

    def boot_s(self) -> float:
        """Return monotonic seconds that also pass while the machine is suspended, where the system has them."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Motion(Enum):
    """How the clocks moved since the last reading."""

    STEADY = "steady"
    STALLED = "stalled"
    """The process did not read the clocks for a while: garbage collection, SIGSTOP, a long load."""
    FORWARD = "forward"
    """The wall clock moved ahead of the monotonic one: it was stepped, or the machine was suspended."""
    WAIT = "wait"
    """The wall clock is at most 5 s behind the time returned before: nothing is due until it has caught up."""
    BACK = "back"
    """The wall clock was set back by more than 5 s: the wheel is rebuilt and follows it."""


class Reading(NamedTuple):
    """One reading of the clocks."""

    motion: Motion
    now_ms: int
    """The instant to advance to; not before the last one, except with ``BACK``."""
    gap_ms: int
    """Length of the stall or step, 0 if none; positive also for ``WAIT`` and ``BACK``."""
    steps: int
    """Number of times that the clock was set back by more than 5 s."""
    mark_limit_ms: int | None
    """Time without a step forward that has not yet held for ``HOLD_S``: upper bound of the stored mark; else None."""

    @property
    def skip_reason(self) -> str:
        """Skip reason for runs that are not replayed because the gap is too long."""
        return "stall" if self.motion is Motion.STALLED else "clock"


class _Hold(NamedTuple):
    wall_ms: int
    monotonic_s: float
    until_s: float


class ClockGuard:
    """Compares successive readings of a clock."""

    def __init__(self, *, steps: int = 0, stall_ms: int = 2_000) -> None:
        """``steps``: the number stored with the mark. ``stall_ms``: a longer pause between readings is a stall."""
        self.steps = steps
        self._stall_ms = stall_ms
        self._reached_ms: int | None = None
        self._wall_ms = 0
        self._monotonic_s = 0.0
        self._hold: _Hold | None = None

    def read(self, wall_ms: int, monotonic_s: float) -> Reading:
        """Classify one pair of clock values. The first pair is always ``STEADY``."""
        if self._reached_ms is None:
            self._reached_ms = wall_ms
            motion, gap_ms = Motion.STEADY, 0
        else:
            motion, gap_ms = self._decide(wall_ms, monotonic_s, self._reached_ms)
        if motion is Motion.FORWARD and gap_ms > WAIT_MS:
            base = self._hold or _Hold(self._wall_ms, self._monotonic_s, 0.0)
            self._hold = base._replace(until_s=monotonic_s + HOLD_S)
        elif motion is not Motion.BACK and self._hold is not None and monotonic_s >= self._hold.until_s:
            self._hold = None
        limit_ms = self._limit_ms(monotonic_s)
        if motion is Motion.BACK:
            self.steps += 1
            self._reached_ms = wall_ms
            if limit_ms is not None and limit_ms >= wall_ms - WAIT_MS:
                self._hold = None  # the whole step forward is corrected
        self._reached_ms = max(self._reached_ms, wall_ms)
        self._wall_ms, self._monotonic_s = wall_ms, monotonic_s
        return Reading(motion, self._reached_ms, gap_ms, self.steps, limit_ms)

    def hold(self, ahead_ms: int) -> None:
        """Treat the clock as stepped forward by ``ahead_ms`` at the last reading: an earlier process saw that step."""
        self._hold = _Hold(self._wall_ms - ahead_ms, self._monotonic_s, self._monotonic_s + HOLD_S)

    def _decide(self, wall_ms: int, monotonic_s: float, reached_ms: int) -> tuple[Motion, int]:
        behind_ms = reached_ms - wall_ms
        if behind_ms > WAIT_MS:
            return Motion.BACK, behind_ms
        if behind_ms > 0:
            return Motion.WAIT, behind_ms
        elapsed_ms = round((monotonic_s - self._monotonic_s) * 1000)
        jump_ms = (wall_ms - self._wall_ms) - elapsed_ms
        if jump_ms > JUMP_MS:
            return Motion.FORWARD, jump_ms
        if elapsed_ms > self._stall_ms:
            return Motion.STALLED, elapsed_ms
        return Motion.STEADY, 0

    def _limit_ms(self, monotonic_s: float) -> int | None:
        """Return the time that the wall clock would show without the forward step on hold; None without one."""
        if self._hold is None:
            return None
        return self._hold.wall_ms + round((monotonic_s - self._hold.monotonic_s) * 1000)
