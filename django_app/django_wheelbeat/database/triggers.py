"""The triggers that write change log and audit: watched columns, installation, detection of missing triggers.

The first migration installs them. Every ``migrate`` installs those that are missing or differ, because SQLite's table
rebuild drops them. Installing is idempotent and takes no lock if nothing is missing.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from django.db import transaction

from celery_wheelbeat.runtime.statements import read_statements
from django_wheelbeat.active_periods import DIGITS, LENGTH, PERIODS_KEPT
from django_wheelbeat.database.actors import ACTOR_EXPRESSIONS
from django_wheelbeat.database.audit_triggers import audit_statements

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEDULE_COLUMNS = (
    "interval_ms", "cron", "timezone", "day_rule", "once_at", "solar_event", "solar_latitude", "solar_longitude",
    "jitter_s", "start_at", "end_at", "one_off",
)  # fmt: skip
"""A change of one of these, or of ``enabled`` to true, makes a new definition: ``effective_from`` is set to now and
``finished_at`` is cleared, unless ``once_at`` is unchanged: that run has already happened."""

LOGGED_COLUMNS = (
    *SCHEDULE_COLUMNS, "name", "task", "args", "kwargs", "misfire", "overlap", "queue", "exchange", "routing_key",
    "priority", "headers", "expires_s", "expires_next", "options", "enabled", "incident_interval_ms", "incident_until",
    "finished_at",
)  # fmt: skip
"""Columns that affect scheduling or sending; changes of other columns are not written to the change log."""

_ACTIVE_PERIOD = {
    "postgresql": (
        "concat(lpad(trunc(extract(epoch FROM OLD.effective_from) * 1000)::bigint::text, {digits}, '0'), '-', "
        "lpad(trunc(extract(epoch FROM statement_timestamp()) * 1000)::bigint::text, {digits}, '0'), ',')"
    ),
    "sqlite": (
        "printf('%0{digits}d-%0{digits}d,', "
        "strftime('%s', substr(OLD.effective_from, 1, 19)) * 1000"
        " + CAST(substr(OLD.effective_from, 21, 3) AS INTEGER), "
        "strftime('%s', 'now') * 1000 + CAST(substr(strftime('%f', 'now'), 4, 3) AS INTEGER))"
    ),
    "mysql": (
        "concat(lpad(timestampdiff(MICROSECOND, '1970-01-01', OLD.effective_from) DIV 1000, {digits}, '0'), '-', "
        "lpad(timestampdiff(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000, {digits}, '0'), ',')"
    ),
}
"""SQL text of the period that ends when a monitor is paused; see ``active_periods``."""

_INSTALLED = {
    "postgresql": """
        SELECT 'function_' || proname, concat_ws(' ', CASE WHEN prosecdef THEN 'SECURITY DEFINER' END, (
            SELECT string_agg('SET ' || replace(setting, '=', ' = '), ' ' ORDER BY place)
            FROM unnest(proconfig) WITH ORDINALITY AS settings (setting, place)
        ), prosrc) FROM pg_proc
        WHERE pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('wheelbeat_monitor'))
          AND proname LIKE 'wheelbeat%%'
        UNION ALL
        SELECT 'trigger_' || tgname, CASE tgenabled WHEN 'A' THEN '' ELSE 'not ENABLE ALWAYS' END FROM pg_trigger
        WHERE tgrelid = to_regclass('wheelbeat_monitor') AND NOT tgisinternal
    """,
    "sqlite": """
        SELECT 'trigger_' || name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'wheelbeat_monitor'
    """,
    "mysql": """
        SELECT CONCAT('trigger_', trigger_name), action_statement FROM information_schema.triggers
        WHERE event_object_schema = DATABASE() AND event_object_table = 'wheelbeat_monitor'
    """,
}


def supported(vendor: str) -> bool:
    """Whether a database of this vendor can hold monitors."""
    return vendor in _INSTALLED


def missing(connection: Any) -> list[str]:
    """Return the names of triggers and functions that are missing, different, disabled or superfluous."""
    found, wanted = _found(connection), _statements(connection)
    absent = [
        name
        for name, statement in wanted.items()
        if not name.startswith("always")
        and found.get(name) != _collapse_spaces(_comparable(connection.vendor, name, statement))
    ]
    return [name.partition("_")[2] for name in [*absent, *_obsolete(found, wanted)]]


def _found(connection: Any) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(_INSTALLED[connection.vendor])
        return {name: _collapse_spaces(text) for name, text in cursor.fetchall()}


def _obsolete(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Return installed audit triggers that the setting does not select, followed by their function."""
    names = [name for name in found if name.partition("_")[2].startswith("wheelbeat_audit") and name not in wanted]
    return sorted(names, reverse=True)


def install(connection: Any) -> list[str]:
    """Install everything if ``missing`` names anything, and return those names; otherwise change nothing."""
    wanted = missing(connection)
    if wanted:
        all_or_nothing = connection.features.can_rollback_ddl
        with (
            transaction.atomic(using=connection.alias) if all_or_nothing else nullcontext(),
            connection.cursor() as cursor,
        ):
            for name in _obsolete(_found(connection), _statements(connection)):
                _drop(connection, cursor, name)
            for name, statement in _statements(connection).items():
                if connection.vendor != "postgresql":  # PostgreSQL's statements replace; elsewhere drop first
                    cursor.execute(f"DROP TRIGGER IF EXISTS {name.partition('_')[2]}")
                cursor.execute(statement)
    return wanted


def uninstall(connection: Any) -> None:
    """Drop all triggers and functions of the app."""
    with connection.cursor() as cursor:
        for name in [*_obsolete(_found(connection), _statements(connection)), *reversed([*_statements(connection)])]:
            _drop(connection, cursor, name)


def uninstall_active_periods(connection: Any) -> None:
    """Drop the triggers that maintain ``active_before``; call before the column is dropped."""
    with connection.cursor() as cursor:
        for name in reversed(_active_period_statements(connection.vendor)):
            _drop(connection, cursor, name)


def _active_period_statements(vendor: str) -> Mapping[str, str]:
    return read_statements("django_wheelbeat.database", f"sql/active_periods_{vendor}.sql")


def _has_active_periods(connection: Any) -> bool:
    """Whether the migration has added the column ``active_before``."""
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, "wheelbeat_monitor")
    return any(column.name == "active_before" for column in columns)


def _drop(connection: Any, cursor: Any, name: str) -> None:
    kind, _, plain = name.partition("_")
    if kind == "trigger":
        on_table = " ON wheelbeat_monitor" if connection.vendor == "postgresql" else ""
        cursor.execute(f"DROP TRIGGER IF EXISTS {plain}{on_table}")
    elif kind == "function":
        cursor.execute(f"DROP FUNCTION IF EXISTS {schema_of(connection)}.{plain}()")


def _statements(connection: Any) -> Mapping[str, str]:
    vendor = connection.vendor
    pieces = {
        **ACTOR_EXPRESSIONS[vendor],
        "schema": schema_of(connection),
        "logged": _differs(vendor, LOGGED_COLUMNS, "o", "n"),
        "rearming": f"({_differs(vendor, SCHEDULE_COLUMNS)} OR (NEW.enabled AND NOT OLD.enabled))",
        "rescheduled": _differs(vendor, SCHEDULE_COLUMNS),
        "period": _ACTIVE_PERIOD[vendor].replace("{digits}", str(DIGITS)),
        "kept": str(PERIODS_KEPT * LENGTH),
    }
    statements = {
        **read_statements("django_wheelbeat.database", f"sql/{vendor}.sql"),
        **_per_statement(vendor, "log"),
    }
    if _has_active_periods(connection):
        statements |= _active_period_statements(vendor)
    audit = audit_statements(connection)
    if audit:
        statements |= {**audit, **_per_statement(vendor, "audit")}
    return {name: _filled(text, pieces) for name, text in statements.items()}


def _per_statement(vendor: str, job: str) -> dict[str, str]:
    """Return PostgreSQL's statement-level triggers that call the function of ``job``; empty for other vendors."""
    if vendor != "postgresql":
        return {}
    return {
        f"always_{job}" if event == "always" else f"trigger_wheelbeat_{job}_{event}": text.replace("{job}", job)
        for event, text in read_statements("django_wheelbeat.database", "sql/statement_triggers_postgresql.sql").items()
    }


def _filled(text: str, pieces: Mapping[str, str]) -> str:
    for placeholder, piece in pieces.items():
        text = text.replace(f"{{{placeholder}}}", piece)
    return text


def _differs(vendor: str, columns: tuple[str, ...], old: str = "OLD", new: str = "NEW") -> str:
    if vendor == "postgresql":
        before, after = (", ".join(f"{row}.{column}" for column in columns) for row in (old, new))
        return f"(({before}) IS DISTINCT FROM ({after}))"
    if vendor == "mysql":
        return "(" + " OR ".join(f"NOT (BINARY OLD.{column} <=> BINARY NEW.{column})" for column in columns) + ")"
    return "(" + " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in columns) + ")"


def schema_of(connection: Any) -> str:
    """Return the schema of the tables, quoted for statements; empty if the vendor has none."""
    if connection.vendor != "postgresql":
        return ""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass('wheelbeat_monitor')"
        )
        return str(cursor.fetchone()[0])


def _collapse_spaces(text: str) -> str:
    return " ".join(text.split())


def _comparable(vendor: str, name: str, statement: str) -> str:
    """Return the part of ``statement`` that the catalogue of ``vendor`` reproduces."""
    if vendor == "sqlite":
        return statement
    if vendor == "mysql":
        return statement.partition("FOR EACH ROW")[2]
    if not name.startswith("function_"):
        return ""
    head, body, _ = statement.split("$body$")
    return head.partition("LANGUAGE plpgsql")[2].removesuffix("AS ") + body
