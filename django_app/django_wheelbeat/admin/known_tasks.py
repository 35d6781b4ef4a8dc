"""Task names for completion in forms: those registered in this process, and those that monitors already use.

A task may be registered in workers only, so an unknown name is not an error.
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
    """Import the task modules once per process, as a worker does; return whether that succeeded."""
    try:
        current_app.loader.import_default_modules()
    except Exception:  # task modules may raise anything; the form works without names
        logger.warning(
            "the Celery app's task modules cannot be imported here: the form suggests no task names", exc_info=True
        )
        return False
    return True


def registered_tasks() -> list[str]:
    """Return the names that the current Celery app registers, without Celery's own; empty if the import failed."""
    if not _imported():
        return []
    return sorted(name for name in current_app.tasks if not name.startswith("celery."))


def values_in_use(column: str, limit: int = OFFERED_MAX, within: Any = None) -> list[str]:
    """Return up to ``limit`` distinct non-empty values of an indexed text column of monitors, ascending.

    ``within``: queryset of the monitors whose values may be returned; None for all.
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
    """Whether a queryset may exclude monitors; then the index walk over the whole table would return too much."""
    query = queryset.query
    return bool(query.where) or query.combinator is not None or len(query.alias_map) > 1


def offered_tasks(within: Any = None) -> list[str]:
    """Return completions of the task field: registered names and names in use, ascending, at most OFFERED_MAX."""
    return sorted({*registered_tasks(), *values_in_use("task", within=within)})[:OFFERED_MAX]
