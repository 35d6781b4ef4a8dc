"""What a beat reports of the store of one-off runs: rows ahead, and rows written. The feed measures it now and then."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.later.ahead import Count, Period, counts
from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.ring import LAST_MS
from celery_wheelbeat.runtime.statements import read_statements

if TYPE_CHECKING:
    from collections.abc import Callable

MEASURED = ("postgresql", "sqlite")
"""Vendors of databases that count inserted rows."""
COUNTED_MAX = 100_000
"""Rows that are counted; more are estimated on PostgreSQL."""


class StoreCounts(NamedTuple):
    """The store as a whole."""

    ahead: Count
    """Runs that are not due yet."""
    inserted: int
    """Rows ever written, those of cancels included; statistics of the server that were reset begin at 0."""


class StoreMeter:
    """Measures the store over a connection of its own, which lasts for one measurement."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect

    def measure(self, now_s: int) -> StoreCounts:
        """Return the counts at ``now_s``; errors of the driver are not wrapped."""
        with closing(self._connect()) as connection:
            caller = caller_of(connection)
            statements = read_statements("celery_wheelbeat.later", f"sql/{caller.vendor}.sql")
            caller.rows("BEGIN", {})  # settings of the planner last as long as a transaction
            (ahead,) = counts(caller, [Period(now_s + 1, LAST_MS // 1000)], COUNTED_MAX)
            ((inserted,),) = caller.rows(statements["inserted"], {})
            caller.rows("COMMIT", {})
        return StoreCounts(ahead, int(inserted))
