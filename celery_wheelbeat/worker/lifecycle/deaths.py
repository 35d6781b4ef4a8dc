"""Open the claims of executions whose pool process died; runs in the worker's main process.

A process that is killed, or exceeds its hard time limit, cannot mark its claim. Its message may come back without a
redelivered flag if it is published again; with the claim open, it runs at once instead of waiting until the claim
expires. Celery passes each such end to ``Backend.mark_as_failure``, in the main process only.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from billiard.exceptions import TimeLimitExceeded, WorkerLostError

from celery_wheelbeat.errors import ClaimStoreDown
from celery_wheelbeat.jobs.headers import FIRE_MS
from celery_wheelbeat.worker.claims import execution_token, state_after
from celery_wheelbeat.worker.headers import RunHeaders
from celery_wheelbeat.worker.lifecycle.breaker import Breaker
from celery_wheelbeat.worker.lifecycle.executions import claims_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_wheelbeat.worker.lifecycle.admission import Gate

logger = logging.getLogger(__name__)


class Deaths:
    """Marks the ends that pool processes could not mark. Used by the threads of the main process."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._breaker = Breaker()

    def note(self, task: Any, task_id: str, request: Mapping[str, Any]) -> None:
        """Open the claim of the execution of ``request``, if it holds one."""
        if not self._breaker.allows(time.monotonic()):
            return
        try:
            run = RunHeaders.read(task_id, request)
            content = (task.name, request.get("args"), request.get("kwargs"))
            # a message that shares its id with another run has its own claim; only the execution shows which one
            for key in claims_of(run, self._gate.policy_of(task), *content):
                if self._gate.store.mark(key, execution_token(run.owner), state_after(None)):
                    break
        except (TypeError, ValueError):
            return  # not wheelbeat's headers
        except ClaimStoreDown as error:
            if self._breaker.failed(time.monotonic()):
                logger.warning("the death of an execution could not be recorded: %s", error)
            return
        self._breaker.succeeded()


def guard_failures(tasks: Mapping[str, Any], deaths: Deaths) -> None:
    """Call ``deaths`` before the result backends of ``tasks`` store a failure; patches each class once."""
    for cls in {type(task.backend) for task in tasks.values()}:
        if not hasattr(cls.mark_as_failure, "wheelbeat_guard"):
            cls.mark_as_failure = _guarded(cls.mark_as_failure, tasks, deaths)


def _guarded(mark_as_failure: Any, tasks: Mapping[str, Any], deaths: Deaths) -> Any:
    def mark(self: Any, task_id: str, exc: Any, *more: Any, request: Any = None, **options: Any) -> Any:
        message = getattr(request, "__dict__", {})
        if isinstance(exc, (TimeLimitExceeded, WorkerLostError)) and FIRE_MS in message:
            task = tasks.get(message.get("task", ""))
            if task is not None:
                deaths.note(task, task_id, message)
        if request is not None:
            options["request"] = request
        return mark_as_failure(self, task_id, exc, *more, **options)

    mark.wheelbeat_guard = deaths  # type: ignore[attr-defined]  # marks the method as guarded
    return mark
