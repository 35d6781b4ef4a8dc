"""All lanes of one destination: due runs in, changes that concern whole jobs out.

A run is offered to the lanes in order; the last lane accepts every run. Without a fast lane, the last one is the only
one. All lanes share the ledger, the quarantine and the mark.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.dispatch import PublisherHealth
from celery_wheelbeat.dispatch.backlog import Leftover
from celery_wheelbeat.dispatch.lane import JobOutcomes
from celery_wheelbeat.dispatch.pending import joined
from celery_wheelbeat.schedules.kinds import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.celery_lane.lane import CeleryLane
    from celery_wheelbeat.dispatch.lane import Lane, Rendering
    from celery_wheelbeat.dispatch.pending import PendingRuns
    from celery_wheelbeat.dispatch.single_run_jobs import SingleRunJobs
    from celery_wheelbeat.jobs.definitions import ChangeBatch, DefinitionBatch, DueBatch, Finished
    from celery_wheelbeat.schedules.kinds import Int64s


class Dispatcher:
    """The lanes, in the order in which a run is offered to them.

    Per tick: ``refresh``, ``enqueue`` the due runs, ``submit_due``, ``collect_outcomes``.
    """

    def __init__(self, preferred: Sequence[Lane], last: CeleryLane) -> None:
        """``last`` takes the runs that no ``preferred`` lane accepts, and every run of a single-run job."""
        self.lanes: Sequence[Lane] = (*preferred, last)
        self._last = last
        self._lifted: list[int] = []
        """Jobs whose quarantine a redefinition has lifted, for the next ``collect_outcomes``."""
        self._finished: dict[int, Finished] = {}
        """Jobs that a redefinition has re-enabled although they are done, for the next ``collect_outcomes``."""

    # One tick.

    def refresh(self, now_s: float) -> None:
        """Bring each lane up to date before runs are offered to it; ``now_s`` is monotonic."""
        for lane in self.lanes:
            lane.refresh(now_s)

    def enqueue(self, due: Iterable[DueBatch]) -> None:
        """Put due runs into the backlog of the first lane that accepts them; a lane may pass them on later."""
        for batch in due:
            rest = batch
            for lane in self.lanes[:-1]:
                accepted = lane.accepts(rest)
                if accepted.all():
                    lane.backlog.offer(rest)
                    break
                if accepted.any():
                    lane.backlog.offer(rest.take(accepted))
                    rest = rest.take(~accepted)
            else:
                self._last.backlog.offer(rest)

    def submit_due(self, now_s: float) -> int:
        """Let each lane submit as many runs as it has room for; returns how many left the queues."""
        return sum(lane.submit_due(now_s) for lane in self.lanes if lane.backlog.waiting or lane.backlog.leases.alone)

    def can_submit(self) -> bool:
        """Return whether ``submit_due`` would submit anything."""
        return any(lane.can_submit() for lane in self.lanes)

    def collect_outcomes(self, now_s: float) -> JobOutcomes:
        """Settle the outcomes of all publishers; returns the changes that concern whole jobs."""
        of_jobs = JobOutcomes(self._finished, {}, self._lifted)
        self._finished, self._lifted = {}, []
        for lane in reversed(self.lanes):
            of_lane = lane.collect_outcomes(now_s)
            of_jobs.finished.update(of_lane.finished)
            of_jobs.poisoned.update(of_lane.poisoned)
            of_jobs.lifted.extend(of_lane.lifted)
        return of_jobs._replace(lifted=[job_id for job_id in of_jobs.lifted if job_id not in self.quarantined])

    # Definitions.

    def name_runs(self, rendering: Rendering) -> None:
        """Set what turns pending runs into messages: the namespace of run ids has become known, or has changed."""
        for lane in self.lanes:
            lane.name_runs(rendering)

    def loaded(self, batch: DefinitionBatch) -> None:
        """Take note of jobs that the engine has loaded."""
        self._keep_finished(self.single_run_jobs.load(batch))

    def redefined(self, changes: ChangeBatch) -> None:
        """Take note of changes that the engine has applied; ``collect_outcomes`` returns what follows from them."""
        for lane in self.lanes:
            self._lifted += lane.redefined(changes.ids)  # the lanes share the quarantine
        single = self._last.redefine_single_run_jobs(changes)
        self._keep_finished(single.done)
        if len(changes.deleted_ids) or single.withdrawn:
            self.drop(np.concatenate((changes.deleted_ids, np.array(single.withdrawn, np.int64))), "removed")

    def _keep_finished(self, finished: Mapping[int, Finished]) -> None:
        """Finish jobs again that an edit older than their end has re-enabled."""
        if finished:
            self.finish(finished)
            self._finished.update(finished)

    def finish(self, job_ids: Iterable[int]) -> None:
        """Disable single-run jobs that are done; their waiting runs are skipped(ended)."""
        ids = np.array(sorted(job_ids), np.int64)
        self._last.finish(ids.tolist())
        for lane in self.lanes:
            lane.backlog.drop(ids, "ended")

    @property
    def single_run_jobs(self) -> SingleRunJobs:
        """The single-run jobs; all of them take the last lane."""
        return self._last.single_run_jobs

    @property
    def quarantined(self) -> dict[int, str]:
        """Jobs that are not sent, with the reason."""
        return self._last.quarantined

    # Totals of the backlogs.

    @property
    def pending(self) -> int:
        """Runs that are neither confirmed nor skipped; a term of the accounting identity."""
        return sum(lane.backlog.pending for lane in self.lanes)

    @property
    def waiting(self) -> int:
        """Runs that can be taken, reoffered ones included."""
        return sum(lane.backlog.waiting for lane in self.lanes)

    @property
    def in_flight(self) -> int:
        """Runs that were taken and not settled."""
        return sum(lane.backlog.in_flight for lane in self.lanes)

    @property
    def strays(self) -> int:
        """Outcomes for runs that were already settled; must be 0."""
        return sum(lane.backlog.strays for lane in self.lanes)

    def oldest_fire_ms(self) -> int | None:
        """Return the earliest unsettled fire time, or None; the mark stays before it."""
        oldest = (lane.backlog.oldest_fire_ms() for lane in self.lanes)
        return min((fire_ms for fire_ms in oldest if fire_ms is not None), default=None)

    def oldest_by_shard(self, shards: int) -> Int64s:
        """Return the earliest unsettled fire time of each shard, NEVER_MS if it has none."""
        oldest_ms = np.full(shards, NEVER_MS)
        for lane in self.lanes:
            lane.backlog.oldest_by_shard(oldest_ms)
        return oldest_ms

    def take_out(self, where: NDArray[np.bool_]) -> PendingRuns:
        """Give away the runs of the shards at ``where`` that are not in flight, and return them (``handed_on``)."""
        return joined([lane.take_out(where) for lane in self.lanes])

    def have_patience(self, least_s: float) -> None:
        """Keep every waiting run for at least ``least_s`` without a connection: another beat may send it meanwhile."""
        for lane in self.lanes:
            lane.least_patience_s = least_s

    def drop(self, ids: Int64s, reason: str) -> int:
        """Skip the waiting runs of ``ids``; runs in flight stay. Returns the number of skipped runs."""
        return sum(lane.backlog.drop(ids, reason) for lane in self.lanes)

    def holds(self, ids: Int64s) -> NDArray[np.bool_]:
        """Return which of the jobs have an unsettled run."""
        found = np.zeros(len(ids), np.bool_)
        for lane in self.lanes:
            found |= lane.backlog.holds(ids)
        return found

    def shutdown(self) -> Leftover:
        """Skip all pending runs (``shutdown``). Read the mark before the call: these runs are not done."""
        left = [lane.backlog.shutdown() for lane in self.lanes]
        return Leftover(
            sum(one.runs for one in left),
            min((one.oldest_fire_ms for one in left if one.oldest_fire_ms is not None), default=None),
            max((one.newest_fire_ms for one in left if one.newest_fire_ms is not None), default=None),
        )

    # The publishers, for start, supervision and shutdown.

    @property
    def destination(self) -> str:
        """Name of the destination that all lanes send to."""
        return self._last.publisher.destination

    @property
    def ended_by(self) -> BaseException | None:
        """The exception with which user code ended the process (``SystemExit`` …); nothing more is sent."""
        return next((found for lane in self.lanes if (found := lane.publisher.ended_by) is not None), None)

    @property
    def last_error(self) -> str:
        """The last failure of the first lane that had one; empty if there was none."""
        return next((lane.trouble for lane in self.lanes if lane.trouble), "")

    @property
    def failures(self) -> Counter[str]:
        """Unconfirmed sends of all lanes, by kind."""
        return sum((lane.failures for lane in self.lanes), Counter())

    def start(self) -> None:
        """Start the publishers' threads; in the process that sends, so after any fork."""
        for lane in self.lanes:
            lane.publisher.start()

    def health(self) -> PublisherHealth:
        """Report for supervision: connected if all lanes are; the oldest stamp of all."""
        connected, in_flight, stamps_s = zip(*map(_columns, self.lanes), strict=True)
        return PublisherHealth(all(connected), sum(in_flight), min(stamps_s))

    def close(self, timeout_s: float) -> None:
        """Stop within about ``timeout_s``; runs that are not settled by then stay in the backlogs."""
        for lane in self.lanes:
            lane.begin_stop(timeout_s)
        self._last.publisher.close(timeout_s)
        for lane in self.lanes[:-1]:
            lane.publisher.close(timeout_s / 4)


def _columns(lane: Lane) -> tuple[bool, int, float]:
    health = lane.publisher.health()
    return health.connected, health.in_flight, health.stamp_s
