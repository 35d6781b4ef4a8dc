"""The headers from which workers elect one copy of a run and keep runs from overlapping."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, NamedTuple

from celery_wheelbeat.dispatch.broker import driver_type
from celery_wheelbeat.jobs.headers import (
    CLAIM_TTL,
    JOB,
    OVERLAP,
)

INTERVALS_REMEMBERED = 20
VISIBILITY_TIMEOUTS_REMEMBERED = 2
VISIBILITY_TIMEOUT_S = {"redis": 3_600.0, "sqs": 1_800.0}
"""kombu's default by driver type: an unacknowledged message is delivered again after this time."""
DELIVERY_TIMEOUT_S = 1_800.0
"""The same for other brokers: RabbitMQ's default ``consumer_timeout``."""


def worker_headers(
    key: str, namespace: str, *, overlap: str = "allow", ttl_s: int = 0, remembered_s: int = 0
) -> dict[str, Any]:
    """Return the headers that a message of job ``key`` needs besides fire time and nonce; ``{}`` for most jobs.

    ``ttl_s`` is ``claim_ttl_s(...)`` of the job, ``remembered_s`` the installation's ``wheelbeat_dedup_ttl``: equal
    ones need no header. ``overlap`` is the monitor's choice; the tasks' own choice is made in the worker.
    """
    headers: dict[str, Any] = {}
    if ttl_s and ttl_s != remembered_s:
        headers[CLAIM_TTL] = ttl_s
    if overlap != "allow":
        headers[OVERLAP] = overlap
        headers[JOB] = f"{namespace}/{key}"  # last, next to the name, to keep the job-specific stretch short
    return headers


def claim_ttl_s(
    remembered_s: float, *, visibility_timeout_s: float, interval_ms: int | None = None, expires_s: float | None = None
) -> int:
    """Return the lifetime of a claim in whole seconds.

    ``min(remembered_s, max(2 visibility timeouts, 20 intervals, expires))``, rounded up to a power of two, so that
    few distinct values exist in rendered messages. Jobs without an interval are remembered for ``remembered_s``.
    """
    if not interval_ms:
        return math.ceil(remembered_s)
    needed_s = max(
        VISIBILITY_TIMEOUTS_REMEMBERED * visibility_timeout_s,
        INTERVALS_REMEMBERED * interval_ms / 1000,
        expires_s or 0,
        1,
    )
    return min(math.ceil(remembered_s), 1 << math.ceil(math.log2(needed_s)))


def visibility_timeout_s(app: Any) -> float:
    """Return the seconds after which the broker of ``app`` redelivers an unacknowledged message; no I/O."""
    options = app.conf.broker_transport_options or {}
    return float(options.get("visibility_timeout") or VISIBILITY_TIMEOUT_S.get(driver_type(app), DELIVERY_TIMEOUT_S))


class ClaimHeaders(NamedTuple):
    """Writes the headers of one installation's jobs."""

    namespace: str
    remembered_s: int
    """``wheelbeat_dedup_ttl``."""
    visibility_timeout_s: float

    def of(self, key: str, overlap: str, schedule: Any, expires: Any = None) -> dict[str, Any]:
        """Return the headers of job ``key``.

        ``schedule`` is its Celery schedule, which has an interval if ``run_every`` is a timedelta. ``expires`` counts
        if it is a number of seconds.
        """
        every = getattr(schedule, "run_every", None)
        ttl_s = claim_ttl_s(
            self.remembered_s,
            visibility_timeout_s=self.visibility_timeout_s,
            interval_ms=round(every.total_seconds() * 1000) if isinstance(every, timedelta) else None,
            expires_s=expires if isinstance(expires, (int, float)) else None,
        )
        return worker_headers(key, self.namespace, overlap=overlap, ttl_s=ttl_s, remembered_s=self.remembered_s)
