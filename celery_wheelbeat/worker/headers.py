"""The headers by which a worker recognises a run, and how long its claim has to be remembered.

Whoever publishes runs calls ``worker_headers``; the worker reads them back with ``RunHeaders.read``. A message without
``wheelbeat_fire_ms`` is none of ours and costs a worker one look-up.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.publishers.broker import driver_type

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "periodic_task_name"
FIRE_MS = "wheelbeat_fire_ms"
NONCE = "wheelbeat_nonce"
OVERLAP = "wheelbeat_overlap"
JOB = "wheelbeat_job"
CLAIM_TTL = "wheelbeat_claim_ttl"
WAITING = "wheelbeat_waiting"
"""Set by a worker on a message that it published again because it has to wait for a lease."""
DELIVERY = "wheelbeat_delivery"
"""Set by the worker's main process in the ``delivery_info`` of a message: names the delivery, which owns its lease."""
NODE = "wheelbeat_node"
"""Set there for a message of a fanout exchange, which every worker is to execute: the worker's name."""
FENCE = "wheelbeat_fence"
"""Set on the request of a running task: the fence number of its lease (``self.request.wheelbeat_fence``)."""
DEATHS = "x-death"
"""Written by RabbitMQ: why and how often a message was dead-lettered."""
DELIVERED_BEFORE = ("rejected", "delivery_limit")
"""Reasons of RabbitMQ for which only a message that a consumer has had is dead-lettered."""

REMEMBERED_MAX_S = 31_536_000
"""As for ``wheelbeat_dedup_ttl``: a year."""
INTERVALS_REMEMBERED = 20
VISIBILITY_TIMEOUTS_REMEMBERED = 2
VISIBILITY_TIMEOUT_S = {"redis": 3_600.0, "sqs": 1_800.0}
"""Defaults of kombu by driver type: a message that is not acknowledged for this long is delivered again."""
DELIVERY_TIMEOUT_S = 1_800.0
"""The same for other brokers: RabbitMQ's default ``consumer_timeout``."""


class RunHeaders(NamedTuple):
    """What the headers of one message say about its run."""

    task_id: str
    fire_ms: int
    due_ms: int
    """Fire time, or the later instant up to which the message was to wait (``eta``)."""
    nonce: str
    nesting: int
    retries: int
    redelivered: bool
    """The broker delivers the message again."""
    dead_lettered: bool
    """It was delivered, and dead-lettered by RabbitMQ since."""
    waiting: bool
    claim_ttl_s: int
    """0 = the worker's own setting."""
    overlap: str
    """``allow``, ``skip`` or ``queue_one``; empty where the message does not say."""
    job: str
    """Namespace and key of the job: what must not overlap."""
    node: str = ""
    """The worker, where each is to execute the run."""
    name: str = ""
    """Name of the job: the headers say which one it is, whatever id it has chosen."""
    owner: str = ""
    """The name of this delivery in the worker; empty where its main process has not seen it."""

    @classmethod
    def read(cls, task_id: str, request: Mapping[str, Any]) -> RunHeaders:
        """Read the request of a message that has ``wheelbeat_fire_ms``.

        A message without a nonce counts as a copy of its own kind: all such messages of one run are one message.
        Raises ValueError for a time that no store could keep: it is refused here, or the store's refusal would pass
        for an outage.
        """
        get = request.get
        delivery, eta = get("delivery_info") or {}, get("eta")
        try:
            fire_ms = int(request[FIRE_MS])
            nesting = int(get("replaced_task_nesting") or 0)
            retries = int(get("retries") or 0)
            claim_ttl_s = int(get(CLAIM_TTL) or 0)
        except OverflowError as error:  # JSON knows Infinity
            raise ValueError("Infinity is no whole number") from error
        if not 0 <= claim_ttl_s <= REMEMBERED_MAX_S:
            raise ValueError(f"{CLAIM_TTL} = {claim_ttl_s}, expected 0 to {REMEMBERED_MAX_S}")
        values = (
            task_id,
            fire_ms,
            max(fire_ms, _ms_of(eta)) if eta else fire_ms,
            str(get(NONCE) or ""),
            nesting,
            retries,
            bool(delivery.get("redelivered")),
            DEATHS in request and _had_a_consumer(request[DEATHS]),
            bool(get(WAITING)),
            claim_ttl_s,
            str(get(OVERLAP) or ""),
            str(get(JOB) or ""),
            str(delivery.get(NODE) or ""),
            str(get(NAME) or ""),
            str(delivery.get(DELIVERY) or ""),
        )
        return tuple.__new__(cls, values)  # the constructor with its keywords takes three times as long

    @property
    def begun(self) -> bool:
        """Whether the message continues a run that a worker has taken up before."""
        return self.retries > 0 or self.nesting > 0 or self.waiting or self.dead_lettered


def _had_a_consumer(deaths: Any) -> bool:
    """Whether a message with these ``x-death`` had reached a consumer; people who publish by hand write anything."""
    if not isinstance(deaths, (list, tuple)):
        return False
    return any(isinstance(death, dict) and death.get("reason") in DELIVERED_BEFORE for death in deaths)


def _ms_of(eta: Any) -> int:
    try:
        return round(datetime.fromisoformat(eta).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):  # nothing that Celery would wait for
        return 0


def worker_headers(
    key: str, namespace: str, *, overlap: str = "allow", ttl_s: int = 0, remembered_s: int = 0
) -> dict[str, Any]:
    """Return the headers that a message of job ``key`` needs beside fire time and nonce; ``{}`` for most jobs.

    ``ttl_s`` is ``claim_ttl_s(...)`` of the job, ``remembered_s`` the installation's ``wheelbeat_dedup_ttl``: equal
    ones need no header. ``overlap`` is the monitor's choice; the tasks' own choice is made in the worker.
    """
    headers: dict[str, Any] = {}
    if ttl_s and ttl_s != remembered_s:
        headers[CLAIM_TTL] = ttl_s
    if overlap != "allow":
        headers[OVERLAP] = overlap
        headers[JOB] = f"{namespace}/{key}"  # the last one: the fast lane wants it near the name
    return headers


def claim_ttl_s(
    remembered_s: float, *, visibility_timeout_s: float, interval_ms: int | None = None, expires_s: float | None = None
) -> int:
    """Return how long a claim has to be remembered, in whole seconds.

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
    """Return after how many seconds the broker of ``app`` delivers an unacknowledged message again; no I/O."""
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

        ``schedule`` is its Celery schedule: those with ``run_every``, a timedelta, have an interval. ``expires`` counts
        where it is a number of seconds.
        """
        every = getattr(schedule, "run_every", None)
        ttl_s = claim_ttl_s(
            self.remembered_s,
            visibility_timeout_s=self.visibility_timeout_s,
            interval_ms=round(every.total_seconds() * 1000) if isinstance(every, timedelta) else None,
            expires_s=expires if isinstance(expires, (int, float)) else None,
        )
        return worker_headers(key, self.namespace, overlap=overlap, ttl_s=ttl_s, remembered_s=self.remembered_s)
