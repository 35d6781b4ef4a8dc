"""Selections of a large table of PostgreSQL, counted and read by pages without reading the table.

The planner takes the rows of a selection for evenly spread. It would walk along the list, or through the table, in the
hope to meet enough of them soon, and where they are all at the end it reads everything. So a bounded number of rows is
looked through first, in the order of the list; what is not found there is found by the indexes of what selects it.

Invariant: a statement touches ``LOOKED_THROUGH`` rows (more for later pages), or else what the index of one of the
conditions names.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction
from django.db.models import CharField, F, IntegerField, Value
from django.db.models.functions import Concat

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOKED_THROUGH = 25_000
LOOKED_THROUGH_FOR_EACH = 2
"""More rows are looked through for each row before the page."""
SORTED_AT_ONCE = 1_000
"""Selections of up to as many rows are sorted without looking."""


class Selection:
    """The rows of a queryset that is ordered by one column, a text or a whole number."""

    def __init__(self, queryset: Any, order: str) -> None:
        self.queryset = queryset
        self.order = order

    @classmethod
    def of(cls, queryset: Any) -> Selection | None:
        """Return the selection; None where the rows had better simply be counted and read."""
        if connections[queryset.db].vendor != "postgresql" or not queryset.query.where:
            return None
        order, *_ = (*queryset.query.order_by, None)
        known = isinstance(order, str) and isinstance(_column(queryset, order), CharField | IntegerField)
        return cls(queryset, order) if known else None

    def count(self, most: int) -> int:
        """Count the rows, up to ``most``."""
        with _by_indexes(self.queryset.db):
            inside = self._first(LOOKED_THROUGH)
            if inside is not None and _count(inside, most) == most:
                return most
            return _count(self.queryset, most)

    def rows(self, first: int, last: int, count: int) -> list[Any]:
        """Return rows ``first`` to ``last`` of at least ``count``."""
        with _by_indexes(self.queryset.db):
            if count > SORTED_AT_ONCE:
                inside = self._first(LOOKED_THROUGH + LOOKED_THROUGH_FOR_EACH * first)
                if inside is None:
                    return list(self.queryset[first:last])
                found = list(inside[first:last])
                if len(found) == last - first:
                    return found
            return list(self._sorted()[first:last])

    def _first(self, rows: int) -> Any:
        """Return the part of the selection that lies in the first ``rows`` of the table; None for a smaller table."""
        name, descending = self.order.lstrip("-"), self.order.startswith("-")
        every = self.queryset.model._default_manager.using(self.queryset.db).order_by(self.order)
        edge = every.values_list(name, flat=True)[rows : rows + 1].first()
        return None if edge is None else self.queryset.filter(**{f"{name}__{'gte' if descending else 'lte'}": edge})

    def _sorted(self) -> Any:
        """Order by a value that no index knows: the rows are found by what selects them, and then sorted."""
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
    """Let the planner take no way through the whole table as long as there is another one."""
    with transaction.atomic(using=using, savepoint=False), connections[using].cursor() as cursor:
        cursor.execute("SELECT current_setting('enable_seqscan'), set_config('enable_seqscan', 'off', true)")
        (former, _) = cursor.fetchone()
        yield
        cursor.execute("SELECT set_config('enable_seqscan', %s, true)", [former])
