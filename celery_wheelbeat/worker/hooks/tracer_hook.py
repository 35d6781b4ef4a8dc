"""The hook in Celery's worker: the gate wraps ``task.__trace__`` in the process that executes.

It acts before signals, ``track_started`` and the task's own code, so a dropped copy leaves no trace in the result.
``__trace__`` is not public: a self-test at start proves that this Celery calls it; otherwise the public but weaker
``before_start`` is used. A dropped copy must never be reported as a success: on pools without processes, Celery would
then treat a later redelivery of the elected message as a repetition.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.app.trace import TraceInfo, build_tracer, fast_trace_task, trace_ok_t, trace_task_ret
from celery.exceptions import Ignore, Reject
from celery.states import IGNORED, REJECTED, SUCCESS

from celery_wheelbeat.jobs.headers import FIRE_MS
from celery_wheelbeat.worker.lifecycle.attempt import Admission

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping
    from typing import Protocol

    class AdmissionGate(Protocol):
        """The gate as the hook uses it."""

        def admit(
            self, task: Any, task_id: str, args: Any, kwargs: Any, request: MutableMapping[str, Any]
        ) -> Admission:
            """Decide about a message."""

        def settle(self, admission: Admission, state: str | None) -> None:
            """Record the end of an execution."""


logger = logging.getLogger(__name__)

REFUSALS_KEPT = 64
PROBE = "celery_wheelbeat.probe"


def guard_all(tasks: Mapping[str, Any], gate: AdmissionGate) -> None:
    """Wrap the tracer of every task that has one with ``gate``; idempotent."""
    for task in tasks.values():
        if task.__trace__ is not None and not hasattr(task.__trace__, "wheelbeat_gate"):
            task.__trace__ = guarded(task, task.__trace__, gate)


def guarded(task: Any, trace: Callable[..., Any], gate: AdmissionGate) -> Callable[..., Any]:
    """Return ``trace`` with ``gate`` in front of it. Messages of other publishers cost one look-up."""

    def trace_if_admitted(uuid: str, args: Any, kwargs: Any, request: Any = None) -> Any:
        if not request or FIRE_MS not in request:
            return trace(uuid, args, kwargs, request)
        admission = gate.admit(task, uuid, args, kwargs, request)
        if admission.refusal is not None:
            return _refused(admission.refusal)
        state: str | None = None
        try:
            outcome = trace(uuid, args, kwargs, request)
            state = SUCCESS if outcome[1] is None else outcome[1].state
        except Reject:
            state = REJECTED
            raise
        else:
            return outcome
        finally:
            gate.settle(admission, state)

    trace_if_admitted.wheelbeat_gate = gate  # type: ignore[attr-defined]  # marks the tracer as guarded
    return trace_if_admitted


def _refused(refusal: Exception) -> Any:
    """Return the tracer's result for a task that raises ``Ignore`` or ``Reject``."""
    state = REJECTED if isinstance(refusal, Reject) else IGNORED
    kind: Callable[..., Exception] = type(refusal)
    return trace_ok_t(_exception_info(kind, refusal.args), TraceInfo(state, refusal), 0.0, None)


@lru_cache(maxsize=REFUSALS_KEPT)
def _exception_info(kind: Callable[..., Exception], arguments: tuple[Any, ...]) -> ExceptionInfo:
    """Return the refusal as Celery passes it on, one cached object per kind: a traceback costs more than a claim."""
    try:
        raise kind(*arguments)
    except (Ignore, Reject):
        return ExceptionInfo(internal=True)


class _ProbeGate:
    """Refuses every message and records that it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def admit(self, *_message: Any) -> Admission:
        self.asked += 1
        return Admission(Ignore("probe"))

    def settle(self, *_end: Any) -> None:
        raise AssertionError("a refused message must not be settled")


def why_not_live(app: Any) -> str | None:
    """Send a probe through the function that Celery's pools call; returns the fault of the hook, or None.

    Run it where tasks execute, after the tracers are built and before the first message.
    """
    bodies_run = []

    def probe() -> None:
        bodies_run.append(1)

    task = app.task(name=PROBE, shared=False, ignore_result=True)(probe)
    task = app.tasks[PROBE]
    gate = _ProbeGate()
    try:
        task.__trace__ = build_tracer(PROBE, task, app.loader, app=app)
        task.__trace__ = guarded(task, task.__trace__, gate)
        trace = fast_trace_task if app.use_fast_trace_task else trace_task_ret
        request = {"id": PROBE, "task": PROBE, FIRE_MS: 0, "delivery_info": {}, "retries": 0}
        failed, einfo, _ = trace(PROBE, PROBE, request, ((), {}, {}), None, None)
    except Exception as error:
        return f"the probe raised {error!r}"
    finally:
        app.tasks.pop(PROBE, None)
    if gate.asked != 1 or bodies_run:
        return "Celery executes tasks without calling task.__trace__"
    refusal = getattr(einfo, "exception", None)
    if not failed or not isinstance(getattr(refusal, "exc", refusal), Ignore):  # billiard may have wrapped it
        return f"Celery does not take a refusal for Ignore: {einfo!r}"
    return None
