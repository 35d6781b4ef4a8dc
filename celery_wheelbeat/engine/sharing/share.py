"""The share of a process: the shards whose runs it sends, and for which it keeps the account.

Invariant: a run is entered in the ledger as expected by the process that answers for its shard, and by no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.engine.sharing.followed import Followed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from celery_wheelbeat.engine.ledger import Ledger
    from celery_wheelbeat.jobs.definitions import DueBatch
    from celery_wheelbeat.schedules.kinds import Int64s


class Share:
    """All shards at first. ``shards``: a power of two; ``limit``: the most runs that are kept of followed shards."""

    def __init__(self, shards: int, ledger: Ledger, limit: int) -> None:
        self.mask = np.ones(shards, np.bool_)
        """By shard: whether this process answers for it. Changed by ``set``, replaced and never written into."""
        self.whole = True
        """Whether it answers for all of them."""
        self.outside: Int64s = np.empty(0, np.int64)
        """Jobs of other shards that this process sends: their owners do not know them."""
        self.followed = Followed(shards, limit)
        self._ledger = ledger

    def set(self, mask: NDArray[np.bool_]) -> None:
        """Answer for the shards of ``mask``."""
        self.mask, self.whole = mask.copy(), bool(mask.all())

    def only(self, number: int) -> NDArray[np.bool_]:
        """Return a mask of one shard."""
        one = np.zeros(len(self.mask), np.bool_)
        one[number] = True
        return one

    def owns(self, job_id: int) -> bool:
        """Return whether a job is sent here."""
        return bool(self.mask[job_id & (len(self.mask) - 1)]) or job_id in self.outside

    def has(self, ids: Int64s) -> NDArray[np.bool_]:
        """Return which of the jobs are sent here."""
        found: NDArray[np.bool_] = self.mask[ids & (len(self.mask) - 1)]
        return found | np.isin(ids, self.outside) if len(self.outside) else found

    def expect(self, due: list[DueBatch]) -> list[DueBatch]:
        """Enter due runs in the ledger and return those to send; keep the others."""
        if not self.whole:
            others = [batch for batch in due if not self.mask[batch.shard]]
            due = [batch for batch in due if self.mask[batch.shard]]
            if len(self.outside):
                sent = [np.isin(batch.ids, self.outside) for batch in others]
                due += [batch.take(where) for batch, where in zip(others, sent, strict=True) if where.any()]
                others = [batch.take(~where) for batch, where in zip(others, sent, strict=True)]
            self._ledger.follow(sum(map(len, others)))
            self.followed.keep(others)
        self._ledger.expect(sum(map(len, due)))
        return due
