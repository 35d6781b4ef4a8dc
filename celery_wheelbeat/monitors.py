"""Monitors: rows of the database, checked and compiled into a ``DefinitionBatch``.

The same checks serve the admin form, the API and the change-log tail, so what a form accepts the engine can run.
One bad row is refused with its field and reason; it never stops its neighbours.
"""

from __future__ import annotations

from typing import NamedTuple


class MonitorRow(NamedTuple):
    """One row of ``wheelbeat_monitor`` as it is stored. Instants are integer milliseconds UTC."""

    id: int
    name: str
    task: str
    args: str | None
    kwargs: str | None
    interval_ms: int | None
    cron: str | None
    timezone: str
    day_rule: str
    once_at_ms: int | None
    solar_event: str | None
    solar_latitude: float | None
    solar_longitude: float | None
    jitter_s: int | None
    """None = the default; 0 = exactly on the grid; n = spread within n seconds."""
    start_at_ms: int | None
    end_at_ms: int | None
    one_off: bool
    queue: str | None
    exchange: str | None
    routing_key: str | None
    priority: int | None
    headers: str | None
    expires_s: float | None
    expires_next: bool
    options: str | None
    misfire: str
    overlap: str
    enabled: bool
    incident_interval_ms: int | None
    incident_until_ms: int | None
    effective_from_ms: int
    finished_at_ms: int | None
