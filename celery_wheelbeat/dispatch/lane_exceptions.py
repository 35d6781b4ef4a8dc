"""Single jobs that leave the fast lane against the rule of their route, and jobs that no lane can send.

``LaneExceptions`` adds to ``lane_rules`` the reasons that only show at run time: arguments that do not render, entries
that were handed out to user code, check-ins of Sentry. ``RefusedForms`` quarantines jobs. Neither sends or moves runs.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.dispatch import lane_rules
from celery_wheelbeat.dispatch.lane import definition_hash_of
from celery_wheelbeat.dispatch.messages.template import FIRST_FIRE_MS, LAST_FIRE_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.lane import Settled
    from celery_wheelbeat.dispatch.messages.envelope import Refusal
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.dispatch.messages.tracing import CheckIns
    from celery_wheelbeat.dispatch.pending import PendingRuns
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.engine.shards import JobColumns, JobView
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

REMEMBERED_MAX = 100_000
"""Most jobs remembered per reason; runs of further jobs are judged each time."""


class LaneExceptions:
    """Jobs whose runs leave the fast lane while other jobs of their route stay."""

    def __init__(
        self,
        names_of: Callable[[UInt32s], Iterable[str]],
        handed_out: Callable[[], frozenset[int]],
        check_ins: Callable[[], CheckIns | None],
    ) -> None:
        """``names_of``: refs → plain names; ``handed_out``: jobs whose entries user code holds and may write to;
        ``check_ins``: the jobs that Sentry checks in for, None = none.
        """
        self.unfit: dict[int, str] = {}
        """Jobs that do not render → reason; the celery lane reports them as Celery does."""
        self._checked_in: set[int] = set()
        """Jobs that Sentry checks in for, found when they were due, up to ``REMEMBERED_MAX``; for the report."""
        self._names_of = names_of
        self._handed_out = handed_out
        self._check_ins = check_ins

    def among(self, pairs: PendingRuns, jobs: JobColumns) -> NDArray[np.bool_]:
        """Return a mask of the runs that have to leave the fast lane; ``jobs`` holds the job of each pair."""
        found = lane_rules.apart(pairs.ids, jobs.flags)
        found |= (pairs.fire_ms < FIRST_FIRE_MS) | (pairs.fire_ms > LAST_FIRE_MS)
        check_ins = self._check_ins()
        if check_ins is not None:
            (there,) = np.nonzero(jobs.enabled & ~found)
            watched = there[check_ins.of(self._names_of(jobs.ref[there]), jobs.interval[there])]
            found[watched] = True
            if len(self._checked_in) < REMEMBERED_MAX:
                self._checked_in.update(pairs.ids[watched].tolist())
        others = self._handed_out() | self.unfit.keys()
        if others:
            found |= np.isin(pairs.ids, np.fromiter(others, np.int64, len(others)))
        return found

    def note_unfit(self, found: Mapping[int, str]) -> None:
        """Remember jobs that do not render: job id → reason."""
        room = max(0, REMEMBERED_MAX - len(self.unfit))
        self.unfit.update(islice(found.items(), room))

    def redefined(self, ids: Int64s) -> None:
        """Forget findings about jobs whose definitions have changed."""
        if self.unfit or self._checked_in:
            changed = ids.tolist()
            self._checked_in.difference_update(changed)
            for job_id in changed:
                self.unfit.pop(job_id, None)

    def by_reason(self) -> Mapping[str, Collection[int]]:
        """Return reason → jobs found at run time, when they were due; a job is in one group only."""
        held = self._handed_out()
        return {
            lane_rules.HANDED_OUT: held,
            lane_rules.CHECKED_IN: self._checked_in - held,
            lane_rules.UNFIT: self.unfit.keys() - self._checked_in - held,
        }


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

    def settle(self, settled: Settled) -> None:
        """Add the changes since the last call to ``settled``."""
        settled.poisoned.update(self._poisoned)
        settled.lifted.extend(self._lifted)
        self._poisoned, self._lifted = {}, []

    def _quarantine(self, reasons: Mapping[int, str]) -> list[JobView]:
        views = [view for view in self._engine.lookup(list(reasons)) if view is not None]
        for view in views:
            reason = self._quarantined[view.id] = reasons[view.id]
            self._poisoned[view.id] = (definition_hash_of(view, self._engine.routes[view.route_index]), reason)
        return views
