"""The headers by which a worker recognises a run, and how long its claim has to be remembered.

Whoever publishes runs calls ``worker_headers``; the worker reads them back with ``RunHeaders.read``. A message without
``wheelbeat_fire_ms`` is none of ours and costs a worker one look-up.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRE_MS = "wheelbeat_fire_ms"
NONCE = "wheelbeat_nonce"
OVERLAP = "wheelbeat_overlap"
JOB = "wheelbeat_job"
CLAIM_TTL = "wheelbeat_claim_ttl"
WAITING = "wheelbeat_waiting"
"""Set by a worker on a message that it published again because it has to wait for a lease."""
DELIVERY = "wheelbeat_delivery"
"""Set in the worker's main process on a delivered message: the owner of its lease. Never published."""
FENCE = "wheelbeat_fence"
"""Set on the request of a running task: the fence number of its lease (``self.request.wheelbeat_fence``)."""

INTERVALS_REMEMBERED = 20
VISIBILITY_TIMEOUTS_REMEMBERED = 2


class RunHeaders(NamedTuple):
    """What the headers of one message say about its run."""

    task_id: str
    fire_ms: int
    nonce: str
    nesting: int
    retries: int
    redelivered: bool
    waiting: bool
    claim_ttl_s: int
    """0 = the worker's own setting."""
    overlap: str
    """``allow``, ``skip`` or ``queue_one``; empty where the message does not say."""
    job: str
    """Namespace and key of the job: what must not overlap."""

    @classmethod
    def read(cls, task_id: str, request: Mapping[str, Any]) -> RunHeaders:
        """Read the request of a message that has ``wheelbeat_fire_ms``.

        A message without a nonce counts as a copy of its own kind: all such messages of one run are one message.
        """
        delivery = request.get("delivery_info") or {}
        return cls(
            task_id=task_id,
            fire_ms=int(request[FIRE_MS]),
            nonce=str(request.get(NONCE) or ""),
            nesting=int(request.get("replaced_task_nesting") or 0),
            retries=int(request.get("retries") or 0),
            redelivered=bool(delivery.get("redelivered")),
            waiting=bool(request.get(WAITING)),
            claim_ttl_s=int(request.get(CLAIM_TTL) or 0),
            overlap=str(request.get(OVERLAP) or ""),
            job=str(request.get(JOB) or ""),
        )


def worker_headers(
    key: str, namespace: str, *, overlap: str = "allow", ttl_s: int = 0, remembered_s: int = 0
) -> dict[str, Any]:
    """Return the headers that a message of job ``key`` needs beside fire time and nonce; ``{}`` for most jobs.

    ``ttl_s`` is ``claim_ttl_s(...)`` of the job, ``remembered_s`` the installation's ``wheelbeat_dedup_ttl``: equal
    ones need no header. ``overlap`` is the monitor's choice; the tasks' own choice is made in the worker.
    """
    headers: dict[str, Any] = {}
    if overlap != "allow":
        headers[OVERLAP] = overlap
        headers[JOB] = f"{namespace}/{key}"
    if ttl_s and ttl_s != remembered_s:
        headers[CLAIM_TTL] = ttl_s
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
