"""The monitor table of ``peers``, which grows and shrinks between two beats.

Plain SQL, without triggers and without the indexes that only the admin uses.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg

from celery_wheelbeat.beat.loading import available_bytes

PIECE = 250_000
WRITERS = 2
JOB_BYTES = 250
"""Memory per task in the beat while it loads."""
BESIDE_BYTES = 8 << 30
"""Memory for cached parts of messages, Redis, PostgreSQL and its page cache."""
MOST = 12_000_000
"""Upper limit; writing more tasks takes longer than the rest of the benchmark."""
INSERT = (
    "INSERT INTO wheelbeat_monitor (id, name, task, interval_ms, args) OVERRIDING SYSTEM VALUE"
    " SELECT n, 't' || n, 'bench.check', %s, '[' || n || ']' FROM generate_series(%s::bigint, %s::bigint) n"
)
INDEXES = (
    "SELECT indexname FROM pg_indexes WHERE tablename = 'wheelbeat_monitor'"
    " AND indexname NOT IN (SELECT conname FROM pg_constraint WHERE contype IN ('p', 'u'))"
)
TRIGGERS = (
    "SELECT tgname FROM pg_trigger WHERE tgrelid = 'wheelbeat_monitor'::regclass AND NOT tgisinternal ORDER BY tgname"
)


def most_tasks() -> int:
    """Return the number of tasks that fit into this machine's memory."""
    return min(MOST, max(1_000, ((available_bytes() or MOST * JOB_BYTES) - BESIDE_BYTES) // JOB_BYTES))


def resize(url: str, tasks: int, interval_s: int) -> None:
    """Resize the table to ``tasks`` monitors with ids from 1 on."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE wheelbeat_monitor DISABLE TRIGGER USER")
        for (name,) in connection.execute(INDEXES).fetchall():
            connection.execute(f'DROP INDEX "{name}"')
        connection.execute("DELETE FROM wheelbeat_monitor WHERE id > %s", (tasks,))
        ((have,),) = connection.execute("SELECT coalesce(max(id), 0) FROM wheelbeat_monitor").fetchall()
        firsts = range(have + 1, tasks + 1, PIECE)
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(lambda first: _insert(url, first, min(tasks, first + PIECE - 1), interval_s), firsts))
        names = (name for (name,) in connection.execute(TRIGGERS).fetchall())
        enable = ", ".join(f'ENABLE ALWAYS TRIGGER "{name}"' for name in names)
        connection.execute(f"ALTER TABLE wheelbeat_monitor {enable}")
        connection.execute("VACUUM (FREEZE, ANALYZE) wheelbeat_monitor")


def _insert(url: str, first: int, last: int, interval_s: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(INSERT, (interval_s * 1000, first, last))
