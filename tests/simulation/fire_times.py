"""Fire times by brute force, from the definition as it is stored: the auditor's own arithmetic.

Every point of a grid is walked. Only the instants of a cron expression come from the project (``Cron.next_fire``),
which has oracles of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.schedules.cron import Cron

if TYPE_CHECKING:
    from celery_wheelbeat.jobs.rows import MonitorRow

CRON_JITTER_S = 30
NEVER_MS = 2**62


class Plan(NamedTuple):
    """What decides the fire times of a job."""

    kind: str
    """``interval``, ``cron`` or ``once``."""
    interval_ms: int = 0
    phase_ms: int = 0
    """Interval: a point of its grid. Once: the instant."""
    cron: Cron | None = None
    offset_ms: int = 0
    """Added to the instants of the cron, and the phase of its incident."""
    start_ms: int = -NEVER_MS
    end_ms: int = NEVER_MS
    incident_ms: int = 0
    incident_until_ms: int = 0

    def fires(self, after_ms: int, until_ms: int) -> list[int]:
        """List the fire times in (``after_ms``, ``until_ms``]."""
        low, high = max(after_ms, self.start_ms - 1), min(until_ms, self.end_ms - 1)
        if not self.incident_ms:
            return self._base(low, high)
        phase_ms = self.phase_ms if self.kind == "interval" else self.offset_ms
        fast = _grid(low, min(high, self.incident_until_ms), self.incident_ms, phase_ms)
        last_ms = self.incident_until_ms - (self.incident_until_ms - phase_ms) % self.incident_ms
        return fast + self._base(max(low, last_ms), high)

    def successor(self, fire_ms: int) -> int:
        """Return the fire time after ``fire_ms`` as if the schedule had no end, NEVER_MS if there is none."""
        endless = self._replace(end_ms=NEVER_MS)
        reach_ms = 1_000
        while reach_ms < 10 * 366 * 86_400_000:
            found = endless.fires(fire_ms, fire_ms + reach_ms)
            if found:
                return found[0]
            reach_ms *= 8
        return NEVER_MS

    def _base(self, low: int, high: int) -> list[int]:
        if self.kind == "interval":
            return _grid(low, high, self.interval_ms, self.phase_ms)
        if self.kind == "once":
            return [self.phase_ms] if low < self.phase_ms <= high else []
        found = []
        fire_ms = self.cron.next_fire(low - self.offset_ms) if self.cron else None
        while fire_ms is not None and fire_ms + self.offset_ms <= high:
            found.append(fire_ms + self.offset_ms)
            fire_ms = self.cron.next_fire(fire_ms) if self.cron else None
        return found


@lru_cache(maxsize=10_000)
def plan_of(row: MonitorRow) -> Plan:
    """Read the plan of a stored monitor."""
    bounds = {
        "start_ms": -NEVER_MS if row.start_at_ms is None else row.start_at_ms,
        "end_ms": NEVER_MS if row.end_at_ms is None else row.end_at_ms,
        "incident_ms": row.incident_interval_ms or 0,
        "incident_until_ms": row.incident_until_ms or 0,
    }
    if row.interval_ms is not None:
        named = row.start_at_ms is not None
        spread_s = (0 if named else row.interval_ms // 1000) if row.jitter_s is None else row.jitter_s
        phase_ms = (row.start_at_ms or 0) + spread_ms(row.id, spread_s)
        return Plan("interval", interval_ms=row.interval_ms, phase_ms=phase_ms, **bounds)
    if row.cron:
        offset_ms = spread_ms(row.id, CRON_JITTER_S if row.jitter_s is None else row.jitter_s)
        return Plan("cron", cron=cron(row.cron, row.timezone), offset_ms=offset_ms, **bounds)
    at_ms = (row.once_at_ms or 0) + spread_ms(row.id, row.jitter_s or 0)
    return Plan("once", phase_ms=at_ms, **bounds)


def entry_plan(name: str, seconds: int | None, expression: str | None) -> Plan:
    """Return the plan of an entry of ``beat_schedule``: jittered intervals, crons on their minute."""
    if seconds is None:
        return Plan("cron", cron=cron(expression or "", "UTC"))
    return Plan("interval", interval_ms=seconds * 1000, phase_ms=spread_ms(entry_id(name), seconds))


@lru_cache(maxsize=1_000)
def cron(expression: str, timezone: str) -> Cron:
    """Parse a cron expression once."""
    return Cron(expression, timezone)


def entry_id(name: str) -> int:
    """Return the job id of an entry whose hash collides with no other."""
    return (_fnv(name.encode()) | 1 << 63) - (1 << 64)


def spread_ms(job_id: int, within_s: int) -> int:
    """Return the jitter of a job, from FNV-1a 64 as published."""
    return _fnv((job_id % (1 << 64)).to_bytes(8, "little")) % within_s * 1000 if within_s else 0


def _fnv(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def _grid(after_ms: int, until_ms: int, interval_ms: int, phase_ms: int) -> list[int]:
    first = -((phase_ms - after_ms - 1) // interval_ms)
    return list(range(phase_ms + first * interval_ms, until_ms + 1, interval_ms))
