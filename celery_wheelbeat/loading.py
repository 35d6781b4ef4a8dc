"""The initial load as the scheduling thread sees it: is there room, how far is it, and what remains to do at its end.

Says something every few seconds, so that whoever waits knows for what: on the terminal that the beat was started from,
and in the log. It must never hold a tick up.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_wheelbeat import capacity
from celery_wheelbeat.errors import TooManyJobs
from celery_wheelbeat.observe import memory
from celery_wheelbeat.observe.status import ColdStart
from celery_wheelbeat.observe.terminal import TerminalLine

if TYPE_CHECKING:
    from celery_wheelbeat.engine import Engine

logger = logging.getLogger("celery.beat")

TERMINAL_S = 1.0
LOG_S = 10.0
"""Seconds between two lines about the progress: somebody waits at a terminal, a log is read later."""


class Loading:
    """One load. Owned by the scheduling thread."""

    def __init__(self, engine: Engine, terminal: TerminalLine | None = None) -> None:
        self.jobs = 0
        """How many monitors the database is thought to have."""
        self.done: ColdStart | None = None
        """The load as it ended; None before."""
        self._engine = engine
        self._terminal = terminal or TerminalLine.of_process()
        self._before = 0
        """Jobs that the engine held before: entries."""
        self._begun_s = self._shown_s = self._logged_s = 0.0

    def begin(self, jobs: int, text_bytes: float, now_s: float) -> None:
        """Make room for about ``jobs``; raises ``TooManyJobs`` where there is none."""
        max_jobs = self._engine.config.max_jobs
        reason = capacity.refusal(jobs, text_bytes, max_jobs=max_jobs, available_bytes=memory.available_bytes())
        if reason is not None:
            raise TooManyJobs(f"beat: {reason}")
        self.jobs, self._before = jobs, len(self._engine)
        self._begun_s = self._shown_s = self._logged_s = now_s
        self._engine.expect(jobs)
        self._show(now_s)

    def go_on(self, now_s: float) -> None:
        """Say how far it is, when it is time."""
        if now_s - self._shown_s >= TERMINAL_S:
            self._shown_s = now_s
            self._show(now_s)
        if now_s - self._logged_s >= LOG_S:
            self._logged_s = now_s
            logger.info("beat: Read %s of about %s monitors; %s", *self._progress(now_s))

    def end(self, now_s: float) -> None:
        """Everything is there."""
        self._terminal.clear()
        memory.settle()
        took_s = ""
        if self._begun_s:
            self.done = ColdStart(len(self._engine), round(now_s - self._begun_s, 3))
            took_s = f" in {self.done.took_s:.1f} s"
        logger.info("beat: %d jobs loaded%s", len(self._engine), took_s)

    def _show(self, now_s: float) -> None:
        self._terminal.show("beat: Read {} of about {} monitors; {}".format(*self._progress(now_s)))

    def _progress(self, now_s: float) -> tuple[str, str, str]:
        """Return how many are read, how many there are, and how it goes on."""
        done, passed_s = max(0, len(self._engine) - self._before), now_s - self._begun_s
        rate = done / passed_s if passed_s > 0 else 0.0
        pace = f"{rate:,.0f}/s, {max(0, self.jobs - done) / rate:.0f} s to go" if rate else "just begun"
        return f"{done:,}", f"{self.jobs:,}", pace
