"""The executions of a worker that may outlive their claims, as its main process sees them.

A claim is remembered for a time that suits the interval of its job, and a run may take longer. While Celery counts an
execution as active its claim is prolonged: a redelivery beside it finds it running, and one after it finds its end. An
execution that ends within a third of that time costs nothing here. The pool process says nothing to the main process
about its claim, so the claim is named anew from the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from celery_wheelbeat.jobs.headers import FIRE_MS
from celery_wheelbeat.worker.claims import claim_key, content_id, digest_of, nonce_token
from celery_wheelbeat.worker.headers import RunHeaders

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from celery_wheelbeat.worker.lifecycle.admission import Gate
    from celery_wheelbeat.worker.policy import Policy

PROLONGED_PER_TTL = 3


class Execution(NamedTuple):
    """One whose claim has to be prolonged now."""

    request: Any
    run: RunHeaders
    policy: Policy
    ttl_s: int

    @property
    def nonce(self) -> str:
        """What the claim keeps of the message's nonce."""
        return nonce_token(self.run.nonce)

    def claims(self) -> Iterator[str]:
        """See ``claims_of``."""
        return claims_of(self.run, self.policy, self.request.task.name, self.request.args, self.request.kwargs)


def claims_of(run: RunHeaders, policy: Policy, task: str, args: Any, kwargs: Any) -> Iterator[str]:
    """Name the claim that a message asks for, then the one that it asks for where another run has the same id."""
    identity = content_id(task, args, kwargs) if policy.key == "content" else run.task_id
    yield claim_key(identity, run.fire_ms, run.nesting, run.retries, run.node)
    yield claim_key(
        run.task_id, run.fire_ms, run.nesting, run.retries, run.node + digest_of(task, args, kwargs, policy.job_of(run))
    )


class Executions:
    """Executions by Celery's request, which is gone when the message is settled. Used by the keeper's thread alone."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._prolonged_s: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    def due(self, active: Collection[Any], now_s: float, turn_s: float) -> list[Execution]:
        """Return those of Celery's ``active`` requests whose claim was not prolonged for a third of its time.

        ``turn_s`` is how long ago the last call may be: an execution that was not seen then has begun since.
        """
        found = []
        for request in active:
            if FIRE_MS not in request.request_dict:
                continue
            try:
                run = RunHeaders.read(request.id, request.request_dict)
            except (TypeError, ValueError):
                continue  # it runs without a claim
            policy = self._gate.policy_of(request.task)
            ttl_s = self._gate.remembered_s(run, policy)
            if now_s >= self._prolonged_s.setdefault(request, now_s - turn_s) + ttl_s / PROLONGED_PER_TTL:
                self._prolonged_s[request] = now_s
                found.append(Execution(request, run, policy, ttl_s))
        return found
