"""Pagination of tables that are too large to count at every request.

Invariant: no count looks for more than ``COUNTED_MAX`` rows, except by an index-only count of SQLite's whole table.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any

from django.core.paginator import Page, Paginator
from django.db import connections, transaction
from django.db.models import CharField, F, IntegerField, Value
from django.db.models.functions import Concat
from django.utils.functional import cached_property

if TYPE_CHECKING:
    from collections.abc import Iterator


COUNTED_MAX = 10_000
PAGED_MAX = 50_000
"""Rows of the whole table that can be paged through; the cost of a page grows with its offset."""

_ESTIMATE = {
    "postgresql": "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)",
    "mysql": "SELECT table_rows FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s",
}


SCANNED_ROWS = 25_000
SCANNED_PER_ROW = 2
"""Additional rows to look through for each row before the page."""
SORTED_MAX = 1_000
"""Selections of up to this many rows are sorted directly."""


def estimated_rows(table: str, using: str) -> int | None:
    """Return the planner's estimate for the whole ``table``; None if the database has none."""
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
    """Precision of a count."""

    EXACT = "exact"
    ESTIMATE = "estimate"
    AT_LEAST = "at least"


class EstimatingPaginator(Paginator):
    """Counts exactly up to ``COUNTED_MAX`` rows. Beyond that, uses the estimate for the whole table, the cap otherwise.

    Of a larger selection only the first ``COUNTED_MAX`` rows are shown; users narrow the search instead of paging.
    """

    precision = Precision.EXACT
    """Precision of ``count``; valid after ``count`` has been read."""

    def page(self, number: Any) -> Page:
        """Return a page; its rows are a list if a ``Selection`` found them, else a queryset."""
        number = self.validate_number(number)
        first = (number - 1) * self.per_page
        last = min(first + self.per_page, self.count)
        selection = Selection.of(self.object_list)
        rows = self.object_list[first:last] if selection is None else selection.rows(first, last, self.count)
        return self._get_page(rows, number, self)

    @cached_property
    def num_pages(self) -> int:
        """Number of pages that can be requested."""
        return min(super().num_pages, -(-PAGED_MAX // self.per_page))

    @cached_property
    def count(self) -> int:
        """Number of rows to page through."""
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


class Selection:
    """A filtered PostgreSQL queryset that is ordered by one text or integer column.

    Looks for rows at the beginning of the order first; sorts the whole selection only if that finds too few.
    """

    def __init__(self, queryset: Any, order: str) -> None:
        self.queryset = queryset
        self.order = order

    @classmethod
    def of(cls, queryset: Any) -> Selection | None:
        """Return the selection; None if the queryset should be counted and read directly."""
        if connections[queryset.db].vendor != "postgresql" or not queryset.query.where:
            return None
        order, *_ = (*queryset.query.order_by, None)
        known = isinstance(order, str) and isinstance(_column(queryset, order), CharField | IntegerField)
        return cls(queryset, order) if known else None

    def count(self, most: int) -> int:
        """Return the number of rows, at most ``most``."""
        with _by_indexes(self.queryset.db):
            inside = self._first(SCANNED_ROWS)
            if inside is not None and _count(inside, most) == most:
                return most
            return _count(self.queryset, most)

    def rows(self, first: int, last: int, count: int) -> list[Any]:
        """Return rows ``first`` to ``last`` (exclusive) of a selection with at least ``count`` rows."""
        with _by_indexes(self.queryset.db):
            if count > SORTED_MAX:
                inside = self._first(SCANNED_ROWS + SCANNED_PER_ROW * first)
                if inside is None:
                    return list(self.queryset[first:last])
                found = list(inside[first:last])
                if len(found) == last - first:
                    return found
            return list(self._sorted()[first:last])

    def _first(self, rows: int) -> Any:
        """Return the part of the selection within the table's first ``rows`` rows; None if the table is smaller."""
        name, descending = self.order.lstrip("-"), self.order.startswith("-")
        every = self.queryset.model._default_manager.using(self.queryset.db).order_by(self.order)
        edge = every.values_list(name, flat=True)[rows : rows + 1].first()
        return None if edge is None else self.queryset.filter(**{f"{name}__{'gte' if descending else 'lte'}": edge})

    def _sorted(self) -> Any:
        """Order by an expression without an index, so that the planner uses the filter's index and sorts."""
        column = F(self.order.lstrip("-"))
        is_text = isinstance(_column(self.queryset, self.order), CharField)
        value = Concat(column, Value("")) if is_text else column + 0
        return self.queryset.order_by(value.desc() if self.order.startswith("-") else value.asc())


def _column(queryset: Any, order: str) -> Any:
    name = order.lstrip("-")
    return queryset.model._meta.pk if name == "pk" else queryset.model._meta.get_field(name)


def _count(queryset: Any, most: int) -> int:
    return int(queryset.order_by().values("pk")[:most].count())


@contextmanager
def _by_indexes(using: str) -> Iterator[None]:
    """Make the planner avoid sequential scans if there is another plan."""
    with transaction.atomic(using=using, savepoint=False), connections[using].cursor() as cursor:
        cursor.execute("SELECT current_setting('enable_seqscan'), set_config('enable_seqscan', 'off', true)")
        (former, _) = cursor.fetchone()
        yield
        cursor.execute("SELECT set_config('enable_seqscan', %s, true)", [former])
