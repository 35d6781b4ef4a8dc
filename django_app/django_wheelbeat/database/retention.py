"""Prunes the change log (rows older than the retention that no beat still needs), the audit and status rows.

Invariant: the greatest deleted transaction or id is stored in the deleting transaction, so a beat whose cursor is
before it notices and reads the table again.

If the cursor is an id (MariaDB, SQLite), the newest row is always kept: beats stopped reading there. If it is a
snapshot (PostgreSQL), only transactions that ended SETTLE_S ago are pruned, so no polling beat still sees one of them
in progress. A floor from another history (restored dump, truncated log) is replaced, and rows with transaction ids that
the server has not reached yet are deleted, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils import timezone

from celery_wheelbeat.beat.marks import NeededRows
from django_wheelbeat.models import Audit, Beat

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

BATCH_ROWS = 10_000
SETTLE_S = 5.0
"""Every beat that keeps up polls at least once within this time."""

_POSTGRESQL_ENDED = """
    SELECT pg_snapshot_xmin(pg_current_snapshot())::text
    FROM (SELECT at FROM wheelbeat_changelog ORDER BY id LIMIT 1) AS oldest
    WHERE at < statement_timestamp() - %s * interval '1 second'
"""
_POSTGRESQL = """
    WITH gone AS (
        DELETE FROM wheelbeat_changelog WHERE id IN (
            SELECT id FROM wheelbeat_changelog
            WHERE at < statement_timestamp() - %(older_than_s)s * interval '1 second'
              AND (xid < %(ended)s::xid8 OR xid >= pg_snapshot_xmax(pg_current_snapshot()))
            ORDER BY id LIMIT %(rows)s
        ) RETURNING xid
    ), noted AS (
        UPDATE wheelbeat_installation SET pruned_xid = greatest(
            (SELECT max(xid::text::bigint) FROM gone WHERE xid < %(ended)s::xid8),
            CASE WHEN pruned_xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint THEN pruned_xid ELSE 0 END
        ) WHERE EXISTS (SELECT FROM gone)
    )
    SELECT count(*) FROM gone
"""
_OLD = {
    "mysql": "at < UTC_TIMESTAMP(6) - INTERVAL %s SECOND",
    "sqlite": "at < strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', '-' || %s || ' seconds')",
}


def prune_changelog(connection: Any, older_than: timedelta, wait: Callable[[float], object] = time.sleep) -> int:
    """Delete old rows of the change log in batches and return how many; safe while beats read.

    On PostgreSQL calls ``wait(SETTLE_S)`` first if any row is old enough.
    """
    ended = "0"
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(_POSTGRESQL_ENDED, [older_than.total_seconds()])
            found = cursor.fetchone()
        if found is None:
            return 0
        ended = found[0]
        wait(SETTLE_S)
    deleted = 0
    while batch := _prune_batch(connection, older_than.total_seconds(), ended):
        deleted += batch
    return deleted


def prune_audit(connection: Any, older_than: timedelta) -> int:
    """Delete old rows of the audit in batches and return how many."""
    audit, before, deleted = Audit.objects.using(connection.alias), timezone.now() - older_than, 0
    while ids := list(audit.filter(at__lt=before).order_by("at").values_list("pk", flat=True)[:BATCH_ROWS]):
        deleted += audit.filter(pk__in=ids).delete()[0]
    return deleted


def prune_beats(connection: Any, older_than: timedelta) -> int:
    """Delete old status rows of beats; those that the next start of any namespace needs for a mark are kept."""
    beats = Beat.objects.using(connection.alias)
    before, needed = timezone.now() - older_than, NeededRows()
    rows = beats.order_by("-seen_at").values_list("pk", "namespace", "seen_at", "marks")
    needs = [(pk, seen_at, needed.takes(namespace, marks)) for pk, namespace, seen_at, marks in rows]
    ids = [pk for pk, seen_at, is_needed in needs if seen_at < before and not is_needed]
    return beats.filter(pk__in=ids).delete()[0]


def _prune_batch(connection: Any, older_than_s: float, ended: str) -> int:
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(_POSTGRESQL, {"older_than_s": older_than_s, "rows": BATCH_ROWS, "ended": ended})
            return int(cursor.fetchone()[0])
        cursor.execute(
            f"SELECT id FROM wheelbeat_changelog WHERE {_OLD[connection.vendor]} "  # noqa: S608 - constants above
            "AND id < (SELECT max(id) FROM wheelbeat_changelog) ORDER BY id LIMIT %s",
            [older_than_s, BATCH_ROWS],
        )
        ids = [row[0] for row in cursor.fetchall()]
        if ids:
            marks = ", ".join(["%s"] * len(ids))
            cursor.execute(f"DELETE FROM wheelbeat_changelog WHERE id IN ({marks})", ids)  # noqa: S608 - placeholders
            cursor.execute("UPDATE wheelbeat_installation SET pruned_id = %s", [ids[-1]])
        return len(ids)
