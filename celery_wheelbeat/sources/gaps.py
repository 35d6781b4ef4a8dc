"""Ids of a change log that are missing below the highest one read: their transactions may still commit.

Pure values. A gap is an inclusive range with the instant it was first seen; reading a number again that was read
before is harmless, so gaps may be merged into wider ones when there are too many.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_GAPS = 64


class Gap(NamedTuple):
    """Ids ``low … high`` (inclusive), missing since ``since_s`` on a monotonic clock."""

    low: int
    high: int
    since_s: float


def missing_between(low: int, ids: Iterable[int], since_s: float) -> list[Gap]:
    """Return the ranges from ``low`` on that the ascending ``ids`` leave out, up to the last of them."""
    gaps = []
    for found in ids:
        if found > low:
            gaps.append(Gap(low, found - 1, since_s))
        low = found + 1
    return gaps


def without(gap: Gap, ids: Iterable[int]) -> list[Gap]:
    """Return what is left of ``gap`` when the ascending ``ids`` inside it were found."""
    return [left for left in missing_between(gap.low, [*ids, gap.high + 1], gap.since_s) if left.low <= left.high]


def bounded(gaps: Sequence[Gap], limit: int = MAX_GAPS) -> tuple[Gap, ...]:
    """Merge the closest neighbours until at most ``limit`` gaps remain; a merged gap is as young as its youngest."""
    merged = sorted(gaps)
    while len(merged) > limit:
        distances = [right.low - left.high for left, right in pairwise(merged)]
        at = distances.index(min(distances))
        left, right = merged[at], merged[at + 1]
        merged[at : at + 2] = [Gap(left.low, right.high, max(left.since_s, right.since_s))]
    return tuple(merged)
