"""What a statement costs PostgreSQL, counted in rows: time differs between machines, rows do not."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

READING = ("SELECT", "WITH")
EXPLAIN = "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) "


def rows_touched(connection: Any, sql: str) -> int:
    """Return how many rows of tables and indexes a statement of ``connection`` reads; 0 for what reads nothing."""
    if not sql.lstrip().startswith(READING):
        return 0
    with connection.cursor() as cursor:
        cursor.execute(EXPLAIN + sql)
        return _rows_of(cursor.fetchone())


@contextmanager
def statements_explained(connection: Any) -> Iterator[list[tuple[int, str]]]:
    """Explain each statement of the block where it is executed, under its settings; rows touched, and the statement."""
    found: list[tuple[int, str]] = []

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.lstrip().startswith(READING) and "set_config" not in sql:
            execute(EXPLAIN + sql, params, many, context)
            found.append((_rows_of(context["cursor"].fetchone()), sql))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield found


def _rows_of(row: Any) -> int:
    (found,) = row
    (plan,) = json.loads(found) if isinstance(found, str) else found
    return _rows(plan["Plan"])


def _rows(node: dict[str, Any]) -> int:
    below = sum(_rows(child) for child in node.get("Plans", ()))
    if "Relation Name" not in node and "Index Name" not in node:
        return below
    removed = sum(node.get(f"Rows Removed by {what}", 0) for what in ("Filter", "Index Recheck"))
    return below + round((node["Actual Rows"] + removed) * node["Actual Loops"])
