"""Keyset walk over many rows by primary key: the cost of a step does not depend on its position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_ROWS = 5_000


def chunks_of_ids(queryset: Any, rows: int = CHUNK_ROWS, *, ahead: int = 1) -> Iterator[list[int]]:
    """Yield the primary keys of ``queryset`` in ascending order, up to ``rows`` at a time.

    The query is repeated from the last key on after every ``ahead`` chunks, so rows may leave the queryset behind the
    walk. A larger ``ahead`` helps filters whose rows the database has to sort: each query sorts all of them.
    """
    keys = queryset.order_by("pk").values_list("pk", flat=True)
    found = list(keys[: rows * ahead])
    while found:
        for first in range(0, len(found), rows):
            yield found[first : first + rows]
        found = list(keys.filter(pk__gt=found[-1])[: rows * ahead])
