"""The last skips: which runs were let go lately, and why. A memory for people, bounded; the account is the ledger's.

Skips of one reason that follow each other are one stretch of fire times, so an outage of an hour is one of them. A
stretch names its jobs while they are few; of many only the time is known, and a job's fire times in it are computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_wheelbeat.jobs import Int64s

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
