"""``celery -A proj wheelbeat migrate``: make the tables of monitors, one-off runs and beats for an app without Django.

The statements are those of the migrations of ``django_wheelbeat``. Never: changes a table that exists.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand

from celery_wheelbeat.errors import InvalidSetting, SourceError, WheelbeatError
from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.opening import command_connection
from celery_wheelbeat.later.tables import create_tables
from celery_wheelbeat.membership.rolls.tables import statement_of
from celery_wheelbeat.runtime.statements import read_statements
from celery_wheelbeat.settings import Settings

if TYPE_CHECKING:
    from celery_wheelbeat.later.connections import Caller

WORKERS_TABLES = ("wheelbeat_claim", "wheelbeat_lease")
"""Workers create these on first use."""
_BEGIN = {
    # The lock makes a second migrate wait for the first.
    "postgresql": "SELECT pg_advisory_xact_lock(1463113812, -1)",
    "mysql": "SELECT get_lock(left(concat('wheelbeat migrate ', database()), 64), 60)",
    "sqlite": "BEGIN IMMEDIATE",
}
_END = {"mysql": "SELECT release_lock(left(concat('wheelbeat migrate ', database()), 64))"}
"""Where the lock does not end with the transaction."""
_WITHOUT_TRANSACTIONS = ("mysql",)
"""Here each statement is a transaction, and leaves alone what exists: a migrate that failed can be repeated."""
_SCHEMA = {
    "postgresql": "SELECT quote_ident(current_schema())",
    "mysql": "SELECT database()",
    "sqlite": "SELECT 'main'",
}
_TABLES = {
    "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()",
    "mysql": "SELECT table_name FROM information_schema.tables WHERE table_schema = database()",
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'",
}
_BY_DJANGO = "SELECT count(*) FROM django_migrations WHERE app = 'wheelbeat'"
_INSTALLED = "SELECT count(*) FROM wheelbeat_installation"
_INSTALL = {
    "postgresql": "INSERT INTO wheelbeat_installation (uuid, schema_version) VALUES (%(uuid)s, 1)",
    "mysql": "INSERT INTO wheelbeat_installation (uuid, schema_version) VALUES (%(uuid)s, 1)",
    "sqlite": "INSERT INTO wheelbeat_installation (uuid, schema_version) VALUES (:uuid, 1)",
}


@click.command(cls=CeleryCommand)
@click.pass_context
def migrate(context: click.Context) -> None:
    """Make the tables of monitors and one-off runs in the database of wheelbeat_database_url (without Django)."""
    app = context.obj.app
    try:
        if not Settings.from_conf(app.conf).database_url:
            raise InvalidSetting("wheelbeat_database_url: not set; with django_wheelbeat, run manage.py migrate")
        with command_connection(app, of_monitors=True) as connection:
            made = make_tables(connection)
    except WheelbeatError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Made {', '.join(made)}." if made else "Nothing to do: every table exists.")


def make_tables(connection: Any) -> list[str]:
    """Make the tables that are missing, in one transaction (not on MariaDB), and return their names.

    Raises ``SourceError`` if Django has migrated the database, or another migrate does not end.
    """
    caller = caller_of(connection)
    locked = caller.rows(_BEGIN[caller.vendor], {})
    if caller.vendor == "mysql" and locked[0][0] != 1:
        raise SourceError("another `wheelbeat migrate` of this database has been running for 60 s: try again later")
    try:
        return _make_missing(connection, caller)
    finally:
        if caller.vendor in _END:
            caller.rows(_END[caller.vendor], {})


def _make_missing(connection: Any, caller: Caller) -> list[str]:
    before = _tables(caller)
    if "django_migrations" in before and caller.rows(_BY_DJANGO, {})[0][0]:
        raise SourceError("the tables of this database belong to Django: run manage.py migrate instead")
    if "wheelbeat_monitor" not in before or caller.vendor in _WITHOUT_TRANSACTIONS:
        _make_monitors(caller, before)
    create_tables(connection)
    caller.rows(statement_of(caller.vendor, "create_table"), {})
    return sorted(_tables(caller) - before)


def _make_monitors(caller: Caller, present: set[str]) -> None:
    kept = [table for table in WORKERS_TABLES if table in present]
    schema = str(caller.rows(_SCHEMA[caller.vendor], {})[0][0])
    statements = read_statements("celery_wheelbeat.sources.databases", f"sql/tables_{caller.vendor}.sql")
    for name, statement in statements.items():
        if not any(table in name for table in kept):
            caller.rows(statement.replace("{schema}", schema), {})
    if not caller.rows(_INSTALLED, {})[0][0]:
        caller.rows(_INSTALL[caller.vendor], {"uuid": str(uuid.uuid4())})


def _tables(caller: Caller) -> set[str]:
    """Return the tables of the schema without the parts of tables and SQLite's own."""
    names = {str(row[0]) for row in caller.rows(_TABLES[caller.vendor], {})}
    return {name for name in names if not name.startswith(("wheelbeat_later_", "sqlite_"))}
