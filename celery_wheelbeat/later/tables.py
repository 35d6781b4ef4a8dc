"""Create and drop the tables of one-off runs, through the connection of a migration or of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.ring import PARTS, table_of
from celery_wheelbeat.runtime.statements import read_statements

if TYPE_CHECKING:
    from celery_wheelbeat.later.connections import Caller


def create_tables(connection: Any) -> None:
    """Create what is missing. The ring gets all 59 parts now; no statement of a beat or an application makes one."""
    caller = caller_of(connection)
    for name, statement in _statements(caller).items():
        if name.startswith("create_"):
            caller.rows(statement, {})


def drop_tables(connection: Any) -> None:
    """Drop the tables with every run that is to come."""
    caller = caller_of(connection)
    caller.rows(_statements(caller)["drop_table"], {})


def _statements(caller: Caller) -> dict[str, str]:
    statements = read_statements("celery_wheelbeat.later", f"sql/{caller.vendor}.sql")
    partitions = ", ".join(f"PARTITION {table_of(part)} VALUES IN ({part})" for part in range(PARTS))
    return {name: statement.replace("{partitions}", partitions) for name, statement in statements.items()}
