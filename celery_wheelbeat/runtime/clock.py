"""The clock, and the one place that decides what a jump of it means.

Only ``SystemClock`` reads the time. ``ClockGuard`` is pure: it compares pairs of wall clock and monotonic clock and
says what to do; it must never let time go backwards without saying so.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Final, NamedTuple, Protocol

WAIT_MS: Final = 5_000
"""A clock that is behind by no more than this is waited for."""
JUMP_MS: Final = 1_000
"""Wall clock and monotonic clock may part by this much between two looks before it counts as a step."""
HOLD_S: Final = 60.0
"""A step forward moves the stored mark only after it has held for this long, in monotonic seconds."""


class Clock(Protocol):
    """Where the present comes from."""

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


class Motion(Enum):
    """How time went on since the last look."""

    STEADY = "steady"
    STALLED = "stalled"
    """Nobody looked for a while: garbage collection, SIGSTOP, a long load."""
    FORWARD = "forward"
    """The wall clock jumped ahead of the monotonic one: a step, or the machine was suspended."""
    WAIT = "wait"
    """The wall clock is at most 5 s behind what was handed out before: nothing is due until it has caught up."""
    BACK = "back"
    """The wall clock was set back further than that: the wheel is rebuilt and follows it."""


class Reading(NamedTuple):
    """One look at the clock."""

    motion: Motion
    now_ms: int
    """The instant to advance to; never behind the one before, except with ``BACK``."""
    gap_ms: int
    """Length of the stall or step, 0 where there was none; positive also for ``WAIT`` and ``BACK``."""
    steps: int
    """How many times the clock was set back by more than 5 s."""
    mark_limit_ms: int | None
    """The stored mark must not pass this instant while a step forward has not yet held long enough."""

    @property
    def skip_reason(self) -> str:
        """Why runs are not replayed if the gap is too long for it."""
        return "stall" if self.motion is Motion.STALLED else "clock"


class _Hold(NamedTuple):
    wall_ms: int
    monotonic_s: float
    until_s: float


class ClockGuard:
    """Compares successive looks at a clock. Owned by the scheduling thread."""

    def __init__(self, *, steps: int = 0, stall_ms: int = 2_000) -> None:
        """``steps``: the number kept with the mark. ``stall_ms``: a longer pause between looks is a stall."""
        self.steps = steps
        self._stall_ms = stall_ms
        self._reached_ms: int | None = None
        self._wall_ms = 0
        self._monotonic_s = 0.0
        self._hold: _Hold | None = None

    def look(self, wall_ms: int, monotonic_s: float) -> Reading:
        """Take in one pair and decide. The first pair is always steady."""
        if self._reached_ms is None:
            self._reached_ms = wall_ms
            motion, gap_ms = Motion.STEADY, 0
        else:
            motion, gap_ms = self._decide(wall_ms, monotonic_s, self._reached_ms)
        if motion is Motion.FORWARD and gap_ms > WAIT_MS:
            base = self._hold or _Hold(self._wall_ms, self._monotonic_s, 0.0)
            self._hold = base._replace(until_s=monotonic_s + HOLD_S)
        elif motion is Motion.BACK:
            self.steps += 1
            self._reached_ms = wall_ms
            self._hold = None
        elif self._hold is not None and monotonic_s >= self._hold.until_s:
            self._hold = None
        self._reached_ms = max(self._reached_ms, wall_ms)
        self._wall_ms, self._monotonic_s = wall_ms, monotonic_s
        return Reading(motion, self._reached_ms, gap_ms, self.steps, self._limit_ms(monotonic_s))

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
        """What the wall clock would show without the step that is on probation."""
        if self._hold is None:
            return None
        return self._hold.wall_ms + round((monotonic_s - self._hold.monotonic_s) * 1000)
