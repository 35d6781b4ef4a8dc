"""The account of every run: ``sent + Σ skipped(reason) + handed_on + pending = expected``.

There is one ledger per process, for the shards that it answers for. Counters only grow. A run that is dropped without
being sent is entered with a reason from a closed list. Entries cannot be corrected, so a difference stays visible.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_wheelbeat.schedules.kinds import Int64s


REASONS = (
    "restart",
    "stall",
    "clock",
    "backlog",
    "removed",
    "cancelled",
    "ended",
    "error",
    "unroutable",
    "expired",
    "quarantined",
    "shutdown",
)
"""Why a run was not sent. A closed list: a new reason changes the documented contract."""


PERIODS_MAX = 20
JOBS_NAMED_MAX = 8
_EXAMINED_MAX = 256
"""If more runs are skipped at once, their jobs are not recorded."""
TOGETHER_MS = 60_000
"""Skips of one reason whose fire times lie no further apart are merged into one period."""


class Ledger:
    """Counters in runs. *Pending* is not counted here but passed to ``difference``, from the backlog."""

    def __init__(self) -> None:
        self.expected = 0
        """Fire times that the engine passed, plus those in the gap at start."""
        self.sent = 0
        """Confirmed by the broker."""
        self.reoffered = 0
        """Confirmed runs that may have been sent before the restart; not part of the sum."""
        self.handed_on = 0
        """Given away unsent with their shard: the beat that takes it expects them again."""
        self.followed = 0
        """Fire times of shards that another beat answers for; not part of the sum."""
        self.skipped: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self.last_skips = LastSkips()
        """Recent skips, to explain why a job did not run; recorded by the code that skips the runs."""

    def expect(self, runs: int) -> None:
        """Count ``runs`` fire times that must be sent or skipped."""
        self.expected += _positive(runs)

    def confirm(self, runs: int) -> None:
        """Count ``runs`` confirmed by the broker."""
        self.sent += _positive(runs)

    def skip(self, reason: str, runs: int) -> None:
        """Count ``runs`` that will not be sent; raises ``ValueError`` for a reason outside ``REASONS``."""
        if reason not in REASONS:
            raise ValueError(f"{reason!r} is not a reason to skip a run: expected one of {', '.join(REASONS)}")
        self.skipped[reason] += _positive(runs)

    def reoffer(self, runs: int) -> None:
        """Count ``runs`` that were offered again after a restart and confirmed."""
        self.reoffered += _positive(runs)

    def hand_on(self, runs: int) -> None:
        """Count ``runs`` that were expected here and are given away unsent."""
        self.handed_on += _positive(runs)

    def follow(self, runs: int) -> None:
        """Count ``runs`` that are due and that another beat answers for."""
        self.followed += _positive(runs)

    @property
    def settled(self) -> int:
        """Runs that are sent, skipped or given away."""
        return self.sent + self.skipped.total() + self.handed_on

    def difference(self, pending: int) -> int:
        """Return expected - settled - ``pending``; not 0 means that a run is missing or counted twice."""
        return self.expected - self.settled - pending


def _positive(runs: int) -> int:
    if runs < 0:
        raise ValueError(f"{runs} runs: a ledger only grows, expected a number ≥ 0")
    return int(runs)


class SkippedPeriod(NamedTuple):
    """Runs skipped for one reason within a period of time."""

    reason: str
    runs: int
    from_ms: int
    """Earliest fire time, or start of the gap."""
    until_ms: int
    """Latest fire time, or end of the gap; inclusive."""
    job_ids: tuple[int, ...]
    """The jobs, ascending; empty if unknown or more than ``JOBS_NAMED_MAX``."""


class LastSkips:
    """The last ``PERIODS_MAX`` periods, newest last."""

    def __init__(self) -> None:
        self._periods: list[SkippedPeriod] = []

    def __iter__(self) -> Iterator[SkippedPeriod]:
        return iter(self._periods)

    def note_runs(self, reason: str, ids: Int64s, fire_ms: Int64s) -> None:
        """Record skipped runs with their jobs."""
        if len(ids):
            jobs = np.unique(ids[:_EXAMINED_MAX]).tolist()
            named = tuple(jobs) if len(ids) <= _EXAMINED_MAX and len(jobs) <= JOBS_NAMED_MAX else ()
            self._note(SkippedPeriod(reason, len(ids), int(fire_ms.min()), int(fire_ms.max()), named))

    def note_gap(self, reason: str, runs: int, after_ms: int, until_ms: int) -> None:
        """Record ``runs`` skipped in (``after_ms``, ``until_ms``] without their jobs."""
        if runs:
            self._note(SkippedPeriod(reason, runs, after_ms + 1, until_ms, ()))

    def _note(self, new: SkippedPeriod) -> None:
        for position in range(len(self._periods) - 1, -1, -1):
            known = self._periods[position]
            if known.reason == new.reason:
                if _apart_ms(known, new) <= TOGETHER_MS:
                    del self._periods[position]
                    new = _together(known, new)
                break
        self._periods.append(new)
        del self._periods[:-PERIODS_MAX]


def _apart_ms(one: SkippedPeriod, other: SkippedPeriod) -> int:
    return max(one.from_ms, other.from_ms) - min(one.until_ms, other.until_ms)


def _together(one: SkippedPeriod, other: SkippedPeriod) -> SkippedPeriod:
    named = tuple(sorted({*one.job_ids, *other.job_ids})) if one.job_ids and other.job_ids else ()
    return SkippedPeriod(
        one.reason,
        one.runs + other.runs,
        min(one.from_ms, other.from_ms),
        max(one.until_ms, other.until_ms),
        named if len(named) <= JOBS_NAMED_MAX else (),
    )
