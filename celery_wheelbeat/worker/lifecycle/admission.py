"""The gate in front of every run: claim, lease, then the task runs, or its message is dropped, delayed or returned.

An exception of the store never reaches the task; without a store, the task's ``outage`` option decides. After an
execution, the claim is marked before the lease is released: the next owner of the lease sees how this run ended.
"""

from __future__ import annotations

import logging
import math
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.states import REJECTED

from celery_wheelbeat.errors import ClaimStoreDown
from celery_wheelbeat.jobs.headers import FENCE
from celery_wheelbeat.worker.claims import (
    EXECUTION_BYTES,
    ClaimRequest,
    State,
    Verdict,
    claim_key,
    content_id,
    digest_of,
    execution_token,
    nonce_token,
    state_after,
)
from celery_wheelbeat.worker.headers import RunHeaders
from celery_wheelbeat.worker.lifecycle.attempt import Admission, ClaimAttempt, Needed
from celery_wheelbeat.worker.lifecycle.breaker import Breaker
from celery_wheelbeat.worker.lifecycle.waiting import publish_again
from celery_wheelbeat.worker.overlap import Contention, contend, lease_name, place_name
from celery_wheelbeat.worker.policy import LEASE_MAX_S, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from celery_wheelbeat.settings import Settings
    from celery_wheelbeat.worker.counters import Counters
    from celery_wheelbeat.worker.stores import Store

logger = logging.getLogger(__name__)

GIVE_BACK_PAUSE_S = 1.0
"""The broker redelivers a returned message at once; the pause keeps an outage from becoming a busy loop."""
UNRENEWED_LEASE_S = 3_600.0
"""Lease of an execution that the main process cannot renew because it never saw it, if the task has no time limit."""


class Gate:
    """The gate of one process, shared by its threads.

    ``flags_redelivery``: whether the broker's transport marks redelivered messages. If it does not, every delivery is
    treated as a possible redelivery.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        counters: Counters,
        *,
        flags_redelivery: bool,
        wall_ms: Callable[[], int],
    ) -> None:
        self.store = store
        self._remembered_s = int(settings.dedup_ttl)
        self._counters = counters
        self._flags_redelivery = flags_redelivery
        self._wall_ms = wall_ms
        self._default_policy = Policy.of(settings)
        self._policies: dict[str, Policy] = {}
        self._breaker = Breaker()

    def policy_of(self, task: Any) -> Policy:
        """Return the policy of ``task``; raises ``InvalidSetting``, at worker start for the tasks known then."""
        policy = self._policies.get(task.name)
        if policy is None:
            choices = getattr(task, "wheelbeat", None) or {}
            policy = self._default_policy.choose(task.name, choices, acks_late=bool(task.acks_late))
            self._policies[task.name] = policy
        return policy

    def shortest_lease_s(self) -> float:
        """Return the shortest lease of the policies seen so far, in seconds."""
        return min((policy.lease_s for policy in self._policies.values()), default=self._default_policy.lease_s)

    def remembered_s(self, run: RunHeaders, policy: Policy) -> int:
        """Return the TTL of a claim in seconds: at least one lease, so that the keeper can prolong it in time."""
        ttl_s = run.claim_ttl_s or self._remembered_s
        return ttl_s if ttl_s >= policy.lease_s else math.ceil(policy.lease_s)

    def admit(self, task: Any, task_id: str, args: Any, kwargs: Any, request: MutableMapping[str, Any]) -> Admission:
        """Decide about a message with the header ``wheelbeat_fire_ms``.

        Never raises, except ``SoftTimeLimitExceeded``: on any other error the task runs without a claim.
        """
        try:
            run = RunHeaders.read(task_id, request)
        except (TypeError, ValueError) as error:
            logger.warning(
                "%s[%s] runs without a claim: its wheelbeat_* headers are invalid: %r", task.name, task_id, error
            )
            return Admission()
        try:
            return self._admit(self._attempt(task, run, args, kwargs, request))
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            logger.exception("%s[%s] runs without a claim", task.name, task_id)
            return Admission()

    def _admit(self, attempt: ClaimAttempt) -> Admission:
        if self._breaker.failing and not self._breaker.allows(time.monotonic()):
            return self._without_store(attempt)
        try:
            admission = self._claim(attempt)
        except ClaimStoreDown as error:
            if self._breaker.failed(time.monotonic()):
                logger.error(
                    "%s; until it does, tasks run or are returned to the queue, depending on their outage option", error
                )
            return self._without_store(attempt)
        if self._breaker.failing and self._breaker.succeeded():
            logger.info("the claim store answers again")
        return admission

    def settle(self, admission: Admission, state: str | None) -> None:
        """Record that an execution ended in Celery's ``state``; None: it was interrupted without a state."""
        if not admission.execution:
            return
        # without a lease no other run waits for this mark, so it may be posted without its answer
        wait = state == REJECTED or admission.lease is not None
        self._note(admission.key, admission.execution, state_after(state), wait=wait)
        if admission.lease is not None:
            self._release(admission.lease, admission.owner)

    def _note(self, key: str, execution: str, state: State, *, wait: bool = True) -> None:
        try:
            if wait:
                self.store.mark(key, execution, state)
            else:
                self.store.post(key, execution, state)
        except ClaimStoreDown as error:
            self._counters.add("marks_lost")
            logger.warning("the end of an execution could not be recorded, a redelivery would repeat it: %s", error)

    def _release(self, lease: str, owner: str) -> None:
        try:
            self.store.release(lease, owner)
        except ClaimStoreDown as error:
            logger.warning("the lease %s could not be released and will expire: %s", lease, error)

    def _attempt(
        self, task: Any, run: RunHeaders, args: Any, kwargs: Any, request: MutableMapping[str, Any]
    ) -> ClaimAttempt:
        policy = self._policies.get(task.name) or self.policy_of(task)
        named = run.overlap or policy.overlap or policy.exclusive
        lease = lease_name(run, policy, task.name) if named else None
        # not from `random`: a task may seed it, and two executions could then have the same token
        execution = execution_token(run.owner) if run.owner else os.urandom(EXECUTION_BYTES).hex()
        identity = content_id(task.name, args, kwargs) if policy.key == "content" else run.task_id
        redelivered = run.redelivered or run.dead_lettered or not self._flags_redelivery
        asked = ClaimRequest(
            nonce_token(run.nonce),
            execution,
            digest_of(task.name, args, kwargs, policy.job_of(run)),
            redelivered,
            may_take_over=lease is None,
        )
        return ClaimAttempt(
            task=task,
            args=args,
            kwargs=kwargs,
            request=request,
            run=run,
            policy=policy,
            key=claim_key(identity, run.fire_ms, run.nesting, run.retries, run.node),
            asked=asked,
            ttl_s=self.remembered_s(run, policy),
            lease=Needed.by(run, lease, policy, _time_limit_s(task, request), execution) if lease else None,
        )

    def _claim(self, attempt: ClaimAttempt) -> Admission:
        verdict = self._ask(attempt)
        if verdict is Verdict.UNLIKE:
            self._counters.add("unlike")
            logger.warning(
                "%s[%s] runs although a message with the same id and fire time has run: its task or arguments were "
                "different",
                attempt.task.name,
                attempt.run.task_id,
            )
            run = attempt.run
            apart = claim_key(run.task_id, run.fire_ms, run.nesting, run.retries, run.node + attempt.asked.digest)
            attempt = attempt._replace(key=apart)
            verdict = self._ask(attempt)
            if verdict is Verdict.UNLIKE:
                return Admission()
        if verdict is Verdict.ELECTED and (refused := self._refuse_stale(attempt)):
            self._note(attempt.key, attempt.asked.execution, State.SKIPPED)
            return refused
        if verdict.runs and attempt.lease is None:
            self._counters.add(verdict.word)
            return Admission(key=attempt.key, execution=attempt.asked.execution)
        if verdict.drops:
            return self._drop_copy(attempt, verdict)
        if attempt.lease is None:
            return self._wait(attempt, "its execution may still be running")
        return self._lease(attempt, verdict, attempt.lease)

    def _refuse_stale(self, attempt: ClaimAttempt) -> Admission | None:
        """Judge a run without a claim that is overdue for longer than its TTL: it may have run, its claim expired."""
        run = attempt.run
        if self._wall_ms() - run.due_ms <= attempt.ttl_s * 1000 or run.begun:
            return None
        self._counters.add("stale")
        if attempt.policy.stale == "drop":
            return self._drop(attempt, "stale", "it is overdue for longer than claims are kept")
        logger.warning(
            "%s[%s] runs although copies of it may have run: it was due more than %d s ago, longer than claims are "
            "kept (wheelbeat_dedup_ttl)",
            attempt.task.name,
            run.task_id,
            attempt.ttl_s,
        )
        return None

    def _ask(self, attempt: ClaimAttempt) -> Verdict:
        verdict = self.store.claim(attempt.key, attempt.asked, attempt.ttl_s)
        if self.store.losses.count:
            lost = self.store.losses.take()
            self._counters.add("marks_lost", lost)
            logger.warning("the end of %d executions could not be recorded, a redelivery would repeat them", lost)
        return verdict

    def _lease(self, attempt: ClaimAttempt, verdict: Verdict, lease: Needed) -> Admission:
        taken = self.store.acquire(lease.name, lease.owner, lease.length_s)
        if not taken.granted:
            return self._contend(attempt, verdict, lease.name)
        if verdict is Verdict.HELD:
            # the previous execution is dead or has ended since, because its lease was free: take the claim over
            verdict = self._ask(attempt._replace(asked=attempt.asked._replace(redelivered=True, may_take_over=True)))
            if not verdict.runs:
                self._release(lease.name, lease.owner)
                return self._drop_copy(attempt, verdict) if verdict.drops else Admission()
        if attempt.run.waiting:
            self._release(place_name(lease.name), attempt.key)
        attempt.request[FENCE] = taken.fence
        self._counters.add(verdict.word)
        return Admission(None, attempt.key, attempt.asked.execution, lease.name, lease.owner)

    def _contend(self, attempt: ClaimAttempt, verdict: Verdict, lease: str) -> Admission:
        policy = attempt.policy
        contention = contend(attempt.run, policy, verdict)
        if contention is Contention.QUEUE:
            place = self.store.acquire(place_name(lease), attempt.key, policy.wait_s + policy.lease_s)
            contention = Contention.WAIT if place.granted else Contention.SKIP
        if contention is Contention.SKIP:
            self._note(attempt.key, attempt.asked.execution, State.SKIPPED)
            self._counters.add("skipped_overlap")
            return self._refuse(attempt, "skipped", f"another execution holds the lease {lease}")
        return self._wait(attempt, f"another execution holds the lease {lease}", mine=verdict is not Verdict.HELD)

    def _wait(self, attempt: ClaimAttempt, why: str, *, mine: bool = False) -> Admission:
        """Publish the message again with a countdown; a claim that is ``mine`` is opened until then."""
        wait_s = attempt.policy.wait_s
        try:
            publish_again(attempt.task, attempt.args, attempt.kwargs, dict(attempt.request), wait_s)
        except Exception as error:
            return self._not_put_back(attempt, error)
        if mine:
            self._note(attempt.key, attempt.asked.execution, State.OPEN)
        self._counters.add("waited")
        return self._refuse(attempt, "waits", f"{why}; retrying in {wait_s:g} s")

    def _not_put_back(self, attempt: ClaimAttempt, error: Exception) -> Admission:
        self._counters.add("not_put_back")
        logger.error(
            "%s[%s] had to wait and could not be published again: %r; %s",
            attempt.task.name,
            attempt.run.task_id,
            error,
            "it is returned to the broker" if attempt.task.acks_late else "it was acknowledged early and is lost",
        )
        reason = "not published again"
        return self._give_back(reason) if attempt.task.acks_late else Admission(Ignore(reason))

    def _without_store(self, attempt: ClaimAttempt) -> Admission:
        if refused := self._refuse_stale(attempt):
            return refused
        self._counters.add(f"outage_{attempt.policy.outage}")
        return self._give_back("claim store down") if attempt.policy.outage == "closed" else Admission()

    def _give_back(self, reason: str) -> Admission:
        time.sleep(GIVE_BACK_PAUSE_S)
        return Admission(Reject(reason, requeue=True))

    def _drop_copy(self, attempt: ClaimAttempt, verdict: Verdict) -> Admission:
        elected = ""
        if logger.isEnabledFor(logging.INFO):
            with suppress(ClaimStoreDown):
                held = self.store.read(attempt.key)
                elected = f"message {held.nonce} was elected" if held else ""
        return self._drop(attempt, verdict.word, elected)

    def _drop(self, attempt: ClaimAttempt, reason: str, detail: str) -> Admission:
        self._counters.add(f"dropped_{reason}")
        return self._refuse(attempt, f"dropped ({reason})", detail)

    def _refuse(self, attempt: ClaimAttempt, outcome: str, detail: str) -> Admission:
        words = (attempt.task.name, attempt.run.task_id, attempt.asked.nonce, outcome, f": {detail}" if detail else "")
        logger.info("Task %s[%s] message %s %s%s", *words)
        return Admission(Ignore(outcome))


def _time_limit_s(task: Any, request: MutableMapping[str, Any]) -> float:
    limits = request.get("timelimit")
    hard = limits[0] if isinstance(limits, (list, tuple)) and limits else None
    if not isinstance(hard, (int, float)) or not 0 < hard <= LEASE_MAX_S:
        hard = task.time_limit or UNRENEWED_LEASE_S
    return float(hard)
