"""The celery lane on the scheduling thread: from due runs to the publisher, from outcomes to the ledger.

Runs wait as pairs in the backlog and are rendered from the definition that is current when they are submitted. Every
outcome ends in the ledger; no run is dropped without a reason.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.dispatch import Confirmed, Failed, Run
from celery_wheelbeat.dispatch.lane import JobOutcomes, Lane, Rendering, definition_hash_of
from celery_wheelbeat.dispatch.reports.failure_log import LinePace
from celery_wheelbeat.dispatch.single_run_jobs import SingleRunJobs
from celery_wheelbeat.errors import InvalidMonitor, reason_of
from celery_wheelbeat.jobs.definitions import Flag
from celery_wheelbeat.jobs.identity import LATER_IDS_FROM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.dispatch import Publisher
    from celery_wheelbeat.dispatch.backlog import Backlog
    from celery_wheelbeat.dispatch.pending import PendingRun, RunLease
    from celery_wheelbeat.dispatch.reports.lateness import Lateness
    from celery_wheelbeat.dispatch.single_run_jobs import Redefined
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.engine.shards import JobView
    from celery_wheelbeat.jobs.definitions import ChangeBatch

logger = logging.getLogger("celery.beat")

SUBMIT_MAX = 1_000
"""Most runs that one call renders, and that the publisher holds. It sends them in order, so each job waits for them."""
PAYLOAD_BYTES_MAX = 16 << 20
"""Most bytes of arguments (as JSON text) that the publisher holds, plus one run; objects take several times that."""


class CeleryLane(Lane):
    """Backlog and publisher of one destination."""

    def __init__(self, engine: Engine, backlog: Backlog, publisher: Publisher, lateness: Lateness) -> None:
        super().__init__(engine, backlog, lateness)
        self.publisher: Publisher = publisher
        self.rendering: Rendering | None = None
        """None until the namespace of run ids is known; runs wait until then."""
        self.single_run_jobs = SingleRunJobs()
        self._broken = LinePace()
        self._unrendered: dict[int, tuple[str, str]] = {}
        """Jobs that do not render, not reported yet: job id → (definition hash, reason)."""

    def name_runs(self, rendering: Rendering) -> None:
        """Set what turns pending runs into messages; runs wait until the first call."""
        self.rendering = rendering

    def refresh(self, now_s: float) -> None:
        """Requeue deferred runs whose pause is over, and note whether the destination is down."""
        self.backlog.requeue_deferred(now_s)
        self._note_connection(now_s, connected=self.rendering is not None and self.publisher.health().connected)

    def submit_due(self, now_s: float) -> int:
        """Submit as many waiting runs as the publisher has room for, up to ``SUBMIT_MAX``; returns their number."""
        if self._is_down:
            self.backlog.squeeze()
            return 0
        if self.rendering is None or not self.can_submit():
            return 0
        runs = self._lease_singly(self.backlog.take(min(self.publisher.capacity(), SUBMIT_MAX)))
        messages = self._render(runs, self.rendering, now_s)
        if messages:
            self.publisher.submit(messages)
        return len(runs)

    def can_submit(self) -> bool:
        """Return whether ``submit_due`` would submit anything."""
        may = self.backlog.waiting and self.rendering and self.backlog.leases.size_bytes < PAYLOAD_BYTES_MAX
        return bool(may and self.publisher.capacity())

    def collect_outcomes(self, now_s: float) -> JobOutcomes:
        """Settle the publisher's outcomes; returns the changes that concern whole jobs."""
        found = {job: why for job, why in self._unrendered.items() if job in self._quarantined}  # not redefined since
        of_jobs, self._unrendered = JobOutcomes({}, found, []), {}
        outcomes = self.publisher.poll()
        by_instant: dict[int, list[int]] = {}
        for outcome in outcomes:
            if isinstance(outcome, Confirmed):
                by_instant.setdefault(outcome.confirmed_ms, []).append(outcome.token)
        for at_ms, tokens in by_instant.items():
            runs = self.backlog.confirm(tokens)
            self._lateness.note_all(runs.fire_ms, at_ms, now_s)
            of_jobs.finished.update(self.single_run_jobs.confirm(runs, at_ms))
        self._settle_failed([outcome for outcome in outcomes if isinstance(outcome, Failed)], of_jobs, now_s)
        if of_jobs.finished:
            self.finish(of_jobs.finished)
        return of_jobs

    def redefine_single_run_jobs(self, changes: ChangeBatch) -> Redefined:
        """Apply changes that the engine has applied to the single-run jobs."""
        return self.single_run_jobs.redefine(changes.upserts, changes.deleted_ids.tolist(), self._engine.reached)

    def _lease_singly(self, lease: RunLease) -> dict[int, PendingRun]:
        """Lease the first runs whose arguments fit, at least one, by token; the others return to the backlog."""
        sizes = self._engine.shards.payload_sizes(lease.runs.ids)
        left_bytes = PAYLOAD_BYTES_MAX - self.backlog.leases.size_bytes
        room = max(1, int(np.searchsorted(np.cumsum(sizes), left_bytes, "right")))
        if room < len(sizes):
            (others,) = self.backlog.leases.split(lease.token, np.arange(room, len(sizes)))
            self.backlog.requeue([others.token])
        return self.backlog.leases.split_singly(lease.token, sizes[:room].tolist())

    def _render(self, pairs: dict[int, PendingRun], rendering: Rendering, now_s: float) -> list[Run]:
        views = self._engine.lookup(np.fromiter((pair.job_id for pair in pairs.values()), np.int64, len(pairs)))
        has_single = any(view.flags & Flag.ONE_OFF for view in views if view is not None)
        first = self.single_run_jobs.first_in_flight(self.backlog.leases.singles()) if has_single else {}
        kept: list[tuple[int, PendingRun, JobView]] = []
        for (token, pair), view in zip(pairs.items(), views, strict=True):
            reason = self._reason_to_skip(token, pair, view, first)
            if view is None or reason is not None:
                self.backlog.skip([token], reason or "removed")
            else:
                kept.append((token, pair, view))
        runs, namespace = list[Run](), rendering.run_ids.namespace
        for (key, run_id, suffix), (token, pair, view) in zip(_names(kept, rendering), kept, strict=True):
            try:
                entry = rendering.entry_of(view, pair.fire_ms)
                headers = {} if entry is None else rendering.headers_of(view, entry)
            except Exception as error:
                self._give_up(token, view, error, now_s)
                continue
            if entry is None:
                self.backlog.skip([token], "removed")
                continue
            runs.append(Run(view.id, key, view.name, pair.fire_ms, run_id, entry, token, headers, namespace, suffix))
        return runs

    def _give_up(self, token: int, view: JobView, error: Exception, now_s: float) -> None:
        """Skip a run that cannot be rendered; a monitor is quarantined if its definition is the cause."""
        if self._broken.is_due(view.id, now_s):
            logger.error("beat: %s cannot be sent: %s", view.name, reason_of(error), exc_info=error)
        if isinstance(error, InvalidMonitor) and 0 <= view.id < LATER_IDS_FROM:
            self._quarantined[view.id] = str(error)
            self._unrendered[view.id] = (definition_hash_of(view, self._engine.routes[view.route_index]), str(error))
        self.backlog.skip([token], "error")

    def _reason_to_skip(
        self, token: int, pair: PendingRun, view: JobView | None, first: Mapping[int, int]
    ) -> str | None:
        """``first``: single-run job → token of its only run."""
        if view is None:
            return "removed"
        if pair.job_id in self._quarantined:
            return "quarantined"
        if view.flags & Flag.ONE_OFF:
            if not self.single_run_jobs.owns(pair):
                return "removed"
            if first[pair.job_id] != token:
                return "ended"  # its only run is in flight; if that fails, that run is sent again
        return None


def _names(kept: Sequence[tuple[int, PendingRun, JobView]], rendering: Rendering) -> list[tuple[str, str, str]]:
    """Return key, run id and suffix of each run; a fire time repeated by clock step n has the suffix ``~n``."""
    names: list[tuple[str, str, str]] = [("", "", "")] * len(kept)
    own = rendering.run_ids.own
    by_step: dict[int, list[int]] = {}
    for position, (_, pair, _) in enumerate(kept):
        by_step.setdefault(pair.step, []).append(position)
    for step, positions in by_step.items():
        suffix = f"~{step}" if step > 0 else ""
        pairs = [kept[position][1] for position in positions]
        keys = [rendering.key_of(pair.job_id) for pair in pairs]
        fires_ms = np.array([pair.fire_ms for pair in pairs], np.int64)
        run_ids = rendering.run_ids.render(keys, fires_ms, suffix)
        for position, pair, key, run_id in zip(positions, pairs, keys, run_ids, strict=True):
            names[position] = (key, own.get(pair.job_id, run_id), suffix)
    return names
