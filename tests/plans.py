"""What a statement costs PostgreSQL, counted in rows: time differs between machines, rows do not."""

from __future__ import annotations

import json
from typing import Any

READING = ("SELECT", "WITH")


def rows_touched(connection: Any, sql: str) -> int:
    """Return how many rows of tables and indexes a statement of ``connection`` reads; 0 for what reads nothing."""
    if not sql.lstrip().startswith(READING):
        return 0
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " + sql)
        (found,) = cursor.fetchone()
    (plan,) = json.loads(found) if isinstance(found, str) else found
    return _rows(plan["Plan"])


def _rows(node: dict[str, Any]) -> int:
    below = sum(_rows(child) for child in node.get("Plans", ()))
    if "Relation Name" not in node and "Index Name" not in node:
        return below
    removed = sum(node.get(f"Rows Removed by {what}", 0) for what in ("Filter", "Index Recheck"))
    return below + round((node["Actual Rows"] + removed) * node["Actual Loops"])
