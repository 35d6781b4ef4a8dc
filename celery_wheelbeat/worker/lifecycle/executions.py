"""Executions that may outlive their claims, as known to the worker's main process.

The TTL of a claim follows the interval of its job, and a run may take longer. While Celery counts the execution as
active, its claim is prolonged: a redelivery meanwhile finds it running, a later one finds its outcome. An execution
that ends within a third of the TTL causes no traffic. The pool process does not report its claim to the main process;
the key is computed again from the message.
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
    """An execution whose claim must be prolonged now."""

    request: Any
    run: RunHeaders
    policy: Policy
    ttl_s: int

    @property
    def nonce(self) -> str:
        """The part of the message's nonce that the claim stores."""
        return nonce_token(self.run.nonce)

    def claims(self) -> Iterator[str]:
        """See ``claims_of``."""
        return claims_of(self.run, self.policy, self.request.task.name, self.request.args, self.request.kwargs)


def claims_of(run: RunHeaders, policy: Policy, task: str, args: Any, kwargs: Any) -> Iterator[str]:
    """Yield the claim key of a message, then the key that it uses if another run has the same id."""
    identity = content_id(task, args, kwargs) if policy.key == "content" else run.task_id
    yield claim_key(identity, run.fire_ms, run.nesting, run.retries, run.node)
    yield claim_key(
        run.task_id, run.fire_ms, run.nesting, run.retries, run.node + digest_of(task, args, kwargs, policy.job_of(run))
    )


class Executions:
    """Instants of prolongation by Celery's request (weak). Only the keeper's thread uses it."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._prolonged_s: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    def due(self, active: Collection[Any], now_s: float, turn_s: float) -> list[Execution]:
        """Return the ``active`` requests of Celery whose claim was not prolonged for a third of its TTL.

        ``turn_s``: upper bound of the time since the last call; a request not seen then has begun since.
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
