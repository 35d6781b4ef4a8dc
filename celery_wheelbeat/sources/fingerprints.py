"""What the tail has handed over, in 16 bytes a monitor: its id and a fingerprint of its row.

Two sorted columns and a small dict of what changed since they were last merged. The reconcile compares them with the
table. A fingerprint is only meaningful inside one process (Python's hash of the row).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_wheelbeat.jobs import Int64s
    from celery_wheelbeat.monitors import MonitorRow

MERGE_AT = 65_536
"""Changes after which the dict is merged into the columns."""


class Differences(NamedTuple):
    """How a range of the table differs from what was handed over; both ascending."""

    upserts: list[int]
    """Ids of rows that are new or not as they were."""
    deleted: list[int]
    """Ids that were handed over and have no row any more."""


class Fingerprints:
    """Fingerprints by id. Owned by the I/O thread."""

    def __init__(self) -> None:
        self._ids: Int64s = np.empty(0, np.int64)
        self._prints: Int64s = np.empty(0, np.int64)
        self._changed: dict[int, int | None] = {}

    def __len__(self) -> int:
        self._merge()
        return len(self._ids)

    def ids(self) -> Int64s:
        """Return every id that was handed over, ascending."""
        self._merge()
        return self._ids

    def record(self, rows: Sequence[MonitorRow]) -> None:
        """Remember the rows as handed over."""
        self._changed.update((row.id, hash(row)) for row in rows)
        if len(self._changed) >= MERGE_AT:
            self._merge()

    def forget(self, ids: Sequence[int] | Int64s) -> None:
        """Forget deleted monitors."""
        self._changed.update((int(job_id), None) for job_id in ids)
        if len(self._changed) >= MERGE_AT:
            self._merge()

    def match(self, row: MonitorRow) -> bool:
        """Whether the row is as it was handed over."""
        return not self.differences(row.id - 1, [row], last=False).upserts

    def differences(self, after_id: int, rows: Sequence[MonitorRow], *, last: bool) -> Differences:
        """Compare ``rows`` with what was handed over from ``after_id`` (exclusive) to the last row, or to the end."""
        known = self._between(after_id, None if last else rows[-1].id)
        upserts = [row.id for row in rows if known.pop(row.id, None) != hash(row)]
        return Differences(upserts, sorted(known))

    def _between(self, after_id: int, up_to_id: int | None) -> dict[int, int]:
        start = np.searchsorted(self._ids, after_id, side="right")
        end = len(self._ids) if up_to_id is None else np.searchsorted(self._ids, up_to_id, side="right")
        known = dict(zip(self._ids[start:end].tolist(), self._prints[start:end].tolist(), strict=True))
        for job_id, fingerprint in self._changed.items():
            if job_id > after_id and (up_to_id is None or job_id <= up_to_id):
                if fingerprint is None:
                    known.pop(job_id, None)
                else:
                    known[job_id] = fingerprint
        return known

    def _merge(self) -> None:
        """Bring the dict into the columns: in place where an id is there already, the columns grow or shrink once."""
        if not self._changed:
            return
        changed, self._changed = sorted(self._changed.items()), {}
        kept = [(job_id, fingerprint) for job_id, fingerprint in changed if fingerprint is not None]
        gone = np.array([job_id for job_id, fingerprint in changed if fingerprint is None], np.int64)
        ids, prints = np.array(kept, np.int64).reshape(-1, 2).T
        self._drop(gone)
        at = np.searchsorted(self._ids, ids)
        there = _present(self._ids, at, ids)
        self._prints[at[there]] = prints[there]
        self._ids = np.insert(self._ids, at[~there], ids[~there])
        self._prints = np.insert(self._prints, at[~there], prints[~there])

    def _drop(self, ids: Int64s) -> None:
        at = np.searchsorted(self._ids, ids)
        at = at[_present(self._ids, at, ids)]
        if len(at):
            self._ids, self._prints = np.delete(self._ids, at), np.delete(self._prints, at)


def _present(column: Int64s, at: np.ndarray, ids: Int64s) -> np.ndarray:
    there = np.zeros(len(ids), bool)
    inside = at < len(column)
    there[inside] = column[at[inside]] == ids[inside]
    return there
