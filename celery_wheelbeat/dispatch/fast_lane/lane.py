"""The fast lane on the scheduling thread: from due runs to batches, from outcomes to the ledger.

A run moves to the celery lane, with a reason, unless its message is certain to equal Celery's own: its form has no
envelope, its job is a one-off, or its arguments do not render. The sender does all I/O.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.dispatch import Failed, FailureKind
from celery_wheelbeat.dispatch.fast_lane.answers import Answers
from celery_wheelbeat.dispatch.fast_lane.batches import Comparison, Draft, Layout, Outcome, SendBlocks, make
from celery_wheelbeat.dispatch.fast_lane.canary import Canary
from celery_wheelbeat.dispatch.fast_lane.envelope_registry import Group, Pending
from celery_wheelbeat.dispatch.fast_lane.rendering import Runs, ids_of
from celery_wheelbeat.dispatch.lane import Lane, Settled
from celery_wheelbeat.dispatch.lane_exceptions import RefusedForms
from celery_wheelbeat.dispatch.lane_rules import kinds
from celery_wheelbeat.dispatch.messages.envelope import Refusal
from celery_wheelbeat.dispatch.pending import PendingRuns, joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.backlog import Backlog
    from celery_wheelbeat.dispatch.fast_lane.answers import Edges
    from celery_wheelbeat.dispatch.fast_lane.envelope_registry import EnvelopeRegistry
    from celery_wheelbeat.dispatch.fast_lane.publisher import FastPublisher
    from celery_wheelbeat.dispatch.fast_lane.rendering import JobMessages, Rendered
    from celery_wheelbeat.dispatch.lane import Rendering
    from celery_wheelbeat.dispatch.lane_exceptions import LaneExceptions
    from celery_wheelbeat.dispatch.messages.run_ids import RunIds
    from celery_wheelbeat.dispatch.pending import PendingRun
    from celery_wheelbeat.dispatch.reports.lateness import Lateness
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.engine.shards import JobColumns
    from celery_wheelbeat.jobs.definitions import DueBatch
    from celery_wheelbeat.schedules.kinds import Int64s

logger = logging.getLogger("celery.beat")

BLOCK_RUNS = 1_000
CANDIDATES = 4
"""Most jobs whose arguments are passed with a question for an envelope."""


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
        outsiders: LaneExceptions,
        edges: Edges,
        block_runs: int = BLOCK_RUNS,
    ) -> None:
        super().__init__(engine, backlog, lateness, quarantined)
        self.publisher: FastPublisher = publisher
        self.forms = forms
        self.run_ids: RunIds | None = None
        """None until the namespace of run ids is known; runs wait until then."""
        self.canary = Canary(publisher, forms, messages)
        self.outsiders = outsiders
        self.answers = Answers(backlog, publisher, forms, edges)
        self.refused = RefusedForms(engine, quarantined)
        self._blocks = SendBlocks(backlog, block_runs)
        self._next_backlog = next_backlog
        self._messages = messages
        self._edges = edges
        self._sent: dict[int, NDArray[np.intp]] = {}
        """Token of a batch → position in the block of each of its messages."""
        self._singles: dict[int, list[int]] = {}
        """Token of a batch that was sent to find a poisoned message → tokens of its runs."""
        self._suspects: deque[list[int]] = deque()
        """Groups of runs from batches with a poisoned message; each is sent alone, with nothing else in flight."""
        self._next_batch = 1 << 40
        """Last token of a batch without a block; the range lies above the backlog's tokens."""

    def name_runs(self, rendering: Rendering) -> None:
        """Set the namespace of run ids; it is part of a header, so every form is dropped."""
        self.run_ids = rendering.run_ids
        self.forms.forget_forms()

    def accepts(self, due: DueBatch) -> NDArray[np.bool_]:
        """Return which of the due runs may enter the backlog: none of an entry or of a route without an envelope."""
        accepted = due.ids >= 0
        if self.forms.any_slow:
            accepted &= ~self.forms.slow(due.route_index)
        return accepted

    def refresh(self, now_s: float) -> None:
        """Requeue deferred runs, reset answers that may be out of date, and note whether the destination is down."""
        self._held.give_back(now_s)
        self.answers.look_around(now_s)
        self._ask_for_refused()
        self.canary.look(now_s)
        self._note_connection(now_s, connected=self.publisher.health().connected)

    def can_submit(self) -> bool:
        """Return whether ``submit_due`` would submit anything."""
        capacity = self.publisher.capacity()
        if self.run_ids is None or not capacity:
            return False
        if self._suspects:
            return self.publisher.idle
        return not self.answers.are_due and capacity >= self._blocks_wanted() > 0

    def begin_stop(self, timeout_s: float) -> None:
        """Begin to stop the publisher: batches not settled within ``timeout_s`` get no outcome."""
        self.publisher.stop(timeout_s)

    @property
    def trouble(self) -> str:
        """Why there is no connection, else the last failure; empty if there is neither."""
        return self.publisher.trouble or self.last_error

    def submit_due(self, now_s: float) -> int:  # noqa: ARG002
        """Submit waiting runs in blocks, up to half of the sender's window; returns how many left the queue."""
        if self._is_down:
            self.backlog.squeeze()
            return 0
        if self.run_ids is None or not self.can_submit():
            return 0
        if self._suspects:
            return self._send_suspects(self._suspects.popleft(), self.run_ids)
        blocks = self._blocks.take(self._blocks_wanted())
        pairs = joined([block for _, block in blocks])
        jobs = self._engine.shards.columns_of(pairs.ids)
        blocks = self._blocks.fit(blocks, self._messages.sizes(jobs), self.publisher.capacity())
        sent = slice(sum(len(block.pairs.ids) for block in blocks))
        pairs, jobs = pairs.at(sent), jobs.at(sent)
        self._send(Layout(blocks), Runs(pairs, jobs, ids_of(self.run_ids, pairs)))
        return sent.stop

    def _blocks_wanted(self) -> int:
        """Return the number of blocks for one call: rendering several together costs less per run."""
        return self._blocks.count(max(1, self.publisher.window // 2))

    def collect_outcomes(self, now_s: float) -> Settled:
        """Apply the sender's outcomes, comparisons and verdicts; returns the changes that concern whole jobs."""
        settled = Settled({}, {}, [])
        for news in self.publisher.poll():
            if isinstance(news, Outcome):
                self._take_in_outcome(news, settled, now_s)
            elif isinstance(news, Comparison):
                self.canary.take_in(news)
            elif self.answers.take_in(news) and not isinstance(news.answer, Refusal):
                self.refused.take_back(news.form)
        self.refused.settle(settled)
        return settled

    def redefined(self, ids: Int64s) -> list[int]:
        """Forget findings about redefined jobs; returns the jobs whose quarantine was lifted."""
        self.outsiders.redefined(ids)
        for form in self.refused.redefined(ids):
            self.forms.ask_again(form)  # the edit may have removed the cause of the refusal
        return super().redefined(ids)

    # Sending.

    def _send(self, layout: Layout, runs: Runs) -> None:
        """Submit one batch per block; runs that cannot be sent here are skipped or moved, or wait for an answer."""
        jobs = runs.jobs
        self._skip(layout, np.flatnonzero(~jobs.enabled), "removed")
        (stays,) = np.nonzero(jobs.enabled & ~self._leave(layout, runs.pairs, jobs))
        drafts = [Draft() for _ in layout.blocks]
        orders: list[list[NDArray[np.intp]]] = [[] for _ in layout.blocks]
        for group in self._groups(stays, jobs):
            if isinstance(group.answer, Pending):
                self._wait(layout, group, jobs)
            elif isinstance(group.answer, str):
                self._move(layout, group.positions)
            elif isinstance(group.answer, Refusal):
                self.refused.refuse_form(group.form, group.answer, runs.pairs.ids[group.positions])
                self._skip(layout, group.positions, "quarantined")
            else:
                rendered = self._messages.render(group.form, group.answer, group.positions, runs)
                self._leave_out(layout, rendered, runs.pairs)
                if len(rendered.positions):
                    made = make(rendered.load, self._edges.now())
                    for number, part, order in layout.parts(rendered.positions):
                        drafts[number].add(made, part)
                        orders[number].append(order)
                    self.canary.remember(group.form, jobs, rendered.positions)
        start = 0
        for block, draft, parts in zip(layout.blocks, drafts, orders, strict=True):
            if parts:
                order = self._sent[block.token] = np.concatenate(parts)
                self._log(start + order, jobs)
                self.publisher.submit(draft.batch(block.token, self.answers.epoch))
            else:
                self.backlog.confirm_block(block.token)  # the block is empty
            start += len(block.pairs.ids)

    def _leave_out(self, layout: Layout, rendered: Rendered, pairs: PendingRuns) -> None:
        """Move runs whose jobs do not render to the celery lane; quarantine jobs whose message no broker takes."""
        if rendered.unfit:
            self.outsiders.note_unfit({int(pairs.ids[at]): why for at, why in rendered.unfit.items()})
            self._move(layout, np.array(sorted(rendered.unfit), np.intp))
        if rendered.unsendable:
            self.refused.refuse_alone({int(pairs.ids[at]): why for at, why in rendered.unsendable.items()})
            self._skip(layout, np.array(sorted(rendered.unsendable), np.intp), "quarantined")

    def _ask_for_refused(self) -> None:
        """Ask again about refused forms. Their jobs are quarantined, so no run triggers the question."""
        if not self.publisher.capacity() or not self.answers.take_refused_due():
            return
        for form, ids in self.refused.forms():
            jobs = self._engine.shards.columns_of(ids)
            if form in self.forms:
                self.answers.ask(form, self._messages.arguments(form, jobs, np.flatnonzero(jobs.enabled)))

    def _wait(self, layout: Layout, group: Group, jobs: JobColumns) -> None:
        """Ask about an unasked form, and park its runs until the answer, or move them while many questions are open."""
        if group.answer is Pending.UNASKED:
            self.answers.ask(group.form, self._messages.arguments(group.form, jobs, group.positions[:CANDIDATES]))
        if self.answers.may_wait(group.form):
            for tokens in self._broken_out(layout, group.positions):
                self.answers.wait(group.form, tokens)
        else:
            self._move(layout, group.positions)

    def _groups(self, positions: NDArray[np.intp], jobs: JobColumns) -> Iterator[Group]:
        """Yield the jobs at ``positions``, grouped by form."""
        for group in self.forms.groups(kinds(jobs.route[positions], jobs.flags[positions]), jobs.interval[positions]):
            yield from self._messages.by_place(group._replace(positions=positions[group.positions]), jobs)

    def _leave(self, layout: Layout, pairs: PendingRuns, jobs: JobColumns) -> NDArray[np.bool_]:
        """Skip runs of quarantined jobs, move runs that need the celery lane; returns a mask of both."""
        leaves = np.zeros(len(pairs.ids), np.bool_)
        if self._quarantined:
            quarantined = np.fromiter(self._quarantined, np.int64, len(self._quarantined))
            leaves = jobs.enabled & np.isin(pairs.ids, quarantined)
            self._skip(layout, np.flatnonzero(leaves), "quarantined")
        odd = self.outsiders.among(pairs, jobs) & jobs.enabled & ~leaves
        self._move(layout, np.flatnonzero(odd))
        return leaves | odd

    def _send_suspects(self, tokens: list[int], run_ids: RunIds) -> int:
        """Submit part of a poisoned batch by itself, so that the next failure has fewer candidates."""
        pairs = PendingRuns.of([self._taken[token] for token in tokens])
        jobs = self._engine.shards.columns_of(pairs.ids)
        runs = Runs(pairs, jobs, ids_of(run_ids, pairs))
        gone = [token for token, enabled in zip(tokens, jobs.enabled.tolist(), strict=True) if not enabled]
        self._give_up(gone, "removed")
        draft = Draft()
        order: list[int] = []
        for group in self._groups(np.flatnonzero(jobs.enabled), jobs):
            if isinstance(group.answer, (str, Pending)):
                self._release([tokens[at] for at in group.positions.tolist()])
                continue
            if isinstance(group.answer, Refusal):
                self.refused.refuse_form(group.form, group.answer, pairs.ids[group.positions])
                self._give_up([tokens[at] for at in group.positions.tolist()])
                continue
            rendered = self._messages.render(group.form, group.answer, group.positions, runs)
            self._release([tokens[at] for at in rendered.unfit])
            if rendered.unsendable:
                self.refused.refuse_alone({int(pairs.ids[at]): why for at, why in rendered.unsendable.items()})
                self._give_up([tokens[at] for at in rendered.unsendable])
            if count := len(rendered.positions):
                draft.add(make(rendered.load, self._edges.now()), slice(0, count))
                order += [tokens[at] for at in rendered.positions.tolist()]
        if order:
            self._next_batch += 1
            self._singles[self._next_batch] = order
            self.publisher.submit(draft.batch(self._next_batch, self.answers.epoch))
        return len(tokens)

    def _log(self, positions: NDArray[np.intp], jobs: JobColumns) -> None:
        if self._edges.admits_lines(len(positions)) and logger.isEnabledFor(logging.INFO):
            refs, routes = jobs.ref[positions], jobs.route[positions].tolist()
            for name, route in zip(self._messages.names(refs), routes, strict=True):
                logger.info("Scheduler: Sending due task %s (%s)", name, self.forms.task_of(route))

    # Leaving a block.

    def _skip(self, layout: Layout, positions: NDArray[np.intp], reason: str) -> None:
        for tokens in self._broken_out(layout, positions):
            self.backlog.skip(tokens, reason)

    def _move(self, layout: Layout, positions: NDArray[np.intp]) -> None:
        for tokens in self._broken_out(layout, positions):
            self._next_backlog.adopt(self.backlog.release(tokens))

    def _broken_out(self, layout: Layout, positions: NDArray[np.intp]) -> Iterator[dict[int, PendingRun]]:
        """Take the runs at ``positions`` out of their blocks; yields each block's runs by their new tokens."""
        if len(positions):
            for number, _, where in layout.parts(positions):
                yield self.backlog.break_up(layout.blocks[number].token, where.tolist())

    def _release(self, tokens: Sequence[int]) -> None:
        if not tokens:
            return
        for token in tokens:
            self._taken.pop(token, None)
        self._next_backlog.adopt(self.backlog.release(tokens))

    def _give_up(self, tokens: Sequence[int], reason: str = "quarantined") -> None:
        for token in tokens:
            self._taken.pop(token, None)
        self.backlog.skip(tokens, reason)

    # Outcomes.

    def _take_in_outcome(self, outcome: Outcome, settled: Settled, now_s: float) -> None:
        singles = self._singles.pop(outcome.token, None)
        failed: list[Failed] = []
        for failure in outcome.failures:
            self.last_error = failure.reason
            if singles is None:
                order = self._sent[outcome.token]
                pairs = self.backlog.break_up(outcome.token, order[list(failure.positions)].tolist())
                self._taken.update(pairs)
                tokens = list(pairs)
            else:
                tokens = [singles[position] for position in failure.positions]
            if failure.kind is FailureKind.POISON and not (singles is not None and len(tokens) == len(singles) == 1):
                half = (len(tokens) + 1) // 2
                self._suspects += [part for part in (tokens[:half], tokens[half:]) if part]
            else:
                failed += [Failed(token, failure.kind, failure.reason) for token in tokens]
        if singles is None:
            del self._sent[outcome.token]
            self._lateness.note_all(self.backlog.confirm_block(outcome.token).fire_ms, outcome.at_ms, now_s)
        else:
            lost = {singles[at] for failure in outcome.failures for at in failure.positions}
            sent = [token for token in singles if token not in lost]
            if sent:
                self._lateness.note_all(PendingRuns.of(self.backlog.confirm(sent)).fire_ms, outcome.at_ms, now_s)
            for token in sent:
                self._taken.pop(token, None)
        self._settle_failed(failed, settled, now_s)
        for one in failed:
            self._taken.pop(one.token, None)
