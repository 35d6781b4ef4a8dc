"""The past runs of a monitor. They are not stored: fire times are computed, and run ids follow from them.

Outcomes come from the result backend, in one look-up for all runs, and from the workers' claims. Covers only runs of
the current schedule, including those before pauses. Never writes. Never raises if a backend is down: a note reports
what is unknown.
"""

from __future__ import annotations

import logging
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.states import FAILURE
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_wheelbeat.errors import ClaimStoreDown, InvalidSetting
from celery_wheelbeat.jobs.identity import run_id
from celery_wheelbeat.schedules.fire_times import fires
from celery_wheelbeat.sources.lookup import definition_of_row
from celery_wheelbeat.worker.claims import State, claim_key, content_id
from celery_wheelbeat.worker.stores.choice import choose_store
from django_wheelbeat.active_periods import active_periods_of
from django_wheelbeat.monitors.row_errors import problem_of
from django_wheelbeat.monitors.rows import row_of
from django_wheelbeat.monitors.run_now import namespace_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_wheelbeat.schedules.intervals import Bounded
    from celery_wheelbeat.settings import Settings
    from celery_wheelbeat.sources.lookup import Definition
    from celery_wheelbeat.worker.claims import Claim
    from django_wheelbeat.active_periods import ActivePeriod
    from django_wheelbeat.models import Monitor

logger = logging.getLogger(__name__)

RUNS_SHOWN = 20
LOOK_BACK_MS = 400 * 86_400_000
"""Result backends do not keep results for longer."""


_STATES = {
    State.RUNNING: gettext_lazy("running"),
    State.OPEN: gettext_lazy("failed, or returned to the broker"),
    State.DONE: gettext_lazy("ended"),
    State.SKIPPED: gettext_lazy("skipped"),
}


class PastRun(NamedTuple):
    """One run that was due."""

    fire_ms: int
    run_id: str
    result: Result | None
    claim: Claim | None

    @property
    def start_delay_s(self) -> float | None:
        """Seconds from the fire time to the start in the worker."""
        return (
            None
            if self.claim is None or self.claim.state is State.SKIPPED
            else (self.claim.started_ms - self.fire_ms) / 1000
        )

    @property
    def runtime_s(self) -> float | None:
        """Seconds that the worker took; None until the run has ended, and without claims."""
        if self.claim is None or not self.claim.ended_ms or self.claim.state is State.SKIPPED:
            return None
        if self.claim.state is State.OPEN and (self.result is None or self.result.state != FAILURE):
            return None  # released: the run has not executed, or will again
        return (self.claim.ended_ms - self.claim.started_ms) / 1000

    @property
    def claim_in_words(self) -> str:
        """State of the elected message in words; empty without a claim."""
        return "" if self.claim is None else str(_STATES[self.claim.state])


class History(NamedTuple):
    """The past runs, the newest first, and notes on what is unknown."""

    runs: Sequence[PastRun]
    notes: Sequence[str]


def history_of(monitor: Monitor, app: Any, settings: Settings, now_ms: int) -> History:
    """Return the past runs of a stored monitor; all of its columns must be loaded."""
    row = row_of(monitor)
    try:
        definition = definition_of_row(app, settings, row)
        past = (
            []
            if definition.schedule is None
            else _past_fires_in(active_periods_of(monitor, now_ms), definition.schedule)
        )
    except Exception as error:
        return History([], [str(problem_of(row, error))])
    if not past:
        return History([], [])
    fixed_id = definition.entry.options.get("task_id")
    namespace = namespace_in(monitor._state.db)
    ids = [str(fixed_id or run_id(definition.key, fire_ms, namespace)) for fire_ms in past]
    results = look_up_results(app.backend, ids)
    claims, problem = _claims(app, settings, definition, list(zip(ids, past, strict=True)))
    runs = [
        PastRun(fire_ms, task_id, results.found.get(task_id), claims.get(fire_ms))
        for task_id, fire_ms in zip(ids, past, strict=True)
    ]
    return History(runs, [note for note in (results.problem, problem) if note])


def _past_fires_in(periods: Sequence[ActivePeriod], schedule: Bounded) -> list[int]:
    """Return up to RUNS_SHOWN fire times of all periods, the newest first."""
    found: list[int] = []
    for period in periods:
        found += past_fires(schedule, period.end_ms, period.begin_ms, RUNS_SHOWN - len(found))
        if len(found) == RUNS_SHOWN:
            break
    return found


def past_fires(schedule: Bounded, now_ms: int, since_ms: int, count: int = RUNS_SHOWN) -> list[int]:
    """Return up to ``count`` fire times at or before ``now_ms`` and not before ``since_ms``, the newest first.

    Schedules compute only the next fire time, so the instant after which ``count`` fire times remain is found by
    bisection: about fifty probes of ``count`` steps each, regardless of the density of the schedule.
    """

    def left_after(begin_ms: int) -> list[int]:
        return list(islice(takewhile(lambda fire_ms: fire_ms <= now_ms, fires(schedule, begin_ms)), count))

    earliest_ms = max(since_ms - 1, now_ms - LOOK_BACK_MS)
    found = left_after(earliest_ms)
    enough_ms, too_few_ms = earliest_ms, now_ms
    while len(found) == count and too_few_ms - enough_ms > 1:
        middle_ms = (enough_ms + too_few_ms) // 2
        later = left_after(middle_ms)
        if len(later) == count:
            enough_ms, found = middle_ms, later
        else:
            too_few_ms = middle_ms
    return found[::-1]


def _claims(
    app: Any, settings: Settings, definition: Definition, runs: Sequence[tuple[str, int]]
) -> tuple[dict[int, Claim], str]:
    """Return the claims by fire time, and a reason if the store cannot be read."""
    try:
        store = choose_store(app, settings.dedup_url).store
    except InvalidSetting as problem:
        return {}, str(problem)
    if store is None:
        return {}, ""
    entry = definition.entry
    found = {}
    try:
        for task_id, fire_ms in runs:
            identity = task_id
            if settings.dedup_key == "content":
                identity = content_id(entry.task, list(entry.args or ()), entry.kwargs or {})
            claim = store.read(claim_key(identity, fire_ms, 0, 0))
            if claim is not None:
                found[fire_ms] = claim
    except ClaimStoreDown as down:
        return found, str(down)
    finally:
        store.close()
    return found, ""


class Result(NamedTuple):
    """Result of one task in the backend."""

    state: str
    done: Any
    """Instant of the result: a datetime, an ISO text, or None."""
    page: tuple[str, int] | None = None
    """URL name and key of its page in an admin site with django-celery-results; the caller chooses the site."""


class Results(NamedTuple):
    """Results by task id, and the problem if some could not be read."""

    found: dict[str, Result]
    problem: str = ""


def look_up_results(backend: Any, ids: Sequence[str]) -> Results:
    """Return the results of tasks ``ids`` in ``backend``, Celery's result backend."""
    if not ids:
        return Results({})
    try:
        if hasattr(backend, "mget") and hasattr(backend, "get_key_for_task"):
            return Results(_of_keys(backend, ids))
        if hasattr(backend, "TaskModel"):
            return Results(_of_django(backend.TaskModel, ids))
        if hasattr(backend, "task_cls") and hasattr(backend, "ResultSession"):
            return Results(_of_sql(backend, ids))
    except Exception as error:  # each backend raises errors of its own
        logger.warning("the result backend cannot be queried: %r", error)
        return Results({}, _("The result backend does not answer: %(error)s") % {"error": error})
    return Results(
        {}, _("The result backend (%(kind)s) stores no results that can be looked up.") % {"kind": _kind(backend)}
    )


def _of_keys(backend: Any, ids: Sequence[str]) -> dict[str, Result]:
    keys = {backend.get_key_for_task(task_id): task_id for task_id in dict.fromkeys(ids)}
    values = backend.mget(list(keys))
    pairs = values.items() if hasattr(values, "items") else zip(keys, values, strict=True)
    found = {}
    for key, value in pairs:
        if value is not None:
            meta = backend.decode_result(value)
            found[keys[key]] = Result(meta["status"], meta.get("date_done"))
    return found


def _of_django(model: Any, ids: Sequence[str]) -> dict[str, Result]:
    rows = model._default_manager.filter(task_id__in=ids).values_list("pk", "task_id", "status", "date_done")
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
    return {task_id: Result(state, done, (name, pk)) for pk, task_id, state, done in rows}


def _of_sql(backend: Any, ids: Sequence[str]) -> dict[str, Result]:
    table = backend.task_cls
    session = backend.ResultSession()
    try:
        rows = session.query(table).filter(table.task_id.in_(list(ids)))
        return {row.task_id: Result(row.status, row.date_done) for row in rows}
    finally:
        session.close()


def _kind(backend: Any) -> str:
    return type(backend).__name__
