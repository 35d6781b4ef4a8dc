"""What both publishers do while their broker is away: back off, log, and fail the runs that are submitted meanwhile."""

from __future__ import annotations

import logging
import random
from queue import Empty
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.runtime.clock import Clock
    from celery_wheelbeat.runtime.mailbox import Mailbox
    from celery_wheelbeat.runtime.owned_thread import OwnedThread

    T = TypeVar("T")

logger = logging.getLogger("celery.beat")

FIRST_S = 0.01
LONGEST_S = 5.0
TURN_S = 0.5
"""Longest single wait of a publisher's thread; bounds the age of its stamp."""
REMIND_S = 60.0
"""A lasting outage is logged again after this time."""


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


class Reconnection:
    """The outages of one connection. Its publisher's thread writes it; any thread may read ``trouble``."""

    def __init__(self, what: str, clock: Clock) -> None:
        """``what`` begins the log lines, e.g. ``Connection error``."""
        self.trouble = ""
        """Why there is no connection at the moment; empty if there is one."""
        self._what = what
        self._clock = clock
        self._logged_s = 0.0
        self._backoff = Backoff()

    def failed(self, reason: str) -> float:
        """Record a failure; returns the seconds to wait. Logs each new reason at once, the same one once a minute."""
        wait_s, now_s = self._backoff.next_s(), self._clock.monotonic_s()
        if reason != self.trouble or now_s - self._logged_s >= REMIND_S:
            logger.error("beat: %s: %s. Trying again in %.2f seconds...", self._what, reason, wait_s)
            self._logged_s = now_s
        self.trouble = reason
        return wait_s

    def is_over(self) -> bool:
        """Record that the connection is open; returns whether it was lost before."""
        lost, self.trouble = bool(self.trouble), ""
        return lost

    def proven(self) -> None:
        """Record that the connection works: the next wait is the shortest again."""
        self._backoff.reset()

    def wait(self, wait_s: float, thread: OwnedThread, inbox: Mailbox[T], give_up: Callable[[T], None]) -> float:
        """Wait; values submitted meanwhile are given up, because only the backlog knows which runs to keep.

        A stop of the thread ends the wait; returns the seconds that were left.
        """
        until_s = self._clock.monotonic_s() + wait_s
        while (left_s := until_s - self._clock.monotonic_s()) > 0 and not thread.is_stopping:
            thread.stamp()
            try:
                value = inbox.get(min(left_s, TURN_S))
            except Empty:
                continue
            give_up(value)
        while thread.is_stopping and not inbox.empty():
            give_up(inbox.get())
        return max(0.0, left_s)
