"""One-off jobs: which of them has its run on the way, and which are done.

A one-off is done after its first confirmed run. A once is known by its instant: whatever else is edited, it has that
one run. Any other one-off is known by when its definition came into force: an edit that arms it again makes it another
one. Whose run a fire time is, is decided by the definition that was in the wheel when it was handed out, never by
comparing it with an instant of the database's clock. Knows ids and instants only; who switches jobs off is the
dispatch.
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
    """One run that is to be had."""

    job_id: int
    once: bool
    armed_ms: int
    """Once: its instant. Else when its definition came into force."""


class _Known(NamedTuple):
    """A one-off as it is defined now."""

    arming: _Arming
    enabled: bool
    effective_from_ms: int
    after: Reached | None
    """Where the wheel was when this arming came; None = it was the first one of its job."""


class Redefined(NamedTuple):
    """What a batch of changes means for one-offs."""

    done: dict[int, Finished]
    """Jobs that are done already though the definition does not say so: they have to stay switched off."""
    withdrawn: list[int]
    """Jobs whose waiting runs are not theirs any more: another one-off than before, or switched off."""


class OneOffs:
    """The one-off jobs of one destination. Owned by the scheduling thread."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._on_the_way: dict[int, _Arming] = {}
        """Token → what the run was sent for."""
        self._done: dict[int, tuple[_Arming, int]] = {}
        """What is done, and when it was confirmed, though the database may not know it yet."""

    def load(self, batch: DefinitionBatch, after: Reached | None = None) -> dict[int, Finished]:
        """Take in definitions, each a job's first; returns the jobs among them that are done already.

        ``after``: where the wheel is, if it may have handed out runs of former definitions.
        """
        at = np.flatnonzero(batch.flags & Flag.ONE_OFF)
        once = batch.kind[at] == Kind.ONCE
        effective_from_ms = batch.effective_from_ms[at]
        armed_ms = np.where(once, batch.anchor_ms[at] + batch.offset_ms[at], effective_from_ms)
        armings = map(_Arming, batch.ids[at].tolist(), once.tolist(), armed_ms.tolist())
        enabled = (batch.flags[at] & Flag.ENABLED) > 0
        done = {}
        for arming, is_enabled, from_ms in zip(armings, enabled.tolist(), effective_from_ms.tolist(), strict=True):
            self._known[arming.job_id] = _Known(arming, is_enabled, from_ms, after)
            done_as, at_ms = self._done.get(arming.job_id, (None, 0))
            if done_as == arming and is_enabled:
                done[arming.job_id] = Finished(at_ms, from_ms)
        return done

    def redefine(self, batch: DefinitionBatch, deleted_ids: Iterable[int], after: Reached) -> Redefined:
        """Take in changed definitions; ``after``: where the wheel is, which takes them in, too."""
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
        """Whether a run of the one-off, as it is defined now, was sent and has no outcome yet."""
        return bool(self._on_the_way) and self._known[job_id].arming in self._on_the_way.values()

    def owns(self, job_id: int, fire_ms: int, step: int) -> bool:
        """Whether a run is one of the one-off as it is defined now, not of what the job was before."""
        known = self._known[job_id]
        if known.arming.once:
            return fire_ms == known.arming.armed_ms
        return known.after is None or known.after.is_before(fire_ms, step)

    def send(self, token: int, job_id: int) -> None:
        """Note that a run of the one-off ``job_id`` is on its way."""
        self._on_the_way[token] = self._known[job_id].arming

    def confirm(self, token: int, at_ms: int) -> tuple[int, Finished] | None:
        """Note a run confirmed at ``at_ms``; returns the job that is done by it, None where another is defined now."""
        arming = self._on_the_way.pop(token, None)
        known = None if arming is None else self._known.get(arming.job_id)
        if arming is None or known is None or known.arming != arming:
            return None
        self._done[arming.job_id] = (arming, at_ms)
        return arming.job_id, Finished(at_ms, known.effective_from_ms)

    def give_up(self, token: int) -> None:
        """Note that a run failed or was not sent at all."""
        self._on_the_way.pop(token, None)
