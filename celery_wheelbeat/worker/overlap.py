"""Overlap: the decision about a run whose lease another execution holds. Pure.

The execution takes the lease after it has won its claim; the publisher never does, so a lost message holds no lease. A
run that has begun is never skipped: retries and redeliveries wait.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.worker.claims import Verdict

if TYPE_CHECKING:
    from celery_wheelbeat.worker.headers import RunHeaders
    from celery_wheelbeat.worker.policy import Policy


class Contention(Enum):
    """Action of a run while another execution holds its lease."""

    SKIP = "skip"
    WAIT = "wait"
    QUEUE = "queue"
    """Wait if the one place in the queue is free, else skip."""


class Lease(NamedTuple):
    """A store's answer to ``acquire``."""

    granted: bool
    fence: int
    """Fencing token, grows with every new owner. Tasks pass it to the systems they write to, to reject late writers."""


def lease_name(run: RunHeaders, policy: Policy, task: str) -> str | None:
    """Return the name of the lease that ``run`` needs before it may execute; None if it needs none."""
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
    """Return the name of the single waiting place for ``lease``, which is itself a lease."""
    return f"place:{lease}"


def contend(run: RunHeaders, policy: Policy, verdict: Verdict) -> Contention:
    """Decide about a run that won its claim with ``verdict`` and found its lease taken."""
    begun = verdict is Verdict.HELD or run.retries > 0 or (verdict is Verdict.REOPENED and not run.waiting)
    if begun:
        return Contention.WAIT
    match policy.overlap or run.overlap:
        case "skip":
            return Contention.SKIP
        case "queue_one":
            return Contention.QUEUE
    return Contention.WAIT
