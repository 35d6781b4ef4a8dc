"""Convert driver tuples to ``MonitorRow`` and to changed ids, for SQLite and MariaDB."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from celery_wheelbeat.errors import CursorLost
from celery_wheelbeat.jobs.rows import MonitorRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_wheelbeat.schedules.kinds import Int64s

SWITCHES = tuple(MonitorRow._fields.index(name) for name in ("one_off", "expires_next", "enabled"))
"""Boolean columns; these databases store them as 0 and 1."""
_TEXTS = itemgetter(-1, *(MonitorRow._fields.index(name) for name in ("name", "args", "kwargs")))
_NUMBERS = itemgetter(*(MonitorRow._fields.index(name) for name in ("interval_ms", "effective_from_ms")))


def to_rows(found: Iterable[Sequence[Any]]) -> list[MonitorRow]:
    """Build rows from tuples in the order of ``MonitorRow``; the last element is the text of the shape, or None.

    A row with a shape gets the same fingerprint as when it is read as columns.
    """
    rows = []
    for columns in found:
        values = list(columns)
        for index in SWITCHES:
            values[index] = bool(values[index])
        if values[-1] is not None:
            interval_ms, effective_from_ms = _NUMBERS(values)
            values[-1] = hash(tuple(map(str.encode, _TEXTS(values)))) ^ (interval_ms or 0) ^ (effective_from_ms or 0)
        rows.append(MonitorRow._make(values))
    return rows


def changed_ids(changes: Sequence[Sequence[Any]]) -> Int64s:
    """Return the ids of rows ``(monitor_id, operation)``; raises ``CursorLost`` for a change of the whole table."""
    for monitor_id, operation in changes:
        if monitor_id is None:
            raise CursorLost("manual" if operation == "R" else "truncated")
    return np.unique(np.fromiter((change[0] for change in changes), np.int64, len(changes)))
