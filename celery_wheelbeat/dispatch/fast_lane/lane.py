"""The fast lane on the scheduling thread: from due runs to batches, from outcomes to the ledger.

A run moves to the next lane, with a reason, unless its message is certain to equal Celery's own (``lane_choice``).
The publisher does all I/O.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.dispatch import Failed, FailureKind
from celery_wheelbeat.dispatch.fast_lane.batches import Comparison, Outcome, QueueVerdict
from celery_wheelbeat.dispatch.fast_lane.canary import Canary
from celery_wheelbeat.dispatch.fast_lane.envelope_registry import Declaring, Pending
from celery_wheelbeat.dispatch.fast_lane.lane_choice import WAITING_MAX, Answers
from celery_wheelbeat.dispatch.fast_lane.rendering import Runs
from celery_wheelbeat.dispatch.lane import JobOutcomes, Lane
from celery_wheelbeat.dispatch.messages.envelope import Envelope, Refusal
from celery_wheelbeat.dispatch.pending import PendingRuns, RunLease
from celery_wheelbeat.dispatch.refused_forms import RefusedForms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.backlog import Backlog
    from celery_wheelbeat.dispatch.fast_lane.envelope_registry import EnvelopeRegistry, Group
    from celery_wheelbeat.dispatch.fast_lane.lane_choice import ChosenLanes, FastLaneCallbacks, LaneChoice
    from celery_wheelbeat.dispatch.fast_lane.places.queue_registry import QueueRegistry
    from celery_wheelbeat.dispatch.fast_lane.publisher import FastPublisher
    from celery_wheelbeat.dispatch.fast_lane.rendering import Composed, JobMessages
    from celery_wheelbeat.dispatch.lane import Rendering
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.dispatch.messages.run_ids import RunIds
    from celery_wheelbeat.dispatch.reports.lateness import Lateness
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.engine.shards import JobColumns
    from celery_wheelbeat.jobs.definitions import DueBatch
    from celery_wheelbeat.schedules.kinds import Int64s

logger = logging.getLogger("celery.beat")

BLOCK_RUNS = 1_000
CANDIDATES = 4
"""Most jobs whose arguments are passed with a question for an envelope."""


class _Left(NamedTuple):
    """Runs that were to be submitted and are not: skipped, parked, or moved to the next lane."""

    positions: Sequence[int] | NDArray[np.intp]
    skip: str = ""
    """Reason for which they are skipped."""
    wait: Form | Declaring | None = None
    """Form or queues for whose answer they wait."""


class FastLane(Lane):
    """The fast lane of one destination. The lane of ``next_backlog`` takes the runs that this one cannot send."""

    def __init__(
        self,
        engine: Engine,
        backlog: Backlog,
        publisher: FastPublisher,
        lateness: Lateness,
        *,
        next_backlog: Backlog,
        quarantined: dict[int, str],
        forms: EnvelopeRegistry,
        messages: JobMessages,
        choice: LaneChoice,
        queues: QueueRegistry,
        callbacks: FastLaneCallbacks,
        block_runs: int = BLOCK_RUNS,
    ) -> None:
        super().__init__(engine, backlog, lateness, quarantined)
        self.publisher: FastPublisher = publisher
        self.forms = forms
        self.run_ids: RunIds | None = None
        """None until the namespace of run ids is known; runs wait until then."""
        self.canary = Canary(publisher, forms, messages)
        self.choice = choice
        self.answers = Answers(backlog, publisher, forms, queues, callbacks)
        self.refused = RefusedForms(engine, quarantined)
        self._next_backlog = next_backlog
        self._messages = messages
        self._callbacks = callbacks
        self._block_runs = block_runs
        self._alone: int | None = None
        """Token of the last batch that was sent with nothing else on the way, to find a poisoned message."""

    def name_runs(self, rendering: Rendering) -> None:
        """Set the namespace of run ids; it is part of a header, so every form is dropped."""
        self.run_ids = rendering.run_ids
        self.forms.forget_forms()

    def accepts(self, due: DueBatch) -> NDArray[np.bool_]:
        """Return which of the due runs may enter the backlog of this lane."""
        return self.choice.accepts(due)

    def refresh(self, now_s: float) -> None:
        """Requeue deferred runs, reset answers that may be out of date, and note whether the destination is down."""
        self.backlog.requeue_deferred(now_s)
        self.answers.refresh(now_s)
        self.choice.refresh()
        self._ask_for_refused()
        self.canary.compare_due(now_s)
        self._note_connection(now_s, connected=self.publisher.health().connected)

    def can_submit(self) -> bool:
        """Return whether ``submit_due`` would submit anything."""
        wanted, room = self._blocks_wanted()
        return room >= wanted > 0

    def begin_stop(self, timeout_s: float) -> None:
        """Begin to stop the publisher: batches not settled within ``timeout_s`` get no outcome."""
        self.publisher.stop(timeout_s)

    def take_out(self, where: NDArray[np.bool_]) -> PendingRuns:
        """Give away the runs of the shards at ``where`` that are not in flight."""
        self.answers.requeue_parked()
        return super().take_out(where)

    @property
    def trouble(self) -> str:
        """Why there is no connection, else the last failure; empty if there is neither."""
        return self.publisher.trouble or self.last_error

    def redefined(self, ids: Int64s) -> list[int]:
        """Forget findings about redefined jobs; returns the jobs whose quarantine was lifted."""
        self.choice.redefined(ids)
        for form in self.refused.redefined(ids):
            self.forms.ask_again(form)  # the edit may have removed the cause of the refusal
        return super().redefined(ids)

    # Sending: take → look up → choose → render → submit.

    def submit_due(self, now_s: float) -> int:  # noqa: ARG002
        """Submit waiting runs in blocks, up to half of the publisher's window; returns how many left the queue."""
        if self._is_down:
            self.backlog.squeeze()
            return 0
        wanted, room = self._blocks_wanted()
        if self.run_ids is None or not room >= wanted > 0:
            return 0
        alone = bool(self.backlog.leases.alone)
        lease = self.backlog.leases.begin_alone() if alone else self.backlog.take(wanted * self._block_runs)
        jobs = self._engine.shards.columns_of(lease.runs.ids)
        ends = self._messages.block_ends(jobs, self._block_runs)[: 1 if alone else room]
        lease, jobs = self._fitting(lease, jobs, ends[-1] if ends else 0)
        choice = self.choice.of(lease.runs, jobs)
        ready = [group for group in choice.groups if isinstance(group.answer, Envelope)]
        runs = Runs.of(self.run_ids, lease.runs, jobs)
        composed = self._messages.compose(ready, runs, ends, self._callbacks.now())
        left = list(self._left_out(choice, composed, runs, alone=alone))
        orders = [np.concatenate(draft.positions) for draft in composed.drafts]
        parts = self.backlog.leases.split(lease.token, *(one.positions for one in left), *orders)
        for one, part in zip(left, parts, strict=False):
            self._leave(one, part)
        for draft, order, part in zip(composed.drafts, orders, parts[len(left) :], strict=True):
            self._log(order, jobs)
            self.publisher.submit(draft.batch(part.token, self.answers.epoch))
            if alone:
                self._alone = part.token
        for form, positions in composed.forms.items():
            if form not in self.canary.seen:
                self.canary.remember(form, jobs, positions)
        return len(lease.runs.ids)

    def _blocks_wanted(self) -> tuple[int, int]:
        """Return how many blocks to submit at once, which costs less per run than one by one, and how many may be."""
        room = self.publisher.capacity()
        if self.run_ids is None or not room:
            return 0, room
        if self.backlog.leases.alone:
            return int(self.publisher.idle), room
        if self.answers.waiting >= WAITING_MAX:
            return 0, room
        return min(max(1, self.publisher.window // 2), -(-self.backlog.waiting // self._block_runs)), room

    def _fitting(self, lease: RunLease, jobs: JobColumns, runs: int) -> tuple[RunLease, JobColumns]:
        """Return the first ``runs`` runs and their jobs; the others return to the queue."""
        count = len(lease.runs.ids)
        if runs >= count:
            return lease, jobs
        (rest,) = self.backlog.leases.split(lease.token, np.arange(runs, count))
        self.backlog.requeue([rest.token])
        return RunLease(lease.token, self.backlog.leases.runs_of(lease.token)), jobs.at(slice(runs))

    def _left_out(self, choice: ChosenLanes, composed: Composed, runs: Runs, *, alone: bool) -> Iterator[_Left]:
        """Yield the runs that are in no batch. ``alone``: runs without an answer move on instead of being parked."""
        chosen = {"removed": choice.removed, "quarantined": choice.quarantined, "": choice.exceptions}
        yield from (_Left(positions, skip=reason) for reason, positions in chosen.items() if len(positions))
        for group in choice.groups:
            if isinstance(group.answer, Refusal):
                self.refused.refuse_form(group.form, group.answer, runs.pairs.ids[group.positions])
                yield _Left(group.positions, skip="quarantined")
            elif isinstance(group.answer, str) or (alone and isinstance(group.answer, (Pending, Declaring))):
                yield _Left(group.positions)
            elif isinstance(group.answer, Declaring):
                yield _Left(group.positions, wait=group.answer)
            elif isinstance(group.answer, Pending):
                self._ask(group, runs.jobs)
                yield _Left(group.positions, wait=group.form if self.answers.may_wait(group.form) else None)
        yield from self._without_message(composed, runs)

    def _without_message(self, composed: Composed, runs: Runs) -> Iterator[_Left]:
        """Yield the runs for which no message was made, although their form has an envelope."""
        if composed.unfit:
            self.choice.note_unfit({int(runs.pairs.ids[at]): why for at, why in composed.unfit.items()})
            yield _Left(sorted(composed.unfit))
        if composed.expired:
            yield _Left(sorted(composed.expired), skip="expired")
        if composed.unsendable:
            self.refused.refuse_alone({int(runs.pairs.ids[at]): why for at, why in composed.unsendable.items()})
            yield _Left(sorted(composed.unsendable), skip="quarantined")

    def _leave(self, left: _Left, lease: RunLease) -> None:
        if left.skip:
            self.backlog.skip([lease.token], left.skip)
        elif left.wait is not None:
            self.answers.wait(left.wait, lease)
        else:
            self._next_backlog.adopt(self.backlog.release([lease.token]))

    def _ask(self, group: Group, jobs: JobColumns) -> None:
        """Ask the publisher for the envelope of a form, unless it was asked already."""
        if group.answer is Pending.UNASKED:
            self.answers.ask(group.form, self._messages.arguments(group.form, jobs, group.positions[:CANDIDATES]))

    def _ask_for_refused(self) -> None:
        """Ask again about refused forms. Their jobs are quarantined, so no run triggers the question."""
        if not self.publisher.capacity() or not self.answers.take_refused_due():
            return
        for form, ids in self.refused.forms():
            jobs = self._engine.shards.columns_of(ids)
            if form in self.forms:
                self.answers.ask(form, self._messages.arguments(form, jobs, np.flatnonzero(jobs.enabled)))

    def _log(self, positions: NDArray[np.intp], jobs: JobColumns) -> None:
        if logger.isEnabledFor(logging.INFO) and self._callbacks.admits_lines(len(positions)):
            refs, routes = jobs.ref[positions], jobs.route[positions].tolist()
            for name, route in zip(self._messages.names(refs), routes, strict=True):
                logger.info("Scheduler: Sending due task %s (%s)", name, self.forms.task_of(route))

    # Outcomes.

    def collect_outcomes(self, now_s: float) -> JobOutcomes:
        """Settle outcomes, and apply comparisons and answers; returns the changes that concern whole jobs."""
        of_jobs = JobOutcomes({}, {}, [])
        declared: list[QueueVerdict] = []
        for report in self.publisher.poll():
            if isinstance(report, Outcome):
                self._settle(report, of_jobs, now_s)
            elif isinstance(report, Comparison):
                self.canary.apply(report)
            elif isinstance(report, QueueVerdict):
                declared.append(report)
            elif self.answers.apply(report) and not isinstance(report.answer, Refusal):
                self.refused.take_back(report.form)
        if declared:
            self.answers.declared(declared)
        self.refused.settle(of_jobs)
        return of_jobs

    def _settle(self, outcome: Outcome, of_jobs: JobOutcomes, now_s: float) -> None:
        """Count a batch as confirmed except for its failures; poisoned ones are looked for in halves of the batch."""
        failed: list[Failed] = []
        if outcome.failures:
            is_single = outcome.token == self._alone and self.backlog.leases.count_of(outcome.token) == 1
            lost = self.backlog.leases.split(outcome.token, *(failure.positions for failure in outcome.failures))
            for failure, part in zip(outcome.failures, lost, strict=True):
                self.last_error = failure.reason
                if failure.kind is FailureKind.POISON and not is_single:
                    self.backlog.leases.set_alone(part.token)
                else:
                    failed.append(Failed(part.token, failure.kind, failure.reason))
        if not outcome.failures or self.backlog.leases.count_of(outcome.token):
            self._lateness.note_all(self.backlog.confirm([outcome.token]).fire_ms, outcome.at_ms, now_s)
        self._settle_failed(failed, of_jobs, now_s)
