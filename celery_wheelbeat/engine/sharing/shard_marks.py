"""Marks by shard: up to when every run of a shard and destination is confirmed, or counted as skipped.

Invariant: a mark is never raised but by ``moved`` and ``at_least``. Merging takes the greatest, so the order in which
marks are read does not matter. The encoding may lower a mark, which costs copies of runs; a mark that is too late would
lose runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from celery_wheelbeat.errors import WheelbeatError
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from celery_wheelbeat.schedules.kinds import Int64s

UNKNOWN_MS: Final = ALWAYS_MS
"""A shard without a mark."""
GROUPS: Final = 16
"""Greatest number of different marks that the encoding keeps."""
SHARDS_MAX: Final = 1 << 16


class InvalidShardMarks(WheelbeatError, ValueError):
    """Encoded marks that cannot be read."""


class ShardMarks:
    """The marks of one destination. A value: no method changes it."""

    __slots__ = ("ms",)

    def __init__(self, ms: Int64s) -> None:
        """``ms``: by shard, ``UNKNOWN_MS`` where there is no mark. The length is a power of two."""
        if not len(ms) or len(ms) & (len(ms) - 1):
            raise InvalidShardMarks(f"{len(ms)} shards: expected a power of two")
        self.ms: Int64s = np.array(ms, np.int64)
        self.ms.flags.writeable = False

    @classmethod
    def uniform(cls, shards: int, mark_ms: int) -> ShardMarks:
        """Return the same mark for every shard."""
        return cls(np.full(shards, mark_ms))

    def __len__(self) -> int:
        return len(self.ms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardMarks) and np.array_equal(self.ms, other.ms)

    __hash__ = None  # type: ignore[assignment]  # compared by value

    def __repr__(self) -> str:
        return f"ShardMarks({self.encoded()})"

    @property
    def known(self) -> NDArray[np.bool_]:
        """By shard: whether there is a mark."""
        known: NDArray[np.bool_] = self.ms != UNKNOWN_MS
        return known

    @property
    def lowest_ms(self) -> int | None:
        """The earliest mark, None without any."""
        known = self.ms[self.known]
        return int(known.min()) if len(known) else None

    @property
    def latest_ms(self) -> int | None:
        """The latest mark, None without any."""
        latest = int(self.ms.max())
        return None if latest == UNKNOWN_MS else latest

    def of(self, job_ids: Int64s) -> Int64s:
        """Return the mark of the shard of each job."""
        marks: Int64s = self.ms[job_ids & (len(self.ms) - 1)]
        return marks

    def merged(self, other: ShardMarks) -> ShardMarks:
        """Return the later mark of each shard; the result has the larger number of shards."""
        shards = max(len(self), len(other))
        return ShardMarks(np.maximum(self.resized(shards).ms, other.resized(shards).ms))

    def moved(self, passed_ms: int, oldest_ms: Int64s) -> ShardMarks:
        """Return the marks moved forward.

        ``passed_ms``: up to when fire times were handed out. ``oldest_ms``: by shard, the earliest fire time that is
        not settled, ``NEVER_MS`` if there is none.
        """
        return ShardMarks(np.maximum(self.ms, np.minimum(passed_ms, oldest_ms - 1)))

    def at_least(self, floor_ms: int) -> ShardMarks:
        """Return the marks, none earlier than ``floor_ms``."""
        return ShardMarks(np.maximum(self.ms, floor_ms))

    def capped(self, limit_ms: int) -> ShardMarks:
        """Return the marks, none later than ``limit_ms``: after a backward step of the clock, or read from another."""
        return ShardMarks(np.minimum(self.ms, limit_ms))

    def filled(self) -> ShardMarks:
        """Return the marks with the lowest known one where there is none; unchanged without any."""
        lowest_ms = self.lowest_ms
        return self if lowest_ms is None else ShardMarks(np.where(self.known, self.ms, lowest_ms))

    def covers(self, other: ShardMarks) -> bool:
        """Return whether every mark of ``other`` has a mark here that is as late or later."""
        shards = max(len(self), len(other))
        return bool((self.resized(shards).ms >= other.resized(shards).ms).all())

    def resized(self, shards: int) -> ShardMarks:
        """Return the marks for another number of shards; of shards that become one, the earliest mark."""
        if shards >= len(self):
            return ShardMarks(np.tile(self.ms, shards // len(self)))
        return ShardMarks(self.ms.reshape(-1, shards).min(axis=0))

    def encoded(self) -> dict[str, Any]:
        """Return plain values for JSON: the latest mark, the shards that have one, and earlier marks by mask."""
        known = np.flatnonzero(self.known)
        lowered = _lowered(self.ms[known])
        mark_ms = int(lowered.max()) if len(known) else None
        behind = {mask_of(known[lowered == ms]): int(ms) for ms in np.unique(lowered).tolist() if ms != mark_ms}
        return {"shards": len(self), "mask": mask_of(known), "mark_ms": mark_ms, "behind": behind}

    @classmethod
    def read(cls, encoded: Mapping[str, Any]) -> ShardMarks:
        """Read what ``encoded`` returned; raises ``InvalidShardMarks`` for anything else."""
        try:
            shards, mark_ms = int(encoded["shards"]), encoded["mark_ms"]
            ms = np.full(_count(shards), UNKNOWN_MS)
            known = shards_of(encoded["mask"], shards)
            if len(known):
                ms[known] = _mark(mark_ms)
            for mask, earlier_ms in dict(encoded["behind"]).items():
                group = np.intersect1d(shards_of(mask, shards), known)
                ms[group] = np.minimum(ms[group], _mark(earlier_ms))
            return cls(ms)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidShardMarks(f"marks {encoded!r:.200} cannot be read ({error})") from None


def mask_of(shards: NDArray[np.integer[Any]]) -> str:
    """Return shard numbers as a hexadecimal mask; shard 0 is the lowest bit."""
    return f"{sum(1 << shard for shard in shards.tolist()):x}"


def shards_of(mask: str, shards: int) -> NDArray[np.intp]:
    """Return the shard numbers of a hexadecimal mask, ascending; raises ``ValueError`` for one of more shards."""
    if not isinstance(mask, str) or len(mask) > shards // 4 + 1 or not set(mask) <= set("0123456789abcdef"):
        raise ValueError(f"{mask!r:.80} is not a mask of {shards} shards")
    bits = int(mask, 16)
    if bits >> shards:
        raise ValueError(f"{mask:.80} is not a mask of {shards} shards")
    return np.array([shard for shard in range(shards) if bits >> shard & 1], np.intp)


def _count(shards: int) -> int:
    if not 1 <= shards <= SHARDS_MAX:
        raise ValueError(f"{shards} shards: expected 1 to {SHARDS_MAX}")
    return shards


def _mark(value: object) -> int:
    if type(value) is not int or not ALWAYS_MS < value < NEVER_MS:
        raise ValueError(f"{value!r:.40} is not a mark in ms")
    return value


def _lowered(marks_ms: Int64s) -> Int64s:
    """Return the marks with at most ``GROUPS`` different values, none later than the mark that it replaces.

    Groups are cut where the distance between neighbouring marks is greatest.
    """
    values = np.unique(marks_ms)
    if len(values) <= GROUPS:
        return marks_ms
    cuts = np.argsort(np.diff(values), kind="stable")[-(GROUPS - 1) :] + 1
    firsts = values[np.sort(np.concatenate(([0], cuts)))]
    lowered: Int64s = firsts[np.searchsorted(firsts, marks_ms, side="right") - 1]
    return lowered
