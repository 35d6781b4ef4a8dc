"""The pulse: notices that this process was paused, so that it looks at a roll before it sends again.

SIGSTOP, a suspended machine or a long collection of garbage stop a beat while others take its shards. A thread stamps
the clock each quarter of a second. A sender that finds the stamp old, before it writes to a socket, holds what it has
until a look that began after the pause was decided upon, but for two seconds at most: a roll that is down stops nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from celery_wheelbeat.runtime.owned_thread import OwnedThread, ThreadBody

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.runtime.clock import Clock

STAMP_S: Final = 0.25
PAUSED_S: Final = 1.0
"""An older stamp means that the process was paused."""
HOLD_S: Final = 2.0
"""Longest time that a sender holds back."""


class _Waking(NamedTuple):
    boot_s: float
    monotonic_s: float


class Pulse:
    """One per process. Any thread may ask ``may_send``; the scheduling thread calls the rest."""

    def __init__(self, clock: Clock, boot_s: Callable[[], float]) -> None:
        """``boot_s``: a monotonic clock that also runs while the machine is suspended."""
        self._clock = clock
        self._boot_s = boot_s
        self._stamp_s = boot_s()
        self._waking: _Waking | None = None
        self._thread = OwnedThread("wheelbeat-pulse", clock, ThreadBody(self._beat))

    def start(self) -> None:
        """Start the thread."""
        self._stamp_s = self._boot_s()
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Stop the thread; from now on senders do not hold back."""
        self._thread.close(timeout_s)

    def may_send(self) -> bool:
        """Return whether a sender may write now; False for at most ``HOLD_S`` after a pause."""
        now_s = self._boot_s()
        self._notice(now_s)
        waking = self._waking
        return waking is None or now_s - waking.boot_s > HOLD_S

    @property
    def woken(self) -> bool:
        """Whether the process was paused and has not looked since."""
        return self._waking is not None

    def looked(self, began_s: float) -> None:
        """Note that a look that began at ``began_s``, monotonic, was decided upon."""
        waking = self._waking
        if waking is not None and began_s >= waking.monotonic_s:
            self._waking = None

    def _beat(self) -> float:
        now_s = self._boot_s()
        self._notice(now_s)
        self._stamp_s = now_s
        return STAMP_S

    def _notice(self, now_s: float) -> None:
        """Compare before the stamp is renewed: after a pause, this thread may be the first to run."""
        if now_s - self._stamp_s > PAUSED_S and self._thread.is_alive:
            self._waking = _Waking(now_s, self._clock.monotonic_s())
            self._stamp_s = now_s
