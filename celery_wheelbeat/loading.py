"""The initial load as the scheduling thread sees it: is there room, how far is it, and what remains to do at its end.

Says something every few seconds, so that whoever waits knows for what. It must never hold a tick up.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from celery_wheelbeat import capacity
from celery_wheelbeat.errors import TooManyJobs
from celery_wheelbeat.observe import memory

if TYPE_CHECKING:
    from celery_wheelbeat.engine import Engine

logger = logging.getLogger("celery.beat")

TERMINAL_S = 2.0
LOG_S = 10.0
"""Seconds between two lines about the progress: somebody waits at a terminal, a log is read later."""


class Loading:
    """One load. Owned by the scheduling thread."""

    def __init__(self, engine: Engine) -> None:
        self.jobs = 0
        """How many monitors the database is thought to have."""
        self._engine = engine
        self._begun_s = self._line_s = 0.0
        self._every_s = TERMINAL_S if sys.stderr is not None and sys.stderr.isatty() else LOG_S

    def begin(self, jobs: int, text_bytes: float, now_s: float) -> None:
        """Make room for about ``jobs``; raises ``TooManyJobs`` where there is none."""
        max_jobs = self._engine.config.max_jobs
        reason = capacity.refusal(jobs, text_bytes, max_jobs=max_jobs, available_bytes=memory.available_bytes())
        if reason is not None:
            raise TooManyJobs(f"beat: {reason}")
        self.jobs = jobs
        self._begun_s = self._line_s = now_s
        self._engine.expect(jobs)

    def go_on(self, now_s: float) -> None:
        """Say how far it is, when it is time."""
        if now_s - self._line_s < self._every_s:
            return
        self._line_s = now_s
        done = len(self._engine)
        rate = done / max(1e-3, now_s - self._begun_s)
        left_s = max(0, self.jobs - done) / max(1.0, rate)
        logger.info(
            "beat: Read %s of about %s monitors; %s/s, %.0f s to go",
            f"{done:,}",
            f"{self.jobs:,}",
            f"{rate:,.0f}",
            left_s,
        )

    def end(self, now_s: float) -> None:
        """Everything is there."""
        memory.settle()
        took_s = f" in {now_s - self._begun_s:.1f} s" if self._begun_s else ""
        logger.info("beat: %d jobs loaded%s", len(self._engine), took_s)
