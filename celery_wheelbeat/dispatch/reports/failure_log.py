"""Log lines about runs that were refused, unroutable or expired: one a minute for each reason.

A refusal concerns thousands of runs and repeats every second, so a line per run would flood the log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_wheelbeat.dispatch import FailureKind

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Hashable


logger = logging.getLogger("celery.beat")

EVERY_S = 60.0
SUBJECTS_MAX = 20
"""Most lines within ``EVERY_S``; subjects name queues or jobs, of which there may be many."""

_KINDS = (FailureKind.REFUSED, FailureKind.UNROUTABLE, FailureKind.EXPIRED)
"""Losses of the connection, quarantines and errors of user code are logged where they happen."""


class LinePace:
    """Rate limit of log lines: one a minute per subject, up to ``SUBJECTS_MAX`` subjects."""

    def __init__(self) -> None:
        self._logged: dict[Hashable, float] = {}
        """Subject → monotonic time of its last line."""

    def is_due(self, subject: Hashable, now_s: float) -> bool:
        """Return whether to log a line about ``subject`` now; if so, the next one is due in a minute."""
        since_s = self._logged.get(subject)
        if since_s is not None and now_s - since_s < EVERY_S:
            return False
        if len(self._logged) >= SUBJECTS_MAX:
            self._logged = {one: at_s for one, at_s in self._logged.items() if now_s - at_s < EVERY_S}
        if len(self._logged) >= SUBJECTS_MAX:
            return False
        self._logged[subject] = now_s
        return True


class FailureLog:
    """Logs failures by kind and reason."""

    def __init__(self) -> None:
        self._pace = LinePace()

    def note(self, failures: Counter[tuple[FailureKind, str]], now_s: float) -> None:
        """Log one line per kind and reason that is due; ``failures``: (kind, reason) → runs."""
        for (kind, reason), runs in failures.items():
            if kind not in _KINDS or not self._pace.is_due((kind, reason), now_s):
                continue
            if kind is FailureKind.REFUSED:
                logger.error("beat: The broker refuses %d runs for now, which are sent again: %s", runs, reason)
            elif kind is FailureKind.UNROUTABLE:
                logger.error("beat: %d runs have no queue and are skipped(unroutable): %s", runs, reason)
            else:
                logger.warning("beat: %d runs had expired before they could be sent: skipped(expired)", runs)
