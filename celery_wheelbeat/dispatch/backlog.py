"""The backlog of a lane: runs that are due and not settled, as (job, fire time) pairs.

Every offered run is *pending* until it leaves in exactly one way: confirmed, or skipped with a reason. Pairs, not
bytes: 20 B each in arrays, always bounded by ``limit``. The backlog never renders, sends or waits.

A lane takes runs as a *lease* (``pending.RunLeases``) and names them by its token from then on.

Two queues: *late* holds the runs that waited when the destination last failed, *fresh* holds later runs of other jobs.
Each gets a share of every ``take``, so draining an outage does not delay current runs. Within each, the jobs are served
in turn, so a job with many waiting runs does not delay the others. The runs of one job are sent in the order of their
fire times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.dispatch.pending import REOFFERED, STEP_SHIFT, PendingRuns, RunLeases, joined
from celery_wheelbeat.dispatch.queues.deferred import DeferredRuns
from celery_wheelbeat.dispatch.queues.fair_queue import FairQueue
from celery_wheelbeat.jobs.definitions import Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.pending import RunLease
    from celery_wheelbeat.engine.ledger import Ledger
    from celery_wheelbeat.jobs.definitions import DueBatch
    from celery_wheelbeat.schedules.kinds import Int64s

    KeepAll = Callable[[Int64s], NDArray[np.bool_]]
    """Job ids → whether each of them has ``misfire=all``."""


_NOBODY: Int64s = np.empty(0, np.int64)


class Leftover(NamedTuple):
    """The runs that were pending at the end of a process."""

    runs: int
    oldest_fire_ms: int | None
    newest_fire_ms: int | None


class Backlog:
    """The pending runs of one lane.

    Per tick: ``offer`` due runs, then ``take`` as many as the publisher has room for, or ``squeeze`` while the
    destination is down. ``confirm``, ``skip``, ``requeue``, ``defer`` and ``release`` end leases.
    """

    def __init__(self, ledger: Ledger, *, limit: int, keep_all: KeepAll) -> None:
        """``keep_all`` is called with the jobs whose older runs are about to be skipped."""
        self.left_queue = 0
        """Number of times that a pair left the queues: taken (again after each return) or skipped."""
        self._ledger = ledger
        self.limit = limit
        """Most pairs that may wait."""
        self.keep_all = keep_all
        self._pending = 0
        self._offered: list[PendingRuns] = []
        self._offered_count = 0
        self._late = FairQueue()
        self._jobs_ahead: Int64s | None = None
        """Sorted ids of jobs in ``_late``; later runs of these jobs go there too. None: recompute from ``_late``."""
        self._squeezed = False
        """Whether nothing was queued since the last squeeze."""
        self._fresh = FairQueue()
        self.leases = RunLeases()
        """The runs in flight."""
        self._deferred = DeferredRuns()
        self._oldest: dict[int, tuple[Int64s, int]] = {}
        """Identity of a column of waiting fire times → the column, and its earliest; so each is looked through once."""

    @property
    def pending(self) -> int:
        """Runs that are neither confirmed nor skipped; a term of the accounting identity."""
        return self._pending

    @property
    def waiting(self) -> int:
        """Pairs that can be taken, reoffered ones included."""
        return self._offered_count + self._late.count + self._fresh.count

    @property
    def strays(self) -> int:
        """Outcomes for runs that were already settled; must be 0."""
        return self.leases.strays

    @property
    def in_flight(self) -> int:
        """Pairs that were taken and not settled, deferred ones included."""
        return len(self.leases) + len(self._deferred)

    def oldest_fire_ms(self) -> int | None:
        """Return the earliest unsettled fire time, or None; the mark stays before it."""
        known, self._oldest = self._oldest, {}
        for fires_ms in self._waiting_fires():
            if len(fires_ms):
                entry = known.get(id(fires_ms))
                self._oldest[id(fires_ms)] = entry or (fires_ms, least(fires_ms))
        in_flight = self.leases.fires_ms()
        flying = [*([least(in_flight)] if len(in_flight) else []), *(run.fire_ms for run in self._deferred)]
        return min((*(oldest for _, oldest in self._oldest.values()), *flying), default=None)

    def oldest_by_shard(self, oldest_ms: Int64s) -> None:
        """Lower ``oldest_ms``, by shard, to the earliest unsettled fire time of each shard."""
        for runs in self._unsettled():
            np.minimum.at(oldest_ms, runs.ids & (len(oldest_ms) - 1), runs.fire_ms)

    def take_out(self, where: NDArray[np.bool_]) -> PendingRuns:
        """Give away the runs of the shards at ``where`` that are not in flight, and return them."""
        self._queue_offered()  # a run in the other queue than an older one of its job would overtake it
        waiting = joined([*self._late.chunks(), *self._fresh.chunks(), PendingRuns.of([*self._deferred])])
        ids = np.unique(waiting.ids[where[waiting.ids & (len(where) - 1)]])
        queued = [self._late.remove(ids), self._fresh.remove(ids)]
        gone = joined([*queued, self._deferred.remove(ids), self.leases.take_out_alone(where)]).current()
        self.left_queue += sum(len(runs.ids) for runs in queued)
        self._jobs_ahead = None
        accounted = gone.accounted()
        self._ledger.hand_on(accounted)
        self._pending -= accounted
        return gone

    def offer(self, due: DueBatch) -> None:
        """Queue the runs of ``due``, which are in the order of their fire times."""
        tag = (REOFFERED if due.offer is Offer.REOFFERED else 0) | due.step << STEP_SHIFT
        self.adopt(PendingRuns(due.ids, due.fire_ms, np.full(len(due), tag, np.int32)))

    def adopt(self, pairs: PendingRuns) -> None:
        """Queue runs, due ones or those that another backlog released."""
        self._offered.append(pairs)
        self._squeezed = False
        self._offered_count += len(pairs.ids)
        self._pending += pairs.accounted()
        if self.waiting > 2 * self.limit:  # a full window that does not move: neither take nor squeeze is called
            self.squeeze()

    # Leases.

    def take(self, runs: int) -> RunLease:
        """Lease up to ``runs`` pairs, of each job in turn; half of them come from *fresh* if it has as many."""
        return self.leases.begin(self._take(runs))

    def confirm(self, tokens: Iterable[int]) -> PendingRuns:
        """Count the runs of leases as confirmed by the broker, and return them."""
        runs = self.leases.end(tokens)
        accounted = runs.accounted()
        self._ledger.confirm(accounted)
        self._ledger.reoffer(len(runs.ids) - accounted)
        self._pending -= accounted
        return runs

    def skip(self, tokens: Iterable[int], reason: str) -> PendingRuns:
        """Count the runs of leases as skipped for ``reason`` (``error``, ``removed`` …), and return them."""
        runs = self.leases.end(tokens)
        if len(runs.ids):
            self._drop(runs, reason)
        return runs

    def release(self, tokens: Iterable[int]) -> PendingRuns:
        """Remove the runs of leases and return them; another backlog must ``adopt`` them."""
        runs = self.leases.end(tokens).current()
        self._pending -= runs.accounted()
        return runs

    def requeue(self, tokens: Iterable[int]) -> None:
        """Put runs that were not or perhaps not sent at the head of *late*; everything that waits becomes late."""
        runs = self.leases.end(tokens).current()
        if not len(runs.ids):
            return
        self._sort_in()
        self._late.append(self._fresh.clear())
        self._late.prepend(runs)
        self._jobs_ahead = None
        self._squeezed = False

    def defer(self, tokens: Iterable[int], now_s: float) -> None:
        """Keep refused runs apart for a pause; runs that are not kept are skipped(backlog)."""
        refused = self.leases.end(tokens).current()
        if len(refused.ids):
            gone = self._deferred.add(refused, now_s, keep_all=self.keep_all, limit=self.limit)
            if len(gone.ids):
                self._drop(gone, "backlog")

    def requeue_deferred(self, now_s: float) -> None:
        """Put deferred runs whose pause is over at the end of *late*; no other run waits for them."""
        if not self._deferred:
            return
        runs = self._deferred.take_due(now_s)
        if len(runs.ids):
            self._jobs_ahead = self._ids_ahead()  # nor do later runs of their jobs
            self._late.append(runs.by_fire_time())
            self._squeezed = False

    def _take(self, runs: int) -> PendingRuns:
        self._sort_in()
        runs = max(0, min(runs, self._late.count + self._fresh.count))
        from_late = min(self._late.count, max((runs + 1) // 2, runs - self._fresh.count))
        pairs = joined([self._late.take(from_late), self._fresh.take(runs - from_late)])
        self.left_queue += runs
        if not self._late.count:
            self._jobs_ahead = None
        return pairs

    # Waiting runs.

    def squeeze(self) -> int:
        """Keep the newest run of each job, and every run of ``misfire=all`` jobs, within the limit; oldest go first.

        The others are skipped(backlog). Returns their number. Called while the destination is down.
        """
        if self._squeezed:
            return 0
        every = joined([self._late.clear(), self._fresh.clear(), *self._drain_offered()])
        every = every.at(np.argsort(every.ids, kind="stable"))  # fast: previously squeezed pairs are in order
        stays = np.ones(len(every.ids), np.bool_)
        stays[:-1] = every.ids[1:] != every.ids[:-1]
        (older,) = np.nonzero(~stays)
        if older.size:
            stays[older] = self.keep_all(every.ids[older])
        excess = int(np.count_nonzero(stays)) - self.limit
        if excess > 0:
            (kept,) = np.nonzero(stays)
            stays[kept[np.argsort(every.fire_ms[kept], kind="stable")[:excess]]] = False
        self._drop(every.at(~stays), "backlog")
        self.left_queue += len(every.ids) - int(np.count_nonzero(stays))
        self._late.append(every.at(stays))
        self._squeezed = True
        self._jobs_ahead = None
        return int(np.count_nonzero(~stays))

    def drop(self, ids: Int64s, reason: str) -> int:
        """Skip the waiting runs of ``ids``; runs in flight stay. Returns the number of skipped pairs."""
        self._sort_in()
        gone = joined([self._late.remove(ids), self._fresh.remove(ids)])
        self._drop(gone, reason)
        self.left_queue += len(gone.ids)
        if not self._late.count:
            self._jobs_ahead = None
        return len(gone.ids)

    def holds(self, ids: Int64s) -> NDArray[np.bool_]:
        """Return which of the jobs have an unsettled run."""
        return np.isin(ids, np.concatenate([runs.ids for runs in self._unsettled()]))

    def shutdown(self) -> Leftover:
        """Skip all pending runs (``shutdown``). Read the mark before the call: these runs are not done."""
        newest_ms = max((int(runs.fire_ms.max()) for runs in self._unsettled() if len(runs.ids)), default=None)
        leftover = Leftover(self.waiting + self.in_flight, self.oldest_fire_ms(), newest_ms)
        self._ledger.skip("shutdown", self._pending)
        self._pending = 0
        self._drain_offered()
        self._late, self._fresh = FairQueue(), FairQueue()
        self._jobs_ahead, self._squeezed = None, False
        self.leases.clear()
        self._deferred.clear()
        return leftover

    def _drop(self, pairs: PendingRuns, reason: str) -> None:
        counted = pairs.at((pairs.tag & REOFFERED) == 0)
        self._ledger.skip(reason, len(counted.ids))
        self._ledger.last_skips.note_runs(reason, counted.ids, counted.fire_ms)
        self._pending -= len(counted.ids)

    def _sort_in(self) -> None:
        """Queue the offered runs, after a squeeze if too many wait."""
        if self.waiting > self.limit:
            self.squeeze()
        self._queue_offered()

    def _queue_offered(self) -> None:
        """Queue the offered runs in order of fire times; jobs with late runs go to *late*, others to *fresh*."""
        if not self._offered:
            return
        offered = joined(self._drain_offered()).by_fire_time()
        ahead = self._ids_ahead()
        if not len(ahead):
            self._fresh.append(offered)
            return
        place = np.minimum(np.searchsorted(ahead, offered.ids), len(ahead) - 1)
        behind = ahead[place] == offered.ids
        self._late.append(offered.at(behind))
        self._fresh.append(offered.at(~behind))

    def _ids_ahead(self) -> Int64s:
        if self._late.count and self._jobs_ahead is None:
            self._jobs_ahead = np.unique(np.concatenate([chunk.ids for chunk in self._late.chunks()]))
        return _NOBODY if self._jobs_ahead is None else self._jobs_ahead

    def _drain_offered(self) -> list[PendingRuns]:
        offered, self._offered, self._offered_count = self._offered, [], 0
        return offered

    def _unsettled(self) -> Iterable[PendingRuns]:
        yield from (*self._offered, *self._late.chunks(), *self._fresh.chunks())
        yield from (*self.leases.runs(), PendingRuns.of([*self._deferred]))

    def _waiting_fires(self) -> Iterable[Int64s]:
        return (runs.fire_ms for runs in (*self._offered, *self._late.chunks(), *self._fresh.chunks()))


def least(fires_ms: Int64s) -> int:
    """Return the earliest of at least one fire time."""
    return int(fires_ms.min())
