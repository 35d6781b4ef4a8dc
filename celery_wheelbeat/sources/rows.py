"""From tuples of a database driver to ``MonitorRow`` and changed ids, for SQLite and MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from celery_wheelbeat.errors import CursorLost
from celery_wheelbeat.monitors import MonitorRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_wheelbeat.jobs import Int64s

SWITCHES = tuple(MonitorRow._fields.index(name) for name in ("one_off", "expires_next", "enabled"))
"""Columns that are true or false; these databases keep them as 0 and 1."""


def to_rows(found: Iterable[Sequence[Any]]) -> list[MonitorRow]:
    """Build rows from tuples in the order of ``MonitorRow``, whose last element is the text of the shape or None.

    A row with a shape may be read as columns too, and has the fingerprint that it has there.
    """
    rows = []
    for columns in found:
        values = list(columns)
        for index in SWITCHES:
            values[index] = bool(values[index])
        shape = values.pop()
        row = MonitorRow._make((*values, None))
        rows.append(row if shape is None else row._replace(fingerprint=_fingerprint(shape, row)))
    return rows


def _fingerprint(shape: str, row: MonitorRow) -> int:
    texts = tuple(text.encode() for text in (shape, row.name, row.args or "", row.kwargs or ""))
    return hash(texts) ^ (row.interval_ms or 0) ^ row.effective_from_ms


def changed_ids(changes: Sequence[Sequence[Any]]) -> Int64s:
    """Return the ids of rows ``(monitor_id, operation)``; raises ``CursorLost`` for a change of the whole table."""
    for monitor_id, operation in changes:
        if monitor_id is None:
            raise CursorLost("manual" if operation == "R" else "truncated")
    return np.unique(np.fromiter((change[0] for change in changes), np.int64, len(changes)))
