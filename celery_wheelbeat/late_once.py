"""Once jobs that the wheel cannot fire: what is late when it becomes known, and what is new in a time that is re-lived.

They are owed a run: late rather than never, whether the instant had passed when the definition was stored, while the
job was paused, or on the way here. With ``misfire=skip`` only the last of them counts. An instant that the former
definition had already is not owed twice. After a step of the clock the wheel lets no once fire up to where time had
been; an instant that is new there waits here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.jobs import Flag, Kind, Misfire, Offer
from celery_wheelbeat.misfire import policies

if TYPE_CHECKING:
    from celery_wheelbeat.jobs import DefinitionBatch, DueBatch
    from celery_wheelbeat.shards import Shards


class LateOnce:
    """What is owed. Owned by the engine."""

    def __init__(self) -> None:
        self._owed: dict[int, int] = {}
        """Job id → instant in ms."""

    def note(self, batch: DefinitionBatch, shards: Shards, after_ms: int, until_ms: int) -> None:
        """Note instants in (``after_ms``, ``until_ms``]; to be called before ``shards`` takes the definitions in."""
        once = batch.kind == Kind.ONCE
        if not once.any():
            return
        at_ms = batch.anchor_ms + batch.offset_ms
        late = once & ((batch.flags & Flag.ENABLED) > 0) & (at_ms > after_ms) & (at_ms <= until_ms)
        late &= (at_ms >= batch.start_ms) & (at_ms < batch.end_ms)
        late &= (at_ms >= batch.effective_from_ms) | (policies(batch.flags) != Misfire.SKIP.value)
        for position in np.flatnonzero(late).tolist():
            job_id, instant_ms = int(batch.ids[position]), int(at_ms[position])
            if shards.once_of(job_id) != instant_ms:
                self._owed[job_id] = instant_ms

    def take(self, shards: Shards, cursor_ms: int) -> list[DueBatch]:
        """Return the runs due by ``cursor_ms``, once, in order; a job that has another instant by now is owed none."""
        due = sorted((at_ms, job_id) for job_id, at_ms in self._owed.items() if at_ms <= cursor_ms)
        for _, job_id in due:
            del self._owed[job_id]
        wanted = [(job_id, at_ms) for at_ms, job_id in due if shards.once_of(job_id) == at_ms]
        ids, fires = np.array(wanted, np.int64).reshape(-1, 2).T
        return shards.batches(ids, fires, Offer.MISFIRE) if wanted else []
