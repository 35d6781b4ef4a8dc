"""Passes actor and reason of a change to the database, whose triggers write them into the change log.

Invariant: the actor is set until the end of the block and of its transaction, never longer, so a pooled connection
cannot carry it into the next request. This module never writes the change log itself.

Per vendor: ``set_config('wheelbeat.actor', …, true)`` and ``wheelbeat.reason`` on PostgreSQL; session variables
``@wheelbeat_actor`` and ``@wheelbeat_reason`` on MariaDB; the single row of table ``wheelbeat_actor`` on SQLite.
``ACTOR_EXPRESSIONS`` has the expressions by which the triggers read them.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

if TYPE_CHECKING:
    from collections.abc import Iterator

ACTOR_LENGTH = 150
REASON_LENGTH = 200

_SET_ACTOR = {
    "postgresql": "SELECT set_config('wheelbeat.actor', %s, true), set_config('wheelbeat.reason', %s, true)",
    "mysql": "SET @wheelbeat_actor = %s, @wheelbeat_reason = %s",
    "sqlite": "INSERT OR REPLACE INTO wheelbeat_actor (id, actor, reason) VALUES (1, %s, %s)",
}
_CLEAR_ACTOR = {
    "postgresql": "SELECT set_config('wheelbeat.actor', '', true), set_config('wheelbeat.reason', '', true)",
    "mysql": "SET @wheelbeat_actor = NULL, @wheelbeat_reason = NULL",
    "sqlite": "DELETE FROM wheelbeat_actor",
}
ACTOR_EXPRESSIONS = {
    "postgresql": {
        "who": f"left(coalesce(nullif(current_setting('wheelbeat.actor', true), ''), session_user), {ACTOR_LENGTH})",
        "why": f"left(coalesce(current_setting('wheelbeat.reason', true), ''), {REASON_LENGTH})",
    },
    "mysql": {
        "who": f"left(coalesce(@wheelbeat_actor, user()), {ACTOR_LENGTH})",
        "why": f"left(coalesce(@wheelbeat_reason, ''), {REASON_LENGTH})",
    },
    "sqlite": {
        "who": "coalesce((SELECT actor FROM wheelbeat_actor), '')",
        "why": "coalesce((SELECT reason FROM wheelbeat_actor), '')",
    },
}
"""Vendor → placeholder in the triggers' statements → SQL expression that reads it."""


@contextmanager
def acting(actor: str, reason: str = "", *, using: str = "default") -> Iterator[None]:
    """Run the block in one transaction on database ``using`` and name ``actor`` and ``reason`` in its change rows.

    Longer texts are cut to 150 and 200 characters. On other vendors the block runs without a named actor.
    """
    connection = connections[using]
    tell, forget = _SET_ACTOR.get(connection.vendor), _CLEAR_ACTOR.get(connection.vendor)
    with transaction.atomic(using=using):
        _execute(connection, tell, actor[:ACTOR_LENGTH], reason[:REASON_LENGTH])
        try:
            yield
        except BaseException:
            _clear_after_failure(connection, forget)
            raise
        _execute(connection, forget)


def gather_audit(audit_id: int, *, using: str) -> None:
    """Make the audit add the remaining changes of this transaction to its row ``audit_id``; 0 creates a row.

    For bulk changes of many transactions, each inside ``acting`` with the same actor and reason. PostgreSQL only; on
    other vendors each monitor has its own row.
    """
    if connections[using].vendor == "postgresql":
        _ask(using, "SELECT set_config('wheelbeat.bulk', %s, true)", str(audit_id or "new"))


def gathered_audit(*, using: str) -> int:
    """End ``gather_audit``; return the primary key of its row, or 0 if nothing has been written yet."""
    if connections[using].vendor != "postgresql":
        return 0
    found = _ask(using, "SELECT current_setting('wheelbeat.bulk'), set_config('wheelbeat.bulk', '', true)")
    return int(found) if found.isdigit() else 0


def _ask(using: str, statement: str, *parameters: str) -> str:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return str(cursor.fetchone()[0])


def _execute(connection: Any, statement: str | None, *parameters: str) -> None:
    if statement is not None:
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)


def _clear_after_failure(connection: Any, forget: str | None) -> None:
    # The rollback resets the actor on PostgreSQL and SQLite; MariaDB's session variables survive it.
    if connection.vendor == "mysql" and connection.connection is not None:
        with connection.connection.cursor() as cursor:
            cursor.execute(forget)
