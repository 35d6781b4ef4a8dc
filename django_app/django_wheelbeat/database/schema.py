"""Vendor-specific schema that Django's schema editor cannot express; the migrations call this module."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.later.tables import create_tables, drop_tables
from celery_wheelbeat.membership.rolls.tables import statement_of
from celery_wheelbeat.runtime.statements import read_statements
from django_wheelbeat.database import triggers

if TYPE_CHECKING:
    from collections.abc import Mapping

LATER_VENDORS = ("postgresql", "sqlite")
"""Databases that keep one-off runs since migration 0011; MariaDB does since a later one."""

_PLAIN = """
    once_at IS NULL AND solar_event = '' AND start_at IS NULL AND end_at IS NULL AND finished_at IS NULL
    AND incident_interval_ms IS NULL AND incident_until IS NULL AND octet_length(args) + octet_length(kwargs) <= 16384
"""
_SHAPE = """
    hashtextextended(task, 1) # hashtextextended(cron, 2) # hashtextextended(timezone, 3)
    # hashtextextended(day_rule, 4) # hashtextextended(misfire, 5) # hashtextextended(overlap, 6)
    # hashtextextended(queue, 7) # hashtextextended(exchange, 8) # hashtextextended(routing_key, 9)
    # hashtextextended(headers, 10) # hashtextextended(options, 11)
    # hashfloat8extended(coalesce(expires_s, -1), 12)
    # hashint8extended((coalesce(jitter_s, -1)::bigint << 16) | ((coalesce(priority, -1)::bigint & 4095) << 4)
                       | (enabled::int << 3) | (one_off::int << 2) | (expires_next::int << 1)
                       | (interval_ms IS NULL)::int, 13)
"""
"""Hash of the columns that many monitors share."""
_ADD_SHAPE = f"""
ALTER TABLE wheelbeat_monitor ADD COLUMN shape bigint NOT NULL GENERATED ALWAYS AS (
    CASE WHEN {_PLAIN} THEN {_SHAPE} ELSE 0 END) STORED
"""
_ADD_PACKED = f"""
ALTER TABLE wheelbeat_monitor ADD COLUMN packed bytea GENERATED ALWAYS AS (
    CASE WHEN {_PLAIN}
              AND octet_length(name) <= 200 AND name COLLATE "C" >= '!' AND name COLLATE "C" < E'\x7f'
              AND left(args, 1) = '[' AND right(args, 1) = ']' AND left(kwargs, 1) = '{{' AND right(kwargs, 1) = '}}'
              AND strpos(args, '"__type__"') = 0 AND strpos(kwargs, '"__type__"') = 0
    THEN int8send(id) || int8send({_SHAPE}) || int8send(coalesce(interval_ms, 0)) || timestamptz_send(effective_from)
         || int2send(octet_length(name)::smallint) || int2send(octet_length(args)::smallint)
         || int2send(octet_length(kwargs)::smallint)
         || substring(int8send(hashtextextended(name, 1) # hashtextextended(args || ', ' || kwargs, 2)) FROM 5)
    END) STORED
"""
"""As in migration 0007; migration 0008 replaces it by ``sql/packed_postgresql.sql``."""

_FORWARDS = {
    "postgresql": [
        _ADD_SHAPE,
        "ALTER TABLE wheelbeat_changelog ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id()",
        "CREATE INDEX wheelbeat_changelog_xid ON wheelbeat_changelog (xid)",
    ],
    "sqlite": [
        (
            "CREATE TABLE wheelbeat_actor "
            "(id integer PRIMARY KEY CHECK (id = 1), actor text NOT NULL, reason text NOT NULL)"
        ),
    ],
    "mysql": [],
}
_BACKWARDS = {"postgresql": [], "sqlite": ["DROP TABLE wheelbeat_actor"], "mysql": []}


def complete(apps: Any, schema_editor: Any) -> None:
    """Add vendor-specific columns and tables, the installation row and the triggers."""
    connection = schema_editor.connection
    apps.get_model("wheelbeat", "Installation").objects.using(connection.alias).create(uuid=str(uuid.uuid4()))
    if triggers.supported(connection.vendor):
        for statement in _FORWARDS[connection.vendor]:
            schema_editor.execute(statement)
        triggers.install(connection)


def take_back(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - RunPython's signature
    """Undo ``complete``; columns and indexes are dropped with their tables."""
    connection = schema_editor.connection
    if triggers.supported(connection.vendor):
        triggers.uninstall(connection)
        for statement in _BACKWARDS[connection.vendor]:
            schema_editor.execute(statement)


def add_indexes(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - RunPython's signature
    """Add the vendor-specific indexes for the admin's filters."""
    for statement in _indexes(schema_editor).values():
        schema_editor.execute(statement)


def drop_indexes(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - RunPython's signature
    """Undo ``add_indexes``."""
    for name in _indexes(schema_editor):
        schema_editor.execute(f"DROP INDEX {name}")


def add_packed(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - RunPython's signature
    """Replace column ``shape`` by ``packed``; rewrites the table once."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(_ADD_PACKED + ", DROP COLUMN shape")


def drop_packed(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - RunPython's signature
    """Undo ``add_packed``."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(_ADD_SHAPE + ", DROP COLUMN packed")


def add_digests(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - RunPython's signature
    """Make ``packed`` use digests instead of hashes for which collisions can be crafted; rewrites the table once."""
    if schema_editor.connection.vendor == "postgresql":
        statements = read_statements("django_wheelbeat.database", "sql/packed_postgresql.sql")
        schema = triggers.schema_of(schema_editor.connection)
        for name in ("function", "grant", "add"):
            schema_editor.execute(statements[name].replace("{schema}", schema), params=None)


def drop_digests(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - RunPython's signature
    """Undo ``add_digests``."""
    if schema_editor.connection.vendor == "postgresql":
        schema = triggers.schema_of(schema_editor.connection)
        schema_editor.execute("ALTER TABLE wheelbeat_monitor DROP COLUMN packed")
        schema_editor.execute(_ADD_PACKED)
        schema_editor.execute(f"DROP FUNCTION {schema}.wheelbeat_is_sendable(text, text)")


def _indexes(schema_editor: Any) -> Mapping[str, str]:
    if schema_editor.connection.vendor != "postgresql":
        return {}
    return read_statements("django_wheelbeat.database", "sql/indexes_postgresql.sql")


def add_later(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - the signature of RunPython
    """Create the table of one-off runs where a beat can read it."""
    if schema_editor.connection.vendor in LATER_VENDORS:
        create_tables(schema_editor.connection)


def drop_later(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - the signature of RunPython
    """Drop the table of one-off runs."""
    if schema_editor.connection.vendor in LATER_VENDORS:
        drop_tables(schema_editor.connection)


def add_later_on_mariadb(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - the signature of RunPython
    """Create the table of one-off runs on MariaDB."""
    if schema_editor.connection.vendor == "mysql":
        create_tables(schema_editor.connection)


def drop_later_on_mariadb(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - the signature of RunPython
    """Drop the table of one-off runs on MariaDB."""
    if schema_editor.connection.vendor == "mysql":
        drop_tables(schema_editor.connection)


def add_member(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - the signature of RunPython
    """Create the table in which beats say that they are here."""
    if triggers.supported(schema_editor.connection.vendor):
        schema_editor.execute(statement_of(schema_editor.connection.vendor, "create_table"), params=None)


def drop_member(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - the signature of RunPython
    """Drop that table."""
    if triggers.supported(schema_editor.connection.vendor):
        schema_editor.execute(statement_of(schema_editor.connection.vendor, "drop_table"), params=None)
