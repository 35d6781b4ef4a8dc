"""Pending writes of the beat: status, quarantine, finished monitors.

The scheduling thread fills it, the I/O thread empties it. A write is removed only after the database has confirmed it.
A newer value replaces an unwritten one, so memory stays bounded in an outage of any length.
"""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.jobs.definitions import Finished
    from celery_wheelbeat.sources import BeatStore
    from celery_wheelbeat.sources.messages import Receipt

FINISH_BATCH = 1_000


class Outbox:
    """Pending writes of one beat. Thread-safe."""

    def __init__(self, beat_id: str) -> None:
        self.beat_id = beat_id
        self._lock = threading.Lock()
        self._status: Mapping[str, Any] | None = None
        self._receipt: Receipt | None = None
        self._finished: dict[int, Finished] = {}
        self._added: dict[str, tuple[str, str]] = {}
        self._lifted: set[str] = set()

    def put_status(self, row: Mapping[str, Any], receipt: Receipt | None = None) -> None:
        """Replace the status row that will be written next; ``receipt`` is settled by the first attempt to write it."""
        with self._lock:
            self._status = row
            self._receipt = receipt or self._receipt
            self.beat_id = str(row.get("beat_id", self.beat_id))

    def put_finished(self, finished: Mapping[int, Finished]) -> None:
        """Queue finished single-run monitors, by job id."""
        with self._lock:
            self._finished.update(finished)

    def put_quarantine(self, added: Mapping[str, tuple[str, str]], lifted: Sequence[str] = ()) -> None:
        """Queue job keys with (definition hash, reason), and lifted keys."""
        with self._lock:
            self._lifted.difference_update(added)
            self._added.update(added)
            for key in lifted:
                self._added.pop(key, None)
            self._lifted.update(lifted)

    @property
    def urgent(self) -> bool:
        """Whether a crash before the next write matters: of finished monitors, and of a row that is waited for."""
        return bool(self._finished) or self._receipt is not None

    def write_status(self, store: BeatStore) -> None:
        """Write the newest status row once, never again: a new row proves that the scheduling thread is alive."""
        with self._lock:
            row, receipt = self._status, self._receipt
        if row is None:
            return
        stored = False
        try:
            store.report(self.beat_id, row)
            stored = True
        finally:
            with self._lock:
                if stored and self._status is row:
                    self._status = None
                if self._receipt is receipt:
                    self._receipt = None
            if receipt is not None:
                receipt.stored = stored

    def write_rest(self, store: BeatStore) -> None:
        """Write finished monitors and quarantine; values queued meanwhile stay for the next call."""
        while self._finished:
            with self._lock:
                batch = dict(islice(self._finished.items(), FINISH_BATCH))
            store.finish(batch)
            with self._lock:
                for job_id, done in batch.items():
                    if self._finished.get(job_id) == done:
                        del self._finished[job_id]
        if self._added or self._lifted:
            with self._lock:
                added, lifted = dict(self._added), set(self._lifted)
            store.quarantine(added, sorted(lifted))
            with self._lock:
                self._added = {key: verdict for key, verdict in self._added.items() if added.get(key) != verdict}
                self._lifted -= lifted
