"""Single-run jobs (``once``, or with ``one_off``), which are done after their first confirmed run.

A ``once`` job is identified by its instant and has that one run; edits of other columns do not matter. Any other is
identified by the time at which its definition came into force; an edit that arms it again makes a new one. A fire time
belongs to the definition that was in the wheel when the run became due; it is never compared with the database's clock.
This module holds ids and times only; the lanes disable jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.jobs.definitions import Finished, Flag
from celery_wheelbeat.jobs.identity import LATER_IDS_FROM
from celery_wheelbeat.schedules.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_wheelbeat.dispatch.pending import PendingRun, PendingRuns
    from celery_wheelbeat.engine.shards import Reached
    from celery_wheelbeat.jobs.definitions import DefinitionBatch


class _Arming(NamedTuple):
    """Identity of the one run that a single-run job is to have."""

    job_id: int
    once: bool
    armed_ms: int
    """``once``: its instant; otherwise the time at which its definition came into force."""


class _KnownDefinition(NamedTuple):
    """The current definition of a single-run job."""

    arming: _Arming
    enabled: bool
    effective_from_ms: int
    after: Reached | None
    """Position of the wheel when this arming was applied; None for the first one of the job."""


class Redefined(NamedTuple):
    """Consequences of a batch of changes for single-run jobs."""

    done: dict[int, Finished]
    """Jobs that are done although their definition is enabled; they have to stay disabled."""
    withdrawn: list[int]
    """Jobs whose waiting runs are void: they became another job, or were disabled."""


class SingleRunJobs:
    """The single-run jobs of one destination."""

    def __init__(self) -> None:
        self._known: dict[int, _KnownDefinition] = {}
        self._done: dict[int, tuple[_Arming, int]] = {}
        """Job → (arming that is done, time of its confirmation); the database may not know it yet."""

    def load(self, batch: DefinitionBatch, after: Reached | None = None) -> dict[int, Finished]:
        """Store definitions; returns the jobs among them that are already done.

        ``after``: position of the wheel, if runs of earlier definitions may have become due.
        """
        at = np.flatnonzero(batch.flags & Flag.ONE_OFF)
        once = batch.kind[at] == Kind.ONCE
        effective_from_ms = batch.effective_from_ms[at]
        armed_ms = np.where(once, batch.anchor_ms[at] + batch.offset_ms[at], effective_from_ms)
        armings = map(_Arming, batch.ids[at].tolist(), once.tolist(), armed_ms.tolist())
        enabled = (batch.flags[at] & Flag.ENABLED) > 0
        done = {}
        for arming, is_enabled, from_ms in zip(armings, enabled.tolist(), effective_from_ms.tolist(), strict=True):
            self._known[arming.job_id] = _KnownDefinition(arming, is_enabled, from_ms, after)
            done_as, at_ms = self._done.get(arming.job_id, (None, 0))
            if done_as == arming and is_enabled:
                done[arming.job_id] = Finished(at_ms, from_ms)
        return done

    def redefine(self, batch: DefinitionBatch, deleted_ids: Iterable[int], after: Reached) -> Redefined:
        """Apply changed definitions. ``after``: position of the wheel, to which the same changes are applied."""
        touched = {job_id for job_id in (*batch.ids.tolist(), *deleted_ids) if job_id < LATER_IDS_FROM}
        former = {job_id: self._known.pop(job_id, None) for job_id in touched}
        done = self.load(batch, after)
        withdrawn = []
        for job_id in touched:
            before, now = former[job_id], self._known.get(job_id)
            same = before is not None and now is not None and before.arming == now.arming
            if not same:
                self._done.pop(job_id, None)
            elif before is not None and now is not None:
                self._known[job_id] = now._replace(after=before.after)
            if now is not None and not (same and now.enabled):
                withdrawn.append(job_id)
        return Redefined(done, withdrawn)

    def owns(self, run: PendingRun) -> bool:
        """Whether a run belongs to the current definition of its single-run job, not to an earlier one."""
        known = self._known[run.job_id]
        if known.arming.once:
            return run.fire_ms == known.arming.armed_ms
        return known.after is None or known.after.is_before(run.fire_ms, run.step)

    def first_in_flight(self, singles: Iterable[tuple[int, PendingRun]]) -> dict[int, int]:
        """Return job id → lowest token of a run of its current definition; ``singles``: (token, run), ascending."""
        first: dict[int, int] = {}
        for token, run in singles:
            if run.job_id in self._known and self.owns(run):
                first.setdefault(run.job_id, token)
        return first

    def confirm(self, runs: PendingRuns, at_ms: int) -> dict[int, Finished]:
        """Record runs confirmed at ``at_ms``; returns the jobs that are now done, not those redefined meanwhile."""
        finished: dict[int, Finished] = {}
        for run in runs.singly() if self._known else ():
            known = self._known.get(run.job_id)
            if known is not None and self.owns(run):
                self._done[run.job_id] = (known.arming, at_ms)
                finished[run.job_id] = Finished(at_ms, known.effective_from_ms)
        return finished
