"""A row that makes our own code raise: it is that row's problem, with its reason, and never that of the page it is on.

Rows can be written behind every form's back, and whoever looks at a list of them has to see the others.
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
    """Return an error as the problem of ``row``; what nobody has foreseen is written to the log with its traceback."""
    match error:
        case InvalidMonitor():
            return error
        case InvalidSchedule():
            return InvalidMonitor("schedule", str(error))
    return unforeseen(row, error)


def computed(row: MonitorRow, compute: Callable[[], Value], otherwise: Value) -> Value:
    """Return what ``compute`` returns about ``row``, or ``otherwise`` where it raises."""
    try:
        return compute()
    except Exception as error:
        problem_of(row, error)
        return otherwise
