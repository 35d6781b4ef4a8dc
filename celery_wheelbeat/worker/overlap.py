"""Overlap: what happens to a run whose lease is held by another execution. A pure decision.

The lease of a job is taken by the execution, after its claim is won, never by the publisher: a lost message then holds
nothing. What has begun is never skipped: a retry and a redelivery wait.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.worker.claims import Verdict

if TYPE_CHECKING:
    from celery_wheelbeat.worker.headers import RunHeaders
    from celery_wheelbeat.worker.policy import Policy


class Contention(Enum):
    """What a run does while another execution holds its lease."""

    SKIP = "skip"
    WAIT = "wait"
    QUEUE = "queue"
    """Wait if the one place in the queue is free, else skip."""


class Lease(NamedTuple):
    """A store's answer to who holds a lease."""

    granted: bool
    fence: int
    """Grows with every new owner: pass it on to what the task writes to, so that a late writer can be refused."""


def lease_name(run: RunHeaders, policy: Policy, task: str) -> str | None:
    """Name the lease that ``run`` needs before it may execute, None where it needs none."""
    if policy.overlap and policy.overlap != "allow":
        name = f"task:{task}"
    elif not policy.overlap and run.overlap in ("skip", "queue_one") and run.job:
        name = f"job:{run.job}"
    elif policy.exclusive:
        name = f"run:{run.task_id}:{run.fire_ms}"
    else:
        return None
    return f"{name}@{run.node}" if run.node else name


def place_name(lease: str) -> str:
    """Name the one place in the queue for ``lease``; it is leased like the lease itself."""
    return f"place:{lease}"


def contend(run: RunHeaders, policy: Policy, verdict: Verdict) -> Contention:
    """Decide for a run that won its claim with ``verdict`` and found its lease taken."""
    begun = verdict is Verdict.HELD or run.retries > 0 or (verdict is Verdict.REOPENED and not run.waiting)
    if begun:
        return Contention.WAIT
    match policy.overlap or run.overlap:
        case "skip":
            return Contention.SKIP
        case "queue_one":
            return Contention.QUEUE
    return Contention.WAIT
