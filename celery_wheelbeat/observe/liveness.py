"""Detect threads whose loop is stuck. A broker or a database that is down does not count.

Every thread stamps each iteration of its loop with the monotonic time. This module never starts, stops or waits for a
thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Liveness:
    """Reads the stamps of named threads; a stamp is the monotonic instant of the last iteration, None = not watched."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._stamps: dict[str, Callable[[], float | None]] = {}
        self._patient: set[str] = set()

    def watch(self, name: str, stamp: Callable[[], float | None], *, patient: bool = False) -> None:
        """Watch a thread from now on. A ``patient`` thread may be busy without limit and never counts as wedged."""
        self._stamps[name] = stamp
        if patient:
            self._patient.add(name)

    def ages(self, now_s: float) -> Mapping[str, float]:
        """Return thread name → seconds since its last iteration."""
        stamps = {name: stamp() for name, stamp in self._stamps.items()}
        return {name: max(0.0, now_s - stamp_s) for name, stamp_s in stamps.items() if stamp_s is not None}

    def wedged(self, now_s: float) -> list[str]:
        """Return the threads whose last iteration is longer ago than the time-out, except patient ones."""
        return [name for name in self._late(now_s) if name not in self._patient]

    def busy(self, now_s: float) -> list[str]:
        """Return the patient threads whose last iteration is longer ago than the time-out."""
        return [name for name in self._late(now_s) if name in self._patient]

    def _late(self, now_s: float) -> list[str]:
        return [name for name, age_s in self.ages(now_s).items() if age_s > self._timeout_s]
