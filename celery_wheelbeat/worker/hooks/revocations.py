"""Keep copies that the worker's main process discards before the gate from overwriting a result.

Celery discards an expired or revoked message and stores REVOKED as its result. In some result backends (``django-db``)
that overwrites the result of the elected message. The claim is therefore read first: if another message was elected, or
this one has finished, nothing is written. If the store does not answer, Celery writes REVOKED.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from celery.states import REVOKED

from celery_wheelbeat.errors import ClaimStoreDown
from celery_wheelbeat.jobs.headers import FIRE_MS
from celery_wheelbeat.worker.claims import State, digest_of, nonce_token
from celery_wheelbeat.worker.headers import RunHeaders
from celery_wheelbeat.worker.lifecycle.breaker import Breaker
from celery_wheelbeat.worker.lifecycle.executions import claims_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_wheelbeat.worker.lifecycle.admission import Gate

logger = logging.getLogger(__name__)


class Revocations:
    """Judges discarded messages by their claims. Used by the threads of the main process."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._breaker = Breaker()

    def concern_a_copy(self, task: Any, task_id: str, request: Mapping[str, Any]) -> bool:
        """Return whether the discarded message ``request`` is a copy of a run with a result of its own."""
        if not self._breaker.allows(time.monotonic()):
            return False
        try:
            is_copy = self._is_copy(task, RunHeaders.read(task_id, request), request)
        except (TypeError, ValueError):
            return False  # not wheelbeat's headers
        except ClaimStoreDown as error:
            if self._breaker.failed(time.monotonic()):
                logger.warning("%s; until it does, an expired copy may overwrite the result of its run", error)
            return False
        self._breaker.succeeded()
        return is_copy

    def _is_copy(self, task: Any, run: RunHeaders, request: Mapping[str, Any]) -> bool:
        content = (task.name, request.get("args"), request.get("kwargs"))
        policy = self._gate.policy_of(task)
        for key in claims_of(run, policy, *content):
            held = self._gate.store.read(key)
            if held is None:
                return False
            if held.nonce == nonce_token(run.nonce):
                return held.state in (State.DONE, State.SKIPPED)
            if held.is_about(digest_of(*content, policy.job_of(run))):
                return True
        return False


def guard_results(tasks: Mapping[str, Any], revocations: Revocations) -> None:
    """Ask ``revocations`` before the result backends of ``tasks`` write REVOKED; patches each class once."""
    for cls in {type(task.backend) for task in tasks.values()}:
        if not hasattr(cls.mark_as_revoked, "wheelbeat_guard"):
            cls.mark_as_revoked = _guarded(cls.mark_as_revoked, tasks, revocations)


def _guarded(mark_as_revoked: Any, tasks: Mapping[str, Any], revocations: Revocations) -> Any:
    def mark(  # noqa: PLR0917 - as Celery has it
        self: Any, task_id: str, reason: str = "", request: Any = None, store_result: bool = True, state: str = REVOKED
    ) -> Any:
        message = {} if request is None else vars(request)
        if store_result and FIRE_MS in message and message.get("task") in tasks:
            store_result = not revocations.concern_a_copy(tasks[message["task"]], task_id, message)
        return mark_as_revoked(self, task_id, reason, request=request, store_result=store_result, state=state)

    mark.wheelbeat_guard = revocations  # type: ignore[attr-defined]  # marks the method as guarded
    return mark
