"""Log lines about missed time: one line per start, stall, forward step of the clock, and outage of the broker.

A line of the first three kinds reports the runs offered for sending and the runs skipped, by reason; their sum is the
growth of the ledger's *expected* in that time. Runs that are offered again are not included, as in the ledger.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_wheelbeat.jobs.definitions import Offer
from celery_wheelbeat.runtime.clock import Motion

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.engine.ledger import Ledger
    from celery_wheelbeat.jobs.definitions import DueBatch
    from celery_wheelbeat.runtime.clock import Reading

logger = logging.getLogger("celery.beat")


OVERFLOW_EVERY_S = 60.0
"""Seconds between two lines about runs that were skipped as backlog although the broker was connected."""


@dataclass
class _Gap:
    """Outcomes of the runs of one gap so far."""

    length_ms: int | None
    """None: first start, no process ran before."""
    motion: Motion = Motion.STEADY
    replayed: int = 0
    again: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def length_s(self) -> float:
        return max(0, self.length_ms or 0) / 1000

    @property
    def skipped_by_reason(self) -> str:
        reasons = ", ".join(f"{reason} {runs:,}" for reason, runs in self.skipped.most_common())
        return f"{self.skipped.total():,} ({reasons})" if reasons else "0"


class GapLog:
    """Counts and logs the gaps of one beat."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._start: _Gap | None = None
        self._stall: _Gap | None = None

    def begin_start(self, away_ms: int | None) -> None:
        """Begin the gap of a start; ``away_ms``: time since the mark, None = first start."""
        if self._start is None:
            self._start = _Gap(away_ms)
        self._start.length_ms = away_ms

    def in_start(self, settle: Callable[[], list[DueBatch]]) -> list[DueBatch]:
        """Call ``settle``, which loads jobs, and count what it offers and skips."""
        return self._counted(self._start, settle)

    def end_start(self) -> None:
        """End the gap of the start, after the load, and log it."""
        gap, self._start = self._start, None
        if gap is None:
            return
        replayed, skipped = _runs(gap.replayed), gap.skipped_by_reason
        if gap.length_ms is None:
            logger.info("beat: First start: replayed %s, skipped %s", replayed, skipped)
        else:
            logger.info(
                "beat: Restart after %.1f s: replayed %s, skipped %s, offered %s again",
                gap.length_s,
                replayed,
                skipped,
                f"{gap.again:,}",
            )

    @property
    def stalled(self) -> bool:
        """Whether missed slots of a stall or of a forward step are still to be processed."""
        return self._stall is not None

    def begin_stall(self, reading: Reading) -> None:
        """Begin a stall; further stalls before the engine has caught up are part of it."""
        if self._stall is None:
            self._stall = _Gap(0, reading.motion)
        self._stall.length_ms = (self._stall.length_ms or 0) + reading.gap_ms

    def in_stall(self, catch_up: Callable[[], list[DueBatch]]) -> list[DueBatch]:
        """Call ``catch_up``, which advances the engine, and count what it offers and skips if there is a stall."""
        return self._counted(self._stall, catch_up)

    def end_stall(self) -> None:
        """End the stall, after the engine has caught up, and log it."""
        gap, self._stall = self._stall, None
        if gap is None:
            return
        replayed, skipped = _runs(gap.replayed), gap.skipped_by_reason
        if gap.motion is Motion.FORWARD:
            logger.warning(
                "beat: Clock set forward by %.1f s: replayed %s, skipped %s", gap.length_s, replayed, skipped
            )
        else:
            logger.warning("beat: Stall of %.1f s: replayed %s, skipped %s", gap.length_s, replayed, skipped)

    def _counted(self, gap: _Gap | None, work: Callable[[], list[DueBatch]]) -> list[DueBatch]:
        if gap is None:
            return work()
        before = self._ledger.skipped.copy()
        due = work()
        gap.skipped += self._ledger.skipped - before
        for batch in due:
            if batch.offer is Offer.REOFFERED:
                gap.again += len(batch)
            else:
                gap.replayed += len(batch)
        return due


class OutageLog:
    """Counts and logs the runs of one beat that were skipped as backlog."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._logged = 0
        """Runs in the lines so far."""
        self._outage = ""
        """Cause of the current outage; empty if there is none."""
        self._begun_s = self._overflow_due_s = 0.0

    def update(self, now_s: float, outage: str) -> None:
        """Log the runs skipped in an outage at its end. ``outage``: why nothing can be sent, empty if runs are sent."""
        if outage:
            if not self._outage:
                self._begun_s = now_s
            self._outage = outage
            return
        ended, self._outage = self._outage, ""
        runs = self._ledger.skipped["backlog"] - self._logged
        if not runs or not (ended or now_s >= self._overflow_due_s):
            return
        self._logged += runs
        self._overflow_due_s = now_s + OVERFLOW_EVERY_S
        if ended:
            logger.warning("beat: %s skipped as backlog while %s (%.0f s)", _were(runs), ended, now_s - self._begun_s)
        else:
            logger.warning(
                "beat: %s skipped as backlog with the broker connected: it refused the runs of these jobs, or more than"
                " wheelbeat_backlog_max runs waited",
                _were(runs),
            )


def _were(count: int) -> str:
    return f"{_runs(count)} {'was' if count == 1 else 'were'}"


def _runs(count: int) -> str:
    return f"{count:,} run" if count == 1 else f"{count:,} runs"
