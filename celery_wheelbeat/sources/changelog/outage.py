"""Outage of a database: counted, logged at its begin and end, retried with backoff."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 5.0
REMIND_S = 60.0
"""A lasting outage is logged again after this time."""


class Outage:
    """State of the outage. The thread that makes the attempts writes it; others may read the fields."""

    def __init__(self, event: str, monotonic_s: Callable[[], float]) -> None:
        self.failures = 0
        self.error: str | None = None
        self._event = event
        self._monotonic_s = monotonic_s
        self._since_s: float | None = None
        self._logged_s = 0.0
        self._wait_s = FIRST_WAIT_S

    def failed(self, error: Exception) -> float:
        """Record a failure; returns the seconds to wait before the next attempt."""
        now_s = self._monotonic_s()
        self.failures += 1
        self.error = str(error)
        if self._since_s is None:
            self._since_s = now_s
            self._wait_s = FIRST_WAIT_S
        if self._wait_s == FIRST_WAIT_S or now_s - self._logged_s >= REMIND_S:
            self._logged_s = now_s
            logger.error("%s: %s; trying again", self._event, error)
        wait_s, self._wait_s = self._wait_s, min(LONGEST_WAIT_S, self._wait_s * 2)
        return wait_s

    def over(self) -> None:
        """Record a success."""
        if self._since_s is not None:
            lasted_s = self._monotonic_s() - self._since_s
            logger.warning("%s: works again after %.1f s", self._event, lasted_s)
        self._since_s = self.error = None
