"""Failure lines: what the broker says about runs that it does not take, once a minute for each reason.

A refusal concerns thousands of runs at a time and comes again every second, so a line per run would bury the log.
Owned by the scheduling thread.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from celery_wheelbeat.publishers import FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_wheelbeat.publishers import Failed

logger = logging.getLogger("celery.beat")

EVERY_S = 60.0
REASONS_MAX = 20
"""Reasons that are told apart within ``EVERY_S``; reasons name queues, of which there may be many."""

_KINDS = (FailureKind.REFUSED, FailureKind.UNROUTABLE)
"""Of the others, losses of the connection and quarantines are said where they happen, errors by Celery."""


class FailureLines:
    """See the module."""

    def __init__(self) -> None:
        self._said: dict[tuple[FailureKind, str], float] = {}
        """Kind and reason → when it was said, monotonic."""

    def note(self, failures: Iterable[Failed], now_s: float) -> None:
        """Log what is new among ``failures``, which were learnt of together."""
        counts = Counter((one.kind, one.reason) for one in failures if one.kind in _KINDS)
        if counts:
            self._said = {what: said_s for what, said_s in self._said.items() if now_s - said_s < EVERY_S}
        for (kind, reason), runs in counts.items():
            if (kind, reason) in self._said or len(self._said) >= REASONS_MAX:
                continue
            self._said[kind, reason] = now_s
            if kind is FailureKind.REFUSED:
                logger.error("beat: The broker refuses %d runs for now, which are sent again: %s", runs, reason)
            else:
                logger.error("beat: %d runs have no queue and are skipped(unroutable): %s", runs, reason)
