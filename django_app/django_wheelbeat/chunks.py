"""Walks over many rows by primary key: each step reads one chunk, however far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_ROWS = 5_000


def chunks_of_ids(queryset: Any, rows: int = CHUNK_ROWS) -> Iterator[list[int]]:
    """Yield the primary keys of ``queryset`` in ascending order, up to ``rows`` at a time.

    The queryset is asked again for each chunk, from the last key on, so it may shrink behind the walk.
    """
    keys = queryset.order_by("pk").values_list("pk", flat=True)
    chunk = list(keys[:rows])
    while chunk:
        yield chunk
        chunk = list(keys.filter(pk__gt=chunk[-1])[:rows])
