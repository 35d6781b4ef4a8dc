"""One message in front of the gate, and what the gate decides about it. Values only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from celery_wheelbeat.worker.claims import Asked
    from celery_wheelbeat.worker.headers import RunHeaders
    from celery_wheelbeat.worker.policy import Policy


class Admission(NamedTuple):
    """What the gate decided, and what has to be settled after the execution."""

    refusal: Exception | None = None
    """``Ignore`` = acknowledge and forget, ``Reject`` = give back to the broker; None = execute."""
    key: str = ""
    execution: str = ""
    """Empty where the run executes without a claim."""
    lease: str | None = None
    owner: str = ""


class Needed(NamedTuple):
    """The lease that a run needs before it may execute."""

    name: str
    owner: str
    length_s: float

    @classmethod
    def by(cls, run: RunHeaders, name: str, policy: Policy, time_limit_s: float, execution: str) -> Needed:
        """Say who is to own the lease ``name``, and for how long where the main process does not prolong it."""
        if run.owner:
            return cls(name, run.owner, policy.lease_s)
        return cls(name, execution, max(policy.lease_s, time_limit_s))


class Attempt(NamedTuple):
    """One message in front of the gate."""

    task: Any
    args: Any
    kwargs: Any
    request: MutableMapping[str, Any]
    run: RunHeaders
    policy: Policy
    key: str
    asked: Asked
    ttl_s: int
    lease: Needed | None
