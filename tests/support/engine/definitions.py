"""Compiled definitions for tests of the core, built from a few words instead of fourteen columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.jobs.definitions import ChangeBatch, DefinitionBatch, Misfire, flags_of
from celery_wheelbeat.jobs.identity import interval_offset_ms
from celery_wheelbeat.schedules.intervals import Bounded, Interval, Once
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_wheelbeat.engine.wheel import Wheel
    from celery_wheelbeat.schedules.cron import Cron, CronTable
    from celery_wheelbeat.schedules.kinds import Polled


@dataclass(frozen=True)
class Job:
    """One definition. Exactly one of ``interval_ms``, ``cron``, ``at_ms`` and ``polled`` is given."""

    id: int
    interval_ms: int = 0
    cron: Cron | None = None
    at_ms: int | None = None
    polled: Polled | None = None
    anchor_ms: int = 0
    offset_ms: int | None = None
    """None = the default jitter of intervals, 0 for everything else."""
    enabled: bool = True
    misfire: Misfire = Misfire.AUTO
    start_ms: int = ALWAYS_MS
    end_ms: int = NEVER_MS
    incident_interval_ms: int = 0
    incident_until_ms: int = 0
    effective_from_ms: int = 0
    route_index: int = 0
    payload: bytes = b"[[],{}]"
    one_off: bool = False

    @property
    def kind(self) -> int:
        """What computes the fire times."""
        if self.interval_ms:
            return Kind.INTERVAL
        if self.cron is not None:
            return Kind.CRON
        return Kind.POLLED if self.at_ms is None else Kind.ONCE

    @property
    def resolved_offset_ms(self) -> int:
        """The offset as a compiler of monitors would resolve it."""
        if self.offset_ms is not None:
            return self.offset_ms
        return interval_offset_ms(self.id, self.interval_ms) if self.interval_ms else 0

    @property
    def name(self) -> str:
        """A plain name."""
        return f"job {self.id}"

    @property
    def schedule(self) -> Bounded:
        """The same schedule, out of the scalar functions."""
        if self.interval_ms:
            base = Interval(self.interval_ms / 1000, anchor_ms=self.anchor_ms)
        else:
            base = Once(self.at_ms) if self.cron is None else self.cron
        bounds = (self.start_ms, self.end_ms, self.incident_interval_ms, self.incident_until_ms)
        return Bounded(base, self.resolved_offset_ms, *bounds)


def batch_of(jobs: Iterable[Job], crons: CronTable) -> DefinitionBatch:
    """Compile ``jobs`` into one batch, ascending by id."""
    jobs = sorted(jobs, key=lambda job: job.id)

    def column(values: Iterable[int], dtype: type = np.int64) -> np.ndarray:
        return np.array(list(values), dtype)

    names = [job.name.encode() for job in jobs]
    return DefinitionBatch(
        ids=column(job.id for job in jobs),
        kind=column((job.kind for job in jobs), np.uint8),
        interval_ms=column(job.interval_ms for job in jobs),
        anchor_ms=column(job.anchor_ms if job.at_ms is None else job.at_ms for job in jobs),
        offset_ms=column(job.resolved_offset_ms for job in jobs),
        cron_index=column((-1 if job.cron is None else crons.intern(job.cron) for job in jobs), np.int32),
        flags=column(
            (flags_of(enabled=job.enabled, one_off=job.one_off, misfire=job.misfire) for job in jobs), np.uint16
        ),
        route_index=column((job.route_index for job in jobs), np.uint32),
        start_ms=column(job.start_ms for job in jobs),
        end_ms=column(job.end_ms for job in jobs),
        incident_interval_ms=column(job.incident_interval_ms for job in jobs),
        incident_until_ms=column(job.incident_until_ms for job in jobs),
        effective_from_ms=column(job.effective_from_ms for job in jobs),
        payload=b"".join(job.payload for job in jobs),
        lengths=column((len(job.payload) for job in jobs), np.uint32),
        names=b"".join(names),
        name_lengths=column(map(len, names), np.uint16),
        polled={job.id: job.polled for job in jobs if job.polled is not None},
    )


def changes_of(crons: CronTable, *upserts: Job, deleted: Iterable[int] = ()) -> ChangeBatch:
    """Compile a batch of changes."""
    return ChangeBatch(batch_of(upserts, crons), np.array(sorted(deleted), np.int64))


def intervals(ids: Iterable[int], interval_ms: int) -> DefinitionBatch:
    """Compile many enabled interval jobs with the default jitter, without a Python object for each."""
    all_ids = np.fromiter(ids, np.int64)
    count = len(all_ids)
    zeros = np.zeros(count, np.int64)
    interval = np.full(count, interval_ms)
    return DefinitionBatch(
        ids=all_ids,
        kind=np.zeros(count, np.uint8),
        interval_ms=interval,
        anchor_ms=zeros,
        offset_ms=interval_offset_ms(all_ids, interval),
        cron_index=np.full(count, -1, np.int32),
        flags=np.ones(count, np.uint16),
        route_index=np.zeros(count, np.uint32),
        start_ms=np.full(count, ALWAYS_MS),
        end_ms=np.full(count, NEVER_MS),
        incident_interval_ms=zeros,
        incident_until_ms=zeros,
        effective_from_ms=zeros,
        payload=b"[[],{}]" * count,
        lengths=np.full(count, 7, np.uint32),
        names=b"n" * count,
        name_lengths=np.ones(count, np.uint16),
    )


def entry_count(wheel: Wheel) -> int:
    """Return the number of entries of ``wheel``, stale ones included."""
    return sum(len(rows) for _, rows, _ in wheel.entries())
