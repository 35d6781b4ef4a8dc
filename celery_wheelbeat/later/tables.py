"""Create and drop the tables of one-off runs, through the connection of a migration or of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.runtime.statements import read_statements

if TYPE_CHECKING:
    from celery_wheelbeat.later.connections import Caller


def create_tables(connection: Any) -> None:
    """Create what is missing. PostgreSQL gets all 59 parts now; no statement of a beat or an application makes one."""
    caller = caller_of(connection)
    for name, statement in _statements(caller).items():
        if name.startswith("create_"):
            caller.rows(statement, {})


def drop_tables(connection: Any) -> None:
    """Drop the tables with every run that is to come."""
    caller = caller_of(connection)
    caller.rows(_statements(caller)["drop_table"], {})


def _statements(caller: Caller) -> dict[str, str]:
    return dict(read_statements("celery_wheelbeat.later", f"sql/{caller.vendor}.sql"))
