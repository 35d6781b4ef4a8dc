"""What the tables need beyond what Django's schema editor can say, per vendor; run by the first migration."""

from __future__ import annotations

import uuid
from typing import Any

from django_wheelbeat import triggers

_FORWARDS = {
    "postgresql": [
        "ALTER TABLE wheelbeat_changelog ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id()",
        "CREATE INDEX wheelbeat_changelog_xid ON wheelbeat_changelog (xid)",
    ],
    "sqlite": [
        "CREATE TABLE wheelbeat_actor "
        "(id integer PRIMARY KEY CHECK (id = 1), actor text NOT NULL, reason text NOT NULL)",
    ],
    "mysql": [],
}
_BACKWARDS = {"postgresql": [], "sqlite": ["DROP TABLE wheelbeat_actor"], "mysql": []}


def complete(apps: Any, schema_editor: Any) -> None:
    """Add the vendor's own columns and tables, the installation row and the triggers."""
    connection = schema_editor.connection
    apps.get_model("wheelbeat", "Installation").objects.using(connection.alias).create(uuid=str(uuid.uuid4()))
    if triggers.supported(connection.vendor):
        for statement in _FORWARDS[connection.vendor]:
            schema_editor.execute(statement)
        triggers.install(connection)


def take_back(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - RunPython's signature
    """Undo ``complete``; what belongs to a table goes with the table."""
    connection = schema_editor.connection
    if triggers.supported(connection.vendor):
        triggers.uninstall(connection)
        for statement in _BACKWARDS[connection.vendor]:
            schema_editor.execute(statement)
