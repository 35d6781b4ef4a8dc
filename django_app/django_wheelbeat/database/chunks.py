"""Walks over many rows by primary key: each step reads one chunk, however far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_ROWS = 5_000


def chunks_of_ids(queryset: Any, rows: int = CHUNK_ROWS, *, ahead: int = 1) -> Iterator[list[int]]:
    """Yield the primary keys of ``queryset`` in ascending order, up to ``rows`` at a time.

    The queryset is asked again after each ``ahead`` chunks, from the last key on, so it may shrink behind the walk.
    More than one where the keys alone are wanted: a filter whose rows the database has to sort is sorted as often as
    it is asked.
    """
    keys = queryset.order_by("pk").values_list("pk", flat=True)
    found = list(keys[: rows * ahead])
    while found:
        for first in range(0, len(found), rows):
            yield found[first : first + rows]
        found = list(keys.filter(pk__gt=found[-1])[: rows * ahead])
