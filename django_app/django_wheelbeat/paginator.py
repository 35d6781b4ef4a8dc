"""Pages of a table that is too large to be counted for every request.

Invariant: no count looks for more than ``COUNTED_MAX`` rows, except by an index-only count of SQLite's whole table.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from django.core.paginator import Page, Paginator
from django.db import connections
from django.utils.functional import cached_property

from django_wheelbeat.selections import Selection

COUNTED_MAX = 10_000
PAGED_MAX = 50_000
"""Rows of the whole table that are paged through: a page costs as much as all before it."""

_ESTIMATE = {
    "postgresql": "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)",
    "mysql": "SELECT table_rows FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s",
}


def estimated_rows(table: str, using: str) -> int | None:
    """Return the planner's estimate for the whole ``table``; None where the database keeps none."""
    connection = connections[using]
    statement = _ESTIMATE.get(connection.vendor)
    if statement is None:
        return None
    name = connection.ops.quote_name(table) if connection.vendor == "postgresql" else table
    with connection.cursor() as cursor:
        cursor.execute(statement, [name])
        found = cursor.fetchone()
    return None if found is None or found[0] is None else int(found[0])


class Precision(Enum):
    """How much a count can be trusted."""

    EXACT = "exact"
    ESTIMATE = "estimate"
    AT_LEAST = "at least"


class EstimatingPaginator(Paginator):
    """Counts exactly up to ``COUNTED_MAX`` rows; beyond that, the whole table by its estimate, a selection by the cap.

    A selection with more rows shows its first ``COUNTED_MAX``: narrowing the search is quicker than paging there.
    """

    precision = Precision.EXACT
    """Of ``count``, once it has been read."""

    def page(self, number: Any) -> Page:
        """Return a page; its rows are a list where they had to be looked for, else a queryset."""
        number = self.validate_number(number)
        first = (number - 1) * self.per_page
        last = min(first + self.per_page, self.count)
        selection = Selection.of(self.object_list)
        rows = self.object_list[first:last] if selection is None else selection.rows(first, last, self.count)
        return self._get_page(rows, number, self)

    @cached_property
    def num_pages(self) -> int:
        """Return pages that can be asked for."""
        return min(super().num_pages, -(-PAGED_MAX // self.per_page))

    @cached_property
    def count(self) -> int:
        """Return rows to page through."""
        queryset: Any = self.object_list
        selection = Selection.of(queryset)
        if selection is None:
            counted = int(queryset.order_by().values("pk")[: COUNTED_MAX + 1].count())
        else:
            counted = selection.count(COUNTED_MAX + 1)
        if counted <= COUNTED_MAX:
            return counted
        if queryset.query.where:
            self.precision = Precision.AT_LEAST
            return COUNTED_MAX
        estimate = estimated_rows(queryset.model._meta.db_table, queryset.db)
        if estimate is None:
            return int(queryset.order_by().values("pk").count())
        self.precision = Precision.ESTIMATE
        return max(estimate, counted)
