"""The weaker hook, ``Task.before_start``, for a Celery whose tracer cannot be guarded.

It runs after ``task_prerun`` and after ``track_started``: signal handlers see a dropped copy, and a stored result
becomes STARTED if ``task_track_started`` is on and the result backend overwrites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.signals import task_postrun

from celery_wheelbeat.jobs.headers import FIRE_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_wheelbeat.worker.hooks.tracer_hook import AdmissionGate

ADMISSION = "wheelbeat_admission"


def guard_before_start(tasks: Mapping[str, Any], gate: AdmissionGate) -> None:
    """Call ``gate`` in ``before_start`` of every task's class; install before the tracers are built."""
    for task in tasks.values():
        cls = type(task)
        if not hasattr(cls.before_start, "wheelbeat_gate"):
            cls.before_start = _guarded(cls.before_start, gate)

    def settle(task: Any, state: str | None = None, **_: object) -> None:
        admission = getattr(task.request, ADMISSION, None)
        if admission is not None:
            gate.settle(admission, state)

    task_postrun.connect(settle, weak=False, dispatch_uid="celery_wheelbeat.settle")


def _guarded(before_start: Any, gate: AdmissionGate) -> Any:
    def admitted(self: Any, task_id: str, args: Any, kwargs: Any) -> Any:
        request = vars(self.request)
        if FIRE_MS in request:
            admission = gate.admit(self, task_id, args, kwargs, request)
            if admission.refusal is not None:
                raise admission.refusal
            request[ADMISSION] = admission
        return before_start(self, task_id, args, kwargs)

    admitted.wheelbeat_gate = gate  # type: ignore[attr-defined]  # marks the method as guarded
    return admitted
