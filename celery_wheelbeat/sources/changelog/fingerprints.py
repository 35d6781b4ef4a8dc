"""Ids and row fingerprints of all monitors handed over, in about 5 bytes per monitor.

Sorted chunks of two columns, and a small dict of the changes since the last merge. The reconcile compares them with the
table. A fingerprint comes from the database, else it is Python's hash of the row, which is valid in one process only.
32 bits are kept: one damaged row in 2^32 goes unnoticed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.jobs.rows import MonitorRow
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

MERGE_AT = 65_536
"""Number of changes in the dict at which it is merged into the chunks."""
CHUNK_IDS = 16_384
_KEPT = 0xFFFF_FFFF


class Differences(NamedTuple):
    """Differences between a range of the table and the rows handed over; both ascending."""

    upserts: list[int]
    """Ids of new or changed rows."""
    deleted: list[int]
    """Ids that were handed over and no longer have a row."""


class _IdChunk(NamedTuple):
    """Up to ``CHUNK_IDS`` monitors, ascending."""

    first: int
    last: int
    gaps: NDArray[np.unsignedinteger[Any]]
    """Difference of each id to the previous one, 0 for the first; one byte each if ids are dense, instead of four."""
    prints: UInt32s

    @property
    def ids(self) -> Int64s:
        return np.cumsum(self.gaps, dtype=np.int64) + self.first

    def between(self, after_id: int, up_to_id: int | None) -> tuple[Int64s, UInt32s]:
        """Return ids in (``after_id``, ``up_to_id``] and their fingerprints."""
        ids = self.ids
        start = int(np.searchsorted(ids, after_id, side="right"))
        end = len(ids) if up_to_id is None else int(np.searchsorted(ids, up_to_id, side="right"))
        return ids[start:end], self.prints[start:end]


def fingerprint_of(row: MonitorRow) -> int:
    """Return 32 bits that change with the definition of ``row``."""
    return (hash(repr(row)) if row.fingerprint is None else row.fingerprint) & _KEPT  # hash(nan) differs per object


class Fingerprints:
    """Fingerprints by id."""

    def __init__(self) -> None:
        self._chunks: list[_IdChunk] = []
        self._firsts: list[int] = []
        self._changed: dict[int, int | None] = {}

    def __len__(self) -> int:
        self._merge()
        return sum(len(chunk.prints) for chunk in self._chunks)

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._between(job_id - 1, job_id)

    def ids(self) -> Int64s:
        """Return every id that was handed over, ascending."""
        self._merge()
        return np.concatenate([np.empty(0, np.int64), *(chunk.ids for chunk in self._chunks)])

    def record(self, rows: Sequence[MonitorRow]) -> None:
        """Record the rows as handed over."""
        self._change((row.id, fingerprint_of(row)) for row in rows)

    def record_prints(self, ids: Int64s, prints: UInt32s) -> None:
        """Record fingerprints as handed over."""
        self._change(zip(ids.tolist(), prints.tolist(), strict=True))

    def record_block(self, after_id: int, up_to_id: int, ids: Int64s, prints: UInt32s) -> list[int]:
        """Replace the range (``after_id``, ``up_to_id``]; returns the ids that are no longer in it."""
        known = self._between(after_id, up_to_id)
        gone = sorted(known.keys() - set(ids.tolist())) if known else []
        if known or (self._chunks and up_to_id <= self._chunks[-1].last):
            self.forget(gone)
            self.record_prints(ids, prints)
        else:
            self._set(len(self._chunks), len(self._chunks), _packed(ids, prints))
        return gone

    def forget(self, ids: Sequence[int] | Int64s) -> None:
        """Forget deleted monitors."""
        self._change((int(job_id), None) for job_id in ids)

    def match(self, row: MonitorRow) -> bool:
        """Return whether the row equals the one handed over."""
        return not self.differences(row.id - 1, [row], last=False).upserts

    def differences(self, after_id: int, rows: Sequence[MonitorRow], *, last: bool) -> Differences:
        """Compare ``rows`` with the monitors handed over above ``after_id``, up to the last row or to the end."""
        known = self._between(after_id, None if last else rows[-1].id)
        upserts = [row.id for row in rows if known.pop(row.id, None) != fingerprint_of(row)]
        return Differences(upserts, sorted(known))

    def _between(self, after_id: int, up_to_id: int | None) -> dict[int, int]:
        known: dict[int, int] = {}
        for chunk in self._chunks[max(0, bisect_right(self._firsts, after_id) - 1) :]:
            if up_to_id is not None and chunk.first > up_to_id:
                break
            ids, prints = chunk.between(after_id, up_to_id)
            known.update(zip(ids.tolist(), prints.tolist(), strict=True))
        for job_id, fingerprint in self._changed.items():
            if job_id > after_id and (up_to_id is None or job_id <= up_to_id):
                if fingerprint is None:
                    known.pop(job_id, None)
                else:
                    known[job_id] = fingerprint
        return known

    def _change(self, changes: Iterable[tuple[int, int | None]]) -> None:
        self._changed.update(changes)
        if len(self._changed) >= MERGE_AT:
            self._merge()

    def _merge(self) -> None:
        """Merge the dict into the chunks; each chunk is rebuilt at most once."""
        if not self._changed:
            return
        changed, self._changed = sorted(self._changed.items()), {}
        ids = np.array([job_id for job_id, _ in changed], np.int64)
        kept = np.array([fingerprint is not None for _, fingerprint in changed], np.bool_)
        prints = np.array([fingerprint or 0 for _, fingerprint in changed], np.uint32)
        owner = np.maximum(np.searchsorted(np.array(self._firsts, np.int64), ids, side="right") - 1, 0)
        for number in np.unique(owner)[::-1].tolist():  # from the end: earlier positions stay valid
            mine = owner == number
            self._rewrite(number, ids[mine], prints[mine], kept[mine])

    def _rewrite(self, number: int, ids: Int64s, prints: UInt32s, kept: NDArray[np.bool_]) -> None:
        if number < len(self._chunks):
            chunk = self._chunks[number]
            stays = ~np.isin(chunk.ids, ids)
            all_ids = np.concatenate((chunk.ids[stays], ids[kept]))
            all_prints = np.concatenate((chunk.prints[stays], prints[kept]))
        else:
            all_ids, all_prints = ids[kept], prints[kept]
        order = np.argsort(all_ids, kind="stable")
        self._set(number, min(number + 1, len(self._chunks)), _packed(all_ids[order], all_prints[order]))

    def _set(self, start: int, end: int, chunks: Sequence[_IdChunk]) -> None:
        self._chunks[start:end] = chunks
        self._firsts[start:end] = [chunk.first for chunk in chunks]


def _packed(ids: Int64s, prints: UInt32s) -> list[_IdChunk]:
    return [
        _chunk(ids[start : start + CHUNK_IDS], prints[start : start + CHUNK_IDS].copy())
        for start in range(0, len(ids), CHUNK_IDS)
    ]


def _chunk(ids: Int64s, prints: UInt32s) -> _IdChunk:
    # unsigned: ids of one chunk may differ by more than int64 holds
    gaps = np.diff(ids.view(np.uint64), prepend=ids[:1].view(np.uint64))
    return _IdChunk(int(ids[0]), int(ids[-1]), gaps.astype(np.min_scalar_type(gaps.max())), prints)
