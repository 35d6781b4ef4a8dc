"""The account of every run: ``sent + Σ skipped(reason) + pending = expected``.

One ledger per process, written by the scheduling thread alone. Counters only grow. Whoever lets a run go without
sending it says why, out of a closed list; there is no way to correct an entry, so a difference stays visible.
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
    "ended",
    "error",
    "unroutable",
    "expired",
    "quarantined",
    "shutdown",
)
"""Why a run was not sent. Closed: a new reason is a change of the documented contract."""


class Ledger:
    """Counters in runs. *Pending* is not kept here: the backlog knows it, and the identity compares the two."""

    def __init__(self) -> None:
        self.expected = 0
        """Fire times that the wheel passed, plus those of the gap at start."""
        self.sent = 0
        """Confirmed by the broker."""
        self.reoffered = 0
        """Confirmed runs that may have been sent before the restart; outside the sum."""
        self.skipped: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self.last_skips = LastSkips()
        """For people who ask why a job did not run; noted by whoever knows the runs."""

    def expect(self, runs: int) -> None:
        """Note ``runs`` fire times that have to be sent or accounted for."""
        self.expected += _positive(runs)

    def confirm(self, runs: int) -> None:
        """Note ``runs`` that the broker has taken responsibility for."""
        self.sent += _positive(runs)

    def skip(self, reason: str, runs: int) -> None:
        """Note ``runs`` that will not be sent; raises ``ValueError`` for a reason outside ``REASONS``."""
        if reason not in REASONS:
            raise ValueError(f"{reason!r} is not a reason to skip a run: expected one of {', '.join(REASONS)}")
        self.skipped[reason] += _positive(runs)

    def reoffer(self, runs: int) -> None:
        """Note ``runs`` that were confirmed a second time on purpose, after a restart."""
        self.reoffered += _positive(runs)

    @property
    def settled(self) -> int:
        """Runs whose fate is known: sent or skipped."""
        return self.sent + self.skipped.total()

    def difference(self, pending: int) -> int:
        """Return by how much the identity fails for ``pending`` waiting runs; the only good value is 0."""
        return self.expected - self.settled - pending


def _positive(runs: int) -> int:
    if runs < 0:
        raise ValueError(f"{runs} runs: a ledger only grows, expected a number ≥ 0")
    return int(runs)


STRETCHES_MAX = 20
JOBS_NAMED_MAX = 8
_LOOKED_AT = 256
"""Of more runs at once nobody asks whose they are."""
TOGETHER_MS = 60_000
"""Fire times of one reason that lie no further apart belong to one stretch."""


class Stretch(NamedTuple):
    """Runs that were skipped for one reason."""

    reason: str
    runs: int
    from_ms: int
    """Earliest fire time, or begin of the gap."""
    until_ms: int
    """Latest fire time, or end of the gap; inclusive."""
    job_ids: tuple[int, ...]
    """The jobs, ascending; empty where they are too many or not known."""


class LastSkips:
    """The last ``STRETCHES_MAX`` stretches, the newest last. Owned by the scheduling thread."""

    def __init__(self) -> None:
        self._stretches: list[Stretch] = []

    def __iter__(self) -> Iterator[Stretch]:
        return iter(self._stretches)

    def note_runs(self, reason: str, ids: Int64s, fire_ms: Int64s) -> None:
        """Note skipped runs, job by job."""
        if len(ids):
            jobs = np.unique(ids[:_LOOKED_AT]).tolist()
            named = tuple(jobs) if len(ids) <= _LOOKED_AT and len(jobs) <= JOBS_NAMED_MAX else ()
            self._note(Stretch(reason, len(ids), int(fire_ms.min()), int(fire_ms.max()), named))

    def note_gap(self, reason: str, runs: int, after_ms: int, until_ms: int) -> None:
        """Note ``runs`` that were skipped in (``after_ms``, ``until_ms``], of jobs that nobody listed."""
        if runs:
            self._note(Stretch(reason, runs, after_ms + 1, until_ms, ()))

    def _note(self, new: Stretch) -> None:
        for position in range(len(self._stretches) - 1, -1, -1):
            known = self._stretches[position]
            if known.reason == new.reason:
                if _apart_ms(known, new) <= TOGETHER_MS:
                    del self._stretches[position]
                    new = _together(known, new)
                break
        self._stretches.append(new)
        del self._stretches[:-STRETCHES_MAX]


def _apart_ms(one: Stretch, other: Stretch) -> int:
    return max(one.from_ms, other.from_ms) - min(one.until_ms, other.until_ms)


def _together(one: Stretch, other: Stretch) -> Stretch:
    named = tuple(sorted({*one.job_ids, *other.job_ids})) if one.job_ids and other.job_ids else ()
    return Stretch(
        one.reason,
        one.runs + other.runs,
        min(one.from_ms, other.from_ms),
        max(one.until_ms, other.until_ms),
        named if len(named) <= JOBS_NAMED_MAX else (),
    )
