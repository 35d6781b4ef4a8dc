"""The account of every run: ``sent + Σ skipped(reason) + pending = expected``.

One ledger per process, written by the scheduling thread alone. Counters only grow. Whoever lets a run go without
sending it says why, out of a closed list; there is no way to correct an entry, so a difference stays visible.
"""

from __future__ import annotations

from collections import Counter

from celery_wheelbeat.last_skips import LastSkips

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
