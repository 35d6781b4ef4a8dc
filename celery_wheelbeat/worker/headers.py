"""The ``wheelbeat_*`` headers of a message, read by a worker.

``dispatch.messages.claim_headers`` writes them. A message without ``wheelbeat_fire_ms`` does not come from wheelbeat;
it costs a worker one look-up.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.jobs.headers import (
    CLAIM_TTL,
    DELIVERY,
    FIRE_MS,
    JOB,
    NODE,
    NONCE,
    OVERLAP,
    REMEMBERED_MAX_S,
    WAITING,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "periodic_task_name"
DEATHS = "x-death"
"""Written by RabbitMQ: why and how often a message was dead-lettered."""
DELIVERED_BEFORE = ("rejected", "delivery_limit")
"""RabbitMQ's reasons of dead-lettering that imply a delivery to a consumer."""


class RunHeaders(NamedTuple):
    """The run of one message, from its headers."""

    task_id: str
    fire_ms: int
    due_ms: int
    """Fire time, or the message's ``eta`` if that is later."""
    nonce: str
    nesting: int
    retries: int
    redelivered: bool
    """The broker delivers the message again."""
    dead_lettered: bool
    """RabbitMQ has delivered the message before and then dead-lettered it."""
    waiting: bool
    claim_ttl_s: int
    """0 = the worker's own setting."""
    overlap: str
    """``allow``, ``skip`` or ``queue_one``; empty if the message has no such header."""
    job: str
    """Namespace and key of the job, whose runs must not overlap."""
    node: str = ""
    """Name of the worker if every worker executes the run (broadcast), else empty."""
    name: str = ""
    """The job as the headers name it; independent of a task id that the job chooses."""
    owner: str = ""
    """Owner name of this delivery in the worker; empty if the main process has not seen it."""

    @classmethod
    def read(cls, task_id: str, request: Mapping[str, Any]) -> RunHeaders:
        """Read the request of a message that has ``wheelbeat_fire_ms``.

        All messages of one run without a nonce count as the same message. Raises ValueError for a time that no store
        can hold: the store's error would be mistaken for an outage.
        """
        get = request.get
        delivery, eta = get("delivery_info") or {}, get("eta")
        try:
            fire_ms = int(request[FIRE_MS])
            nesting = int(get("replaced_task_nesting") or 0)
            retries = int(get("retries") or 0)
            claim_ttl_s = int(get(CLAIM_TTL) or 0)
        except OverflowError as error:  # JSON knows Infinity
            raise ValueError("Infinity is not a whole number") from error
        if not 0 <= claim_ttl_s <= REMEMBERED_MAX_S:
            raise ValueError(f"{CLAIM_TTL} = {claim_ttl_s}, expected 0 to {REMEMBERED_MAX_S}")
        return cls(
            task_id=task_id,
            fire_ms=fire_ms,
            due_ms=max(fire_ms, _ms_of(eta)) if eta else fire_ms,
            nonce=str(get(NONCE) or ""),
            nesting=nesting,
            retries=retries,
            redelivered=bool(delivery.get("redelivered")),
            dead_lettered=DEATHS in request and _had_a_consumer(request[DEATHS]),
            waiting=bool(get(WAITING)),
            claim_ttl_s=claim_ttl_s,
            overlap=str(get(OVERLAP) or ""),
            job=str(get(JOB) or ""),
            node=str(delivery.get(NODE) or ""),
            name=str(get(NAME) or ""),
            owner=str(delivery.get(DELIVERY) or ""),
        )

    @property
    def begun(self) -> bool:
        """Whether the message continues a run that a worker has received before."""
        return self.retries > 0 or self.nesting > 0 or self.waiting or self.dead_lettered


def _had_a_consumer(deaths: Any) -> bool:
    """Return whether ``x-death`` shows a delivery to a consumer; tolerates any value, as publishers may forge it."""
    if not isinstance(deaths, (list, tuple)):
        return False
    return any(isinstance(death, dict) and death.get("reason") in DELIVERED_BEFORE for death in deaths)


def _ms_of(eta: Any) -> int:
    try:
        return round(datetime.fromisoformat(eta).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):  # nothing that Celery would wait for
        return 0
