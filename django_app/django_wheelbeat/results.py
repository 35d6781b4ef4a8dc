"""Results of many tasks in one look-up, whatever backend keeps them: key-value stores, SQL, Django.

Never raises: a backend that is away or cannot look up many is a problem that is said beside what was found.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils.translation import gettext as _

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)


class Result(NamedTuple):
    """What a backend keeps of one task."""

    state: str
    done: Any
    """When: a datetime, an ISO text, or None."""
    page: tuple[str, int] | None = None
    """Name and key of its page in an admin site that has django-celery-results; which site is up to the reader."""


class Results(NamedTuple):
    """Results by task id, and why there may be more."""

    found: dict[str, Result]
    problem: str = ""


def look_up_results(backend: Any, ids: Sequence[str]) -> Results:
    """Return what ``backend``, Celery's result backend, keeps of ``ids``."""
    if not ids:
        return Results({})
    try:
        if hasattr(backend, "mget") and hasattr(backend, "get_key_for_task"):
            return Results(_of_keys(backend, ids))
        if hasattr(backend, "TaskModel"):
            return Results(_of_django(backend.TaskModel, ids))
        if hasattr(backend, "task_cls") and hasattr(backend, "ResultSession"):
            return Results(_of_sql(backend, ids))
    except Exception as error:  # as many kinds of errors as there are backends
        logger.warning("the result backend cannot be asked: %r", error)
        return Results({}, _("The result backend does not answer: %(error)s") % {"error": error})
    return Results(
        {}, _("The result backend (%(kind)s) keeps nothing that could be looked up.") % {"kind": _kind(backend)}
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
