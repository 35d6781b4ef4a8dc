"""Rows of ``wheelbeat_monitor`` as stored; every database source returns them in this form.

Values only; ``jobs.validation`` decides whether a row is valid.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.jobs.json_fields import no_markers

if TYPE_CHECKING:
    from celery_wheelbeat.jobs.json_fields import Decoder
    from celery_wheelbeat.settings import Settings


class MonitorRow(NamedTuple):
    """One row of ``wheelbeat_monitor`` as stored. Instants are integer milliseconds UTC."""

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
    fingerprint: int | None = None
    """64-bit digest of the definition, computed by the database; None if it computes none."""


class Limits(NamedTuple):
    """Limits on the size and rate of a monitor, on the tasks and queues it may name, and on its arguments' types."""

    max_payload_bytes: int = 262_144
    allowed_tasks: tuple[str, ...] | None = None
    """Patterns of allowed tasks; None = all."""
    allowed_queues: tuple[str, ...] | None = None
    """Patterns of allowed queues; None = all."""
    min_interval_ms: int = 100
    decode: Decoder = no_markers
    """Reads ``__type__`` markers in arguments, headers and options."""

    @classmethod
    def of(cls, settings: Settings, decode: Decoder) -> Limits:
        """Return the limits in the settings of a beat; ``decode`` is kombu's."""
        return cls(
            settings.max_payload_bytes,
            settings.allowed_tasks,
            settings.allowed_queues,
            settings.min_interval_ms,
            decode,
        )


def key_of(job_id: int) -> str:
    """Return the text key of a monitor. It is part of its run ids and never changes."""
    return f"monitor:{job_id}"


def definition_hash(row: MonitorRow) -> str:
    """Return a hash (32 hex digits) of all columns that affect scheduling or sending.

    The hash is the same for every driver: NULL and empty text hash alike, numbers by value. ``effective_from`` and
    ``finished_at``, which the database maintains, are not included.
    """
    definition = row._replace(id=0, effective_from_ms=0, finished_at_ms=None)[:-1]  # without the fingerprint
    normal = ["" if value is None else _by_value(value) for value in definition]
    return hashlib.blake2b(repr(normal).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _by_value(value: object) -> object:
    """Return a whole number of any type as ``int``, other values unchanged."""
    return int(value) if isinstance(value, int) or (isinstance(value, float) and value.is_integer()) else value
