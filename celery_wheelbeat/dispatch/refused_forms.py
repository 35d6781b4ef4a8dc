"""Quarantine of jobs whose message no lane can send. Neither sends nor moves runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.dispatch.lane import definition_hash_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.dispatch.lane import JobOutcomes
    from celery_wheelbeat.dispatch.messages.envelope import Refusal
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.engine.shards import JobView
    from celery_wheelbeat.schedules.kinds import Int64s

logger = logging.getLogger("celery.beat")


class RefusedForms:
    """Quarantine of jobs whose message no lane can send. ``quarantined`` (job → reason) is shared by both lanes."""

    def __init__(self, engine: Engine, quarantined: dict[int, str]) -> None:
        self._engine = engine
        self._quarantined = quarantined
        self._jobs: dict[Form, set[int]] = {}
        """Form → jobs that are quarantined because of it."""
        self._poisoned: dict[int, tuple[str, str]] = {}
        self._lifted: list[int] = []

    def refuse_form(self, form: Form, refusal: Refusal, ids: Int64s) -> None:
        """Quarantine jobs with ``form``; logged once per form, with the name of one job."""
        views = self._quarantine(dict.fromkeys(ids.tolist(), refusal.reason))
        if views and form not in self._jobs:
            name, reason = views[0].name, refusal.reason
            logger.error(
                "beat: %s and all monitors sent like it are quarantined: %s", name, reason, exc_info=refusal.error
            )
        self._jobs.setdefault(form, set()).update(ids.tolist())

    def refuse_alone(self, reasons: Mapping[int, str]) -> None:
        """Quarantine single jobs: job id → why no broker takes its message."""
        for view in self._quarantine(reasons):
            logger.error("beat: %s is quarantined: %s", view.name, reasons[view.id])

    def take_back(self, form: Form) -> None:
        """Lift the quarantine of jobs with ``form``, which can be sent now."""
        back = [job_id for job_id in self._jobs.pop(form, ()) if self._quarantined.pop(job_id, None) is not None]
        if back:
            self._lifted += back
            logger.warning("beat: %d monitors of %s are no longer quarantined: they can be sent", len(back), form.task)

    def redefined(self, ids: Int64s) -> list[Form]:
        """Forget redefined jobs; returns the forms for which they were quarantined."""
        changed = set(ids.tolist()) if self._jobs else set()
        touched = [form for form, jobs in self._jobs.items() if not jobs.isdisjoint(changed)]
        for form in touched:
            self._jobs[form] -= changed
            if not self._jobs[form]:
                del self._jobs[form]
        return touched

    def forms(self) -> Sequence[tuple[Form, Int64s]]:
        """Return the refused forms, each with up to four of its jobs."""
        return [(form, np.array(sorted(jobs)[:4], np.int64)) for form, jobs in self._jobs.items()]

    def settle(self, of_jobs: JobOutcomes) -> None:
        """Add the changes since the last call to ``of_jobs``."""
        of_jobs.poisoned.update(self._poisoned)
        of_jobs.lifted.extend(self._lifted)
        self._poisoned, self._lifted = {}, []

    def _quarantine(self, reasons: Mapping[int, str]) -> list[JobView]:
        views = [view for view in self._engine.lookup(list(reasons)) if view is not None]
        for view in views:
            reason = self._quarantined[view.id] = reasons[view.id]
            self._poisoned[view.id] = (definition_hash_of(view, self._engine.routes[view.route_index]), reason)
        return views
