"""Prunes the change log: rows older than the retention that no beat can still be waiting for.

Invariant: the greatest deleted transaction or id is stored in the transaction that deletes, so that a beat whose
cursor lies before it notices and reads the table again. Where the cursor is an id, the newest row always stays: it is
where beats stopped reading. Where it is a snapshot, only transactions are pruned that had all ended some seconds ago:
to a beat that polls, none of them is in progress any more. A floor from another history (a restored dump, a truncated
log) is replaced, and rows whose transaction ids the server has not reached yet go too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils import timezone

from django_wheelbeat.models import Audit, Beat

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

BATCH_ROWS = 10_000
SETTLE_S = 5.0
"""Every beat that is up to date has polled within this time."""

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
    """Delete old rows of the change log in batches and return how many; beats may read meanwhile.

    On PostgreSQL ``wait(SETTLE_S)`` is called first where anything is old enough.
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
    """Delete status rows of beats that are long gone; the latest stays, since it holds the mark of the next start."""
    beats = Beat.objects.using(connection.alias)
    latest = beats.order_by("-seen_at").values_list("pk", flat=True).first()
    return beats.filter(seen_at__lt=timezone.now() - older_than).exclude(pk=latest).delete()[0]


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
