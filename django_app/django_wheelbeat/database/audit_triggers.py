"""Statements of the audit triggers, which record every change of a monitor with actor and reason.

The audit is independent of the change log: no beat reads it, and everything works without it. The setting
``wheelbeat_audit`` selects the triggers. ``full``: values before and after of the changed columns; a statement that
changes more than BULK_ROWS monitors writes one row for all of them (PostgreSQL only, which has triggers per
statement). ``summary``: without values. ``off``: no triggers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_wheelbeat.runtime.statements import read_statements
from django_wheelbeat.monitors.settings import beat_settings

if TYPE_CHECKING:
    from collections.abc import Callable

BULK_ROWS = 10_000
TEXT_LENGTH = 2_000
"""Longer texts are cut: the audit is not a backup."""

LONG_COLUMNS = ("args", "kwargs", "headers", "options", "description")
AUDITED_COLUMNS = (
    "name", "task", "args", "kwargs", "interval_ms", "cron", "timezone", "day_rule", "once_at", "solar_event",
    "solar_latitude", "solar_longitude", "jitter_s", "start_at", "end_at", "one_off", "misfire", "overlap", "queue",
    "exchange", "routing_key", "priority", "headers", "expires_s", "expires_next", "options", "enabled", "pause_reason",
    "description", "tags", "incident_interval_ms", "incident_until",
)  # fmt: skip
"""Columns that users edit; not those that triggers and beats write."""


def mode_of(connection: Any) -> str:
    """Return ``off``, ``summary`` or ``full``; ``off`` until the migration has created the table."""
    mode = beat_settings().audit
    if mode != "off" and "wheelbeat_audit" not in connection.introspection.table_names():
        return "off"
    return mode


def audit_statements(connection: Any) -> dict[str, str]:
    """Return name → statement of the triggers that the setting selects; ``{schema}`` is not filled in yet."""
    mode, vendor = mode_of(connection), connection.vendor
    if mode == "off":
        return {}
    pieces = _pieces(vendor, full=mode == "full")
    statements = {}
    for name, text in read_statements("django_wheelbeat.database", f"sql/audit_{vendor}.sql").items():
        for placeholder, piece in pieces.items():
            text = text.replace(f"{{{placeholder}}}", piece)  # noqa: PLW2901 - one text, filled in step by step
        statements[name] = text
    return statements


def _pieces(vendor: str, *, full: bool) -> dict[str, str]:
    write = _WRITERS[vendor]
    old, new = ("o", "n") if vendor == "postgresql" else ("OLD", "NEW")
    pieces = {
        "pairs": write(old, new, full),
        "pairs_insert": write(None, new, full),
        "pairs_delete": write(old, None, full),
        "differs": "(" + " OR ".join(_differ(vendor, old, new, column) for column in AUDITED_COLUMNS) + ")",
    }
    if vendor == "postgresql":
        pieces["summarised"] = f"touched > {BULK_ROWS}" if full else "true"
        counts = ", ".join(
            f"'{column}', nullif(count(*) FILTER (WHERE {_differ(vendor, old, new, column)}), 0)"
            for column in AUDITED_COLUMNS
        )
        pieces["counts"] = f"jsonb_strip_nulls(jsonb_build_object({counts}))::text"
    return pieces


def _differ(vendor: str, old: str, new: str, column: str) -> str:
    if vendor == "postgresql":
        return f"{old}.{column} IS DISTINCT FROM {new}.{column}"
    if vendor == "mysql":
        return f"NOT (BINARY {old}.{column} <=> BINARY {new}.{column})"
    return f"{old}.{column} IS NOT {new}.{column}"


def _changed(vendor: str, old: str | None, new: str | None, column: str) -> str:
    """SQL condition: the column has changed or, in a new or deleted monitor, is not empty."""
    if old is not None and new is not None:
        return _differ(vendor, old, new, column)
    row = old or new
    return f"{row}.{column} IS NOT NULL AND {_text(vendor, f'{row}.{column}')} NOT IN ('', '[]', '{{}}')"


def _text(vendor: str, column: str) -> str:
    return f"{column}::text" if vendor == "postgresql" else f"CAST({column} AS CHAR)"


def _value(row: str | None, column: str) -> str:
    if row is None:
        return "NULL"
    return f"substr({row}.{column}, 1, {TEXT_LENGTH})" if column in LONG_COLUMNS else f"{row}.{column}"


def _postgresql(old: str | None, new: str | None, full: bool) -> str:
    pairs = []
    for column in AUDITED_COLUMNS:
        before, after = _value(old, column), _value(new, column)
        pair = f"jsonb_build_array({before}, {after})" if full else "'1'::jsonb"
        pairs.append(f"'{column}', CASE WHEN {_changed('postgresql', old, new, column)} THEN {pair} END")
    return f"jsonb_strip_nulls(jsonb_build_object({', '.join(pairs)}))::text"


def _sqlite(old: str | None, new: str | None, full: bool) -> str:
    pairs = []
    for column in AUDITED_COLUMNS:
        pair = f"json_array({_value(old, column)}, {_value(new, column)})" if full else "1"
        text = f"'\"{column}\":' || {pair} || ','"
        pairs.append(f"CASE WHEN {_changed('sqlite', old, new, column)} THEN {text} ELSE '' END")
    return "'{' || rtrim(" + " || ".join(pairs) + ", ',') || '}'"


def _mysql(old: str | None, new: str | None, full: bool) -> str:
    pairs = []
    for column in AUDITED_COLUMNS:
        pair = f"JSON_ARRAY({_value(old, column)}, {_value(new, column)})" if full else "1"
        pairs.append(f"IF({_changed('mysql', old, new, column)}, CONCAT('\"{column}\":', {pair}), NULL)")
    return "CONCAT('{', CONCAT_WS(',', " + ", ".join(pairs) + "), '}')"


_WRITERS: dict[str, Callable[[str | None, str | None, bool], str]] = {
    "postgresql": _postgresql,
    "sqlite": _sqlite,
    "mysql": _mysql,
}
