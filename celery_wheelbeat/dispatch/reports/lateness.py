"""Lateness of confirmed runs: quantiles of the last one to two minutes, and a histogram since the start.

Quantiles come from buckets that grow by an eighth of a power of two: each is at most 9 % too high, for any number of
runs. Two windows of a minute each expire old runs without a list of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from celery_wheelbeat.schedules.kinds import Int64s

_STEPS = 8
"""Buckets per doubling."""
_BUCKETS = 30 * _STEPS
"""Up to 2**30 ms, twelve days; greater lateness counts in the last bucket."""
_HALF_S = 60.0

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds, inclusive, of the histogram; frozen, because alarms and dashboards depend on them."""
_BOUNDS_MS = tuple(round(bound_s * 1000) for bound_s in BOUNDS_S)


class Quantiles(NamedTuple):
    """Lateness in seconds (confirmed minus fire time) of ``runs`` runs; zeros if there were none."""

    runs: int
    p50_s: float
    p99_s: float
    max_s: float


class Histogram(NamedTuple):
    """Lateness of every run confirmed since the start of the process."""

    counts: tuple[int, ...]
    """Runs per bound of ``BOUNDS_S`` (the first that a run does not exceed), and last the runs beyond all bounds."""
    sum_s: float
    """Sum of all latenesses; a run confirmed ahead of its fire time (a clock set back) counts as 0."""


class Lateness:
    """Counts the lateness of confirmed runs."""

    def __init__(self) -> None:
        self._ever = [0] * (len(BOUNDS_S) + 1)
        self._ever_ms = 0
        self._now = _Half()
        self._before = _Half()
        self._turn_s: float | None = None

    def note(self, lateness_ms: int, now_s: float, runs: int = 1) -> None:
        """Count confirmed runs; ``now_s`` is monotonic."""
        self._turn(now_s)
        self._now.counts[_bucket(lateness_ms)] += runs
        self._now.max_ms = max(self._now.max_ms, lateness_ms)
        self._ever[bisect_left(_BOUNDS_MS, lateness_ms)] += runs
        self._ever_ms += max(0, lateness_ms) * runs

    def note_all(self, fires_ms: Int64s, at_ms: int, now_s: float) -> None:
        """Count runs that were confirmed together at ``at_ms``."""
        distinct_ms, counts = np.unique(fires_ms, return_counts=True)
        for fire_ms, runs in zip(distinct_ms.tolist(), counts.tolist(), strict=True):
            self.note(at_ms - fire_ms, now_s, runs)

    def histogram(self) -> Histogram:
        """Return the histogram since the start."""
        return Histogram(tuple(self._ever), self._ever_ms / 1000)

    def quantiles(self, now_s: float) -> Quantiles:
        """Return the quantiles of the last one to two minutes."""
        self._turn(now_s)
        counts = [now + before for now, before in zip(self._now.counts, self._before.counts, strict=True)]
        total = sum(counts)
        max_ms = max(self._now.max_ms, self._before.max_ms)
        if total == 0:
            return Quantiles(0, 0.0, 0.0, 0.0)
        return Quantiles(
            total,
            min(_quantile_ms(counts, total * 0.50), max_ms) / 1000,
            min(_quantile_ms(counts, total * 0.99), max_ms) / 1000,
            max_ms / 1000,
        )

    def _turn(self, now_s: float) -> None:
        if self._turn_s is None:
            self._turn_s = now_s
        passed = int((now_s - self._turn_s) // _HALF_S)
        if passed > 0:
            self._before = self._now if passed == 1 else _Half()
            self._now = _Half()
            self._turn_s += passed * _HALF_S


class _Half:
    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        self.max_ms = 0


def _bucket(lateness_ms: int) -> int:
    return min(_BUCKETS - 1, int(math.log2(lateness_ms) * _STEPS) + 1) if lateness_ms >= 1 else 0


def _quantile_ms(counts: list[int], rank: float) -> float:
    seen = 0
    for bucket, count in enumerate(counts):
        seen += count
        if count and seen >= rank:
            return 0.0 if bucket == 0 else float(2 ** (bucket / _STEPS))
    return 0.0
