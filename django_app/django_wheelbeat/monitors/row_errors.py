"""Contains errors that one row causes, so that a page or list still shows all other rows.

Rows can be written by plain SQL, past every form, and may hold anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from celery_wheelbeat.errors import InvalidMonitor, InvalidSchedule
from celery_wheelbeat.jobs.validation import unforeseen

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.jobs.rows import MonitorRow

Value = TypeVar("Value")


def problem_of(row: MonitorRow, error: Exception) -> InvalidMonitor:
    """Return ``error`` as a problem of ``row``; unforeseen errors are logged with their traceback."""
    match error:
        case InvalidMonitor():
            return error
        case InvalidSchedule():
            return InvalidMonitor("schedule", str(error))
    return unforeseen(row, error)


def computed(row: MonitorRow, compute: Callable[[], Value], otherwise: Value) -> Value:
    """Return ``compute()``, or ``otherwise`` if it raises; the error is handled by ``problem_of``."""
    try:
        return compute()
    except Exception as error:
        problem_of(row, error)
        return otherwise
