"""From tuples of a database driver to ``MonitorRow``: SQLite and MariaDB know no booleans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_wheelbeat.monitors import MonitorRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ONE_OFF = MonitorRow._fields.index("one_off")
EXPIRES_NEXT = MonitorRow._fields.index("expires_next")
ENABLED = MonitorRow._fields.index("enabled")


def to_rows(found: Iterable[Sequence[Any]]) -> list[MonitorRow]:
    """Build rows from tuples in the order of ``MonitorRow``."""
    return [
        MonitorRow(
            *values[:ONE_OFF],
            bool(values[ONE_OFF]),
            *values[ONE_OFF + 1 : EXPIRES_NEXT],
            bool(values[EXPIRES_NEXT]),
            *values[EXPIRES_NEXT + 1 : ENABLED],
            bool(values[ENABLED]),
            *values[ENABLED + 1 :],
        )
        for values in found
    ]
