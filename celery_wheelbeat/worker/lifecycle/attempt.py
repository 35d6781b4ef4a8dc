"""Values of the gate: the message it judges and its decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from celery_wheelbeat.worker.claims import ClaimRequest
    from celery_wheelbeat.worker.headers import RunHeaders
    from celery_wheelbeat.worker.policy import Policy


class Admission(NamedTuple):
    """The gate's decision, and the claim and lease to settle after the execution."""

    refusal: Exception | None = None
    """``Ignore`` = acknowledge and drop, ``Reject`` = return to the broker; None = execute."""
    key: str = ""
    execution: str = ""
    """Empty if the run executes without a claim."""
    lease: str | None = None
    owner: str = ""


class Needed(NamedTuple):
    """The lease that a run needs before it may execute."""

    name: str
    owner: str
    length_s: float

    @classmethod
    def by(cls, run: RunHeaders, name: str, policy: Policy, time_limit_s: float, execution: str) -> Needed:
        """Return owner and length of the lease ``name``; it is longer if the main process cannot renew it."""
        if run.owner:
            return cls(name, run.owner, policy.lease_s)
        return cls(name, execution, max(policy.lease_s, time_limit_s))


class ClaimAttempt(NamedTuple):
    """One message that asks for admission."""

    task: Any
    args: Any
    kwargs: Any
    request: MutableMapping[str, Any]
    run: RunHeaders
    policy: Policy
    key: str
    asked: ClaimRequest
    ttl_s: int
    lease: Needed | None
