"""Test data of ``admin``: monitors with frequent, rare and unfavourably placed values, and full logs.

Uses ``INSERT … SELECT``: a million rows of each take about a minute.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor_table import filled_by_sql

if TYPE_CHECKING:
    import psycopg

SEARCH_PAGE = Path(__file__).parents[1] / "docs" / "howto" / "search-among-millions.md"

# Names and tags are in customer order, so all matches of a search may be at the end of the list.
MONITORS = """
    INSERT INTO wheelbeat_monitor (name, task, kwargs, interval_ms, cron, once_at, solar_event, solar_latitude,
        solar_longitude, queue, tags, enabled)
    SELECT 'customer ' || lpad((n / 250)::text, 5, '0') || ' / ' || left(md5(n::text), 8),
        CASE WHEN n % 50000 = 7 THEN 'bench.rare' ELSE 'bench.check_' || n % 7 END,
        '{"url": "https://customer-' || n / 250 || '.example.com/' || left(md5(n::text), 20) || '", "timeout_s": 10}',
        CASE WHEN n % 50 = 1 OR n % 20000 IN (2, 3) THEN NULL WHEN n % 100000 = 4 THEN 30000 ELSE 86400000 END,
        CASE WHEN n % 50 = 1 THEN (n % 60) || ' 3 * * *' ELSE '' END,
        CASE WHEN n % 20000 = 2 THEN timestamptz '2040-01-01' + n * interval '1 second' END,
        CASE WHEN n % 20000 = 3 THEN 'sunrise' ELSE '' END,
        CASE WHEN n % 20000 = 3 THEN 50 END, CASE WHEN n % 20000 = 3 THEN 10 END,
        CASE WHEN n % 5 = 0 THEN 'bulk' WHEN n % 5 = 1 THEN 'other' WHEN n % 100000 = 9 THEN 'rare' ELSE '' END,
        concat_ws(',', CASE WHEN n % 2 = 0 THEN 'eu' END, CASE WHEN n % 100000 = 11 THEN 'rare' END,
            CASE WHEN n > %(monitors)s * 0.97 THEN 'zz-last' END),
        n % 20000 <> 6
    FROM generate_series(1, %(monitors)s) n
"""
BESIDE = """
    INSERT INTO wheelbeat_monitor (name, task, interval_ms)
    SELECT 'fast ' || n, 'proj.note', 1000 FROM generate_series(1, {fast}) n;
    UPDATE wheelbeat_monitor SET incident_interval_ms = 60000, incident_until = now() + interval '1 hour'
    WHERE id % 50000 = 10 AND interval_ms > 60000;
    INSERT INTO wheelbeat_quarantine (job_key, definition_hash, reason)
    SELECT 'monitor:' || n * 1000, 'x', 'no such task' FROM generate_series(1, 500) n;
    INSERT INTO wheelbeat_changelog (monitor_id, operation, at, actor)
    SELECT n, 'U', now() - interval '1 day', 'ann' FROM generate_series(1, {monitors}) n;
    INSERT INTO wheelbeat_audit (monitor_id, operation, at, changes, actor)
    SELECT n, 'U', now() - n * interval '1 second', '{{"queue": ["a", "b"]}}', 'user ' || n % 9
    FROM generate_series(1, {monitors}) n;
    ANALYZE;
"""
HISTORY = """
    INSERT INTO django_admin_log
        (action_time, user_id, content_type_id, object_id, object_repr, action_flag, change_message)
    SELECT now() - interval '1 day', %(user)s, t.id, n::text, 'customer', 2, 'Paused.'
    FROM generate_series(1, %(monitors)s) n, django_content_type t
    WHERE t.app_label = 'wheelbeat' AND t.model = 'monitor'
"""


def fill(connection: psycopg.Connection[Any], monitors: int, *, fast: int, search_index: bool) -> None:
    """Write ``monitors`` rows and ``fast`` more that fire every second; optionally with the index of the how-to."""
    with filled_by_sql(connection):
        connection.execute(MONITORS.replace("%(monitors)s", str(monitors)))
    connection.execute(BESIDE.format(fast=fast, monitors=monitors))
    if search_index:
        _execute_page(connection, 0)
        connection.execute("ANALYZE wheelbeat_monitor")


def fill_history(connection: psycopg.Connection[Any], lines: int, user_id: int, *, indexes: bool) -> None:
    """Write ``lines`` rows of one user to Django's history; optionally with the indexes of the how-to."""
    connection.execute(HISTORY, {"monitors": lines, "user": user_id})
    if indexes:
        _execute_page(connection, 1)
    connection.execute("ANALYZE django_admin_log")


def _execute_page(connection: psycopg.Connection[Any], block: int) -> None:
    """Execute a SQL block of the how-to."""
    for statement in SEARCH_PAGE.read_text().split("```sql\n")[1 + block].partition("```")[0].split(";"):
        if statement.strip():
            connection.execute(statement)
