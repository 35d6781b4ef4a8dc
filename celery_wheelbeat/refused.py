"""Refused: jobs that are quarantined because no message like theirs would be taken, and how they come back.

A whole form is refused (an exchange that is not there, a compression that nobody knows) or the message of one job (more
headers than a frame holds). A job comes back when its definition changes; those of a form also when the form is found
to be taken after all. Owned by the scheduling thread; skips and asks nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.lane import definition_hash_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.engine import Engine
    from celery_wheelbeat.jobs import Int64s
    from celery_wheelbeat.lane import Settled
    from celery_wheelbeat.publishers.batches import Refusal
    from celery_wheelbeat.publishers.patterns import Form
    from celery_wheelbeat.shards import JobView

logger = logging.getLogger("celery.beat")


class Refused:
    """See the module. ``quarantined``: jobs that are not sent, with the reason; shared by the lanes of a beat."""

    def __init__(self, engine: Engine, quarantined: dict[int, str]) -> None:
        self._engine = engine
        self._quarantined = quarantined
        self._jobs: dict[Form, set[int]] = {}
        """Jobs that are quarantined for their form."""
        self._poisoned: dict[int, tuple[str, str]] = {}
        self._lifted: list[int] = []

    def refuse_form(self, form: Form, refusal: Refusal, ids: Int64s) -> None:
        """Quarantine jobs with ``form``; the log names one of them, once."""
        views = self._quarantine(dict.fromkeys(ids.tolist(), refusal.reason))
        if views and form not in self._jobs:
            name, reason = views[0].name, refusal.reason
            logger.error(
                "beat: %s and all monitors sent like it are quarantined: %s", name, reason, exc_info=refusal.error
            )
        self._jobs.setdefault(form, set()).update(ids.tolist())

    def refuse_alone(self, reasons: Mapping[int, str]) -> None:
        """Quarantine single jobs: job id → why nobody would take its message."""
        for view in self._quarantine(reasons):
            logger.error("beat: %s is quarantined: %s", view.name, reasons[view.id])

    def take_back(self, form: Form) -> None:
        """Lift the quarantine of jobs with ``form``: it would be taken now."""
        back = [job_id for job_id in self._jobs.pop(form, ()) if self._quarantined.pop(job_id, None) is not None]
        if back:
            self._lifted += back
            logger.warning("beat: %d monitors of %s are no longer quarantined: they can be sent", len(back), form.task)

    def redefined(self, ids: Int64s) -> list[Form]:
        """Forget jobs: their definitions have changed. Returns the forms that they were quarantined for."""
        changed = set(ids.tolist()) if self._jobs else set()
        touched = [form for form, jobs in self._jobs.items() if not jobs.isdisjoint(changed)]
        for form in touched:
            self._jobs[form] -= changed
            if not self._jobs[form]:
                del self._jobs[form]
        return touched

    def forms(self) -> Sequence[tuple[Form, Int64s]]:
        """Return the forms that are refused, each with some of its jobs."""
        return [(form, np.array(sorted(jobs)[:4], np.int64)) for form, jobs in self._jobs.items()]

    def settle(self, settled: Settled) -> None:
        """Pass on what has changed since the last call."""
        settled.poisoned.update(self._poisoned)
        settled.lifted.extend(self._lifted)
        self._poisoned, self._lifted = {}, []

    def _quarantine(self, reasons: Mapping[int, str]) -> list[JobView]:
        views = [view for view in self._engine.lookup(list(reasons)) if view is not None]
        for view in views:
            reason = self._quarantined[view.id] = reasons[view.id]
            self._poisoned[view.id] = (definition_hash_of(view, self._engine.routes[view.route_index]), reason)
        return views
