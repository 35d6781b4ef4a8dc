"""Task names that a form can offer: those that the Celery app registers here, and those that monitors use already.

Only a help for typing: a task may be registered in workers alone, so an unknown name is never an error.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from celery import current_app
from django.db import connections, router

from django_wheelbeat.models import Monitor

logger = logging.getLogger(__name__)

OFFERED_MAX = 500

# One index look-up per distinct value, however many monitors share it. LIMIT bounds the walk.
_DISTINCT = """
WITH RECURSIVE distinct_values (v) AS (
    SELECT MIN({column}) FROM {table} WHERE {column} > ''
    UNION ALL
    SELECT (SELECT MIN({column}) FROM {table} WHERE {column} > distinct_values.v)
    FROM distinct_values WHERE distinct_values.v IS NOT NULL
)
SELECT v FROM distinct_values WHERE v IS NOT NULL LIMIT %s
"""


@cache
def _imported() -> bool:
    """Import the task modules once per process, as a worker would; tell whether that worked."""
    try:
        current_app.loader.import_default_modules()
    except Exception:  # foreign code at import time may raise anything; the form works without the names
        logger.warning(
            "the Celery app's task modules cannot be imported here: no task names are offered", exc_info=True
        )
        return False
    return True


def registered_tasks() -> list[str]:
    """Names in the registry of the current Celery app, without Celery's own; empty where it cannot be imported."""
    if not _imported():
        return []
    return sorted(name for name in current_app.tasks if not name.startswith("celery."))


def values_in_use(column: str, limit: int = OFFERED_MAX, within: Any = None) -> list[str]:
    """Return up to ``limit`` distinct non-empty values of an indexed text column of monitors, ascending.

    ``within``: the monitors that may be looked at, a queryset; None for all of them.
    """
    if within is not None and _is_narrowed(within):
        values = within.filter(**{f"{column}__gt": ""}).order_by(column).values_list(column, flat=True)
        return list(values.distinct()[:limit])
    connection = connections[router.db_for_read(Monitor)]
    quote = connection.ops.quote_name
    field = Monitor._meta.get_field(column)
    statement = _DISTINCT.format(column=quote(field.column), table=quote(Monitor._meta.db_table))
    with connection.cursor() as cursor:
        cursor.execute(statement, [limit])
        return [value for (value,) in cursor.fetchall()]


def _is_narrowed(queryset: Any) -> bool:
    """Whether a queryset may leave monitors out; the index of the whole table knows more than that then."""
    query = queryset.query
    return bool(query.where) or query.combinator is not None or len(query.alias_map) > 1


def offered_tasks(within: Any = None) -> list[str]:
    """Return what the form's task field completes: registered names and names in use, ascending."""
    return sorted({*registered_tasks(), *values_in_use("task", within=within)})[:OFFERED_MAX]
