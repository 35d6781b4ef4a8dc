"""One-off jobs: which of them have their run in flight, and which are done.

A one-off is done after its first confirmed run. A ``once`` job is identified by its instant and has that one run; edits
of other columns do not matter. Any other one-off is identified by the time at which its definition came into force; an
edit that arms it again makes a new one. A fire time belongs to the definition that was in the wheel when the run became
due; it is never compared with the database's clock. This module holds ids and times only; the lanes disable jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.jobs.definitions import Finished, Flag
from celery_wheelbeat.schedules.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_wheelbeat.engine.shards import Reached
    from celery_wheelbeat.jobs.definitions import DefinitionBatch


class _Arming(NamedTuple):
    """Identity of the one run that a one-off is to have."""

    job_id: int
    once: bool
    armed_ms: int
    """``once``: its instant; otherwise the time at which its definition came into force."""


class _KnownOneOff(NamedTuple):
    """The current definition of a one-off."""

    arming: _Arming
    enabled: bool
    effective_from_ms: int
    after: Reached | None
    """Position of the wheel when this arming was applied; None for the first one of the job."""


class Redefined(NamedTuple):
    """Consequences of a batch of changes for one-off jobs."""

    done: dict[int, Finished]
    """Jobs that are done although their definition is enabled; they have to stay disabled."""
    withdrawn: list[int]
    """Jobs whose waiting runs are void: they became another one-off, or were disabled."""


class OneOffs:
    """The one-off jobs of one destination."""

    def __init__(self) -> None:
        self._known: dict[int, _KnownOneOff] = {}
        self._on_the_way: dict[int, _Arming] = {}
        """Token → arming for which the run was sent."""
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
            self._known[arming.job_id] = _KnownOneOff(arming, is_enabled, from_ms, after)
            done_as, at_ms = self._done.get(arming.job_id, (None, 0))
            if done_as == arming and is_enabled:
                done[arming.job_id] = Finished(at_ms, from_ms)
        return done

    def redefine(self, batch: DefinitionBatch, deleted_ids: Iterable[int], after: Reached) -> Redefined:
        """Apply changed definitions. ``after``: position of the wheel, to which the same changes are applied."""
        touched = {*batch.ids.tolist(), *deleted_ids}
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

    def is_on_the_way(self, job_id: int) -> bool:
        """Whether a run of the current definition was sent and has no outcome yet."""
        return bool(self._on_the_way) and self._known[job_id].arming in self._on_the_way.values()

    def owns(self, job_id: int, fire_ms: int, step: int) -> bool:
        """Whether a run belongs to the current definition of the job, not to an earlier one."""
        known = self._known[job_id]
        if known.arming.once:
            return fire_ms == known.arming.armed_ms
        return known.after is None or known.after.is_before(fire_ms, step)

    def send(self, token: int, job_id: int) -> None:
        """Record that a run of the one-off ``job_id`` is in flight."""
        self._on_the_way[token] = self._known[job_id].arming

    def confirm(self, token: int, at_ms: int) -> tuple[int, Finished] | None:
        """Record a run confirmed at ``at_ms``; returns the job that is now done, None if it was redefined."""
        arming = self._on_the_way.pop(token, None)
        known = None if arming is None else self._known.get(arming.job_id)
        if arming is None or known is None or known.arming != arming:
            return None
        self._done[arming.job_id] = (arming, at_ms)
        return arming.job_id, Finished(at_ms, known.effective_from_ms)

    def give_up(self, token: int) -> None:
        """Record that a run failed or was not sent."""
        self._on_the_way.pop(token, None)
