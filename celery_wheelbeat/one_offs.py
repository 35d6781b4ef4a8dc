"""One-off jobs: which of them has its run on the way, and which are done.

A one-off is done after its first confirmed run, for the definition that this run was sent for: an edit that re-arms it
moves ``effective_from`` and makes it a new one-off, any other edit leaves it done, whether or not the database has been
told by then. Knows ids and instants only; who switches jobs off is the dispatch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.jobs import Flag
from celery_wheelbeat.sources import Finished

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_wheelbeat.jobs import DefinitionBatch

_ARMED = np.uint16(Flag.ENABLED | Flag.ONE_OFF)


class _Arming(NamedTuple):
    """A one-off as one definition made it."""

    job_id: int
    effective_from_ms: int


class Redefined(NamedTuple):
    """What a batch of changes means for one-offs, as job ids."""

    done: list[int]
    """Done already: they have to stay switched off."""
    armed: list[int]
    """New, or another one-off than before: what waits was offered by a former definition, and is not their run."""


class OneOffs:
    """The one-off jobs of one destination. Owned by the scheduling thread."""

    def __init__(self) -> None:
        self._in_force: dict[int, _Arming] = {}
        self._on_the_way: dict[int, _Arming] = {}
        """Token → what the run was sent for."""
        self._done: dict[int, _Arming] = {}
        """Done, though the database may not know it yet."""

    def load(self, batch: DefinitionBatch) -> list[int]:
        """Take in definitions, each a job's first; returns the jobs among them that are done already."""
        armed = np.flatnonzero((batch.flags & _ARMED) == _ARMED)
        armings = map(_Arming, batch.ids[armed].tolist(), batch.effective_from_ms[armed].tolist())
        self._in_force.update((arming.job_id, arming) for arming in armings)
        if not self._done:
            return []
        return [job_id for job_id in batch.ids[armed].tolist() if self._done.get(job_id) == self._in_force[job_id]]

    def redefine(self, batch: DefinitionBatch, deleted_ids: Iterable[int]) -> Redefined:
        """Take in changed definitions."""
        touched = {*batch.ids.tolist(), *deleted_ids}
        former = {job_id: self._in_force.pop(job_id, None) for job_id in touched}
        done = self.load(batch)
        for job_id in (self._done.keys() & touched).difference(done):
            del self._done[job_id]
        armed = [job_id for job_id in touched if self._in_force.get(job_id) != former[job_id]]
        return Redefined(done, [job_id for job_id in armed if job_id in self._in_force])

    def is_on_the_way(self, job_id: int) -> bool:
        """Whether a run of the one-off, as it is defined now, was sent and has no outcome yet."""
        return bool(self._on_the_way) and self._in_force.get(job_id) in self._on_the_way.values()

    def owns(self, job_id: int, fire_ms: int) -> bool:
        """Whether a fire time is one of the one-off as it is defined now, not of what the job was before."""
        return fire_ms >= self._in_force[job_id].effective_from_ms

    def send(self, token: int, job_id: int) -> None:
        """Note that a run of the one-off ``job_id`` is on its way."""
        self._on_the_way[token] = self._in_force[job_id]

    def confirm(self, token: int, at_ms: int) -> tuple[int, Finished] | None:
        """Note a run confirmed at ``at_ms``; returns the job that is done by it, None where another is defined now."""
        arming = self._on_the_way.pop(token, None)
        if arming is None or self._in_force.get(arming.job_id) != arming:
            return None
        self._done[arming.job_id] = arming
        return arming.job_id, Finished(at_ms, arming.effective_from_ms)

    def give_up(self, token: int) -> None:
        """Note that a run failed or was not sent at all."""
        self._on_the_way.pop(token, None)
