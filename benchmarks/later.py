"""One-off runs on PostgreSQL and into Redis: ``python benchmarks/later.py [--full]``.

Measures inserts by the calls of an application; the read of one second among a million resident rows (``--full``: ten
million) while a transaction is open, against the range query "what is due next" on a table with the same rows, an index
on the due time and rows that were marked as sent since the transaction began, in turns; bytes a row; and overdue runs
from the table through reader, wheel and fast lane into Redis, confirmed. Private servers are started and stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import psycopg
from report import Report, at_least, at_most, quantile
from services import PrivatePostgres, PrivateRedis
from support.lanes.fast_lane import make_app
from support.lanes.later import LaterBench

from celery_wheelbeat import later
from celery_wheelbeat.beat.loading import prepare
from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.open_seconds import Resume
from celery_wheelbeat.later.readers.postgres import PostgresReader
from celery_wheelbeat.later.ring import due_id
from celery_wheelbeat.later.run import LaterRun
from celery_wheelbeat.later.tables import create_tables
from celery_wheelbeat.later.writers import writer_of

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB", "autovacuum": "off"}
ROWS_A_SECOND = 130
AHEAD_S = 3_600
"""The resident rows begin this far ahead."""
DEAD = 600_000
"""Rows of the range table that are marked as sent while the transaction is open: ten minutes of 1,000/s."""
SINGLE_CALLS = 500
READS = 60
PIECE = 1_000_000

FILL = """
INSERT INTO wheelbeat_later (part, second, id, at_ms, task, args, kwargs)
SELECT mod(second / 86400, 32), second, gen_random_uuid(), second * 1000 + n %% 1000, 'lanes.check', '[' || n || ']',
       '{"url": "https://example.org/health/' || n || '"}'
FROM (SELECT n, %(first_s)s + n / 130 AS second FROM generate_series(%(from)s::bigint, %(until)s::bigint - 1) AS n) AS s
"""
RANGE_TABLE = """
CREATE TABLE due_rows AS SELECT id, at_ms, task, args, kwargs, options, NULL::bigint AS sent_ms FROM wheelbeat_later;
CREATE INDEX due_rows_next ON due_rows (at_ms) WHERE sent_ms IS NULL;
ANALYZE due_rows; ANALYZE wheelbeat_later
"""
MARK_SENT = """
UPDATE due_rows SET sent_ms = at_ms
WHERE ctid = ANY(ARRAY(SELECT ctid FROM due_rows WHERE sent_ms IS NULL ORDER BY at_ms LIMIT %s))
"""
NEXT_DUE = "SELECT id, at_ms, task, args, kwargs, options FROM due_rows WHERE sent_ms IS NULL ORDER BY at_ms LIMIT 130"
BYTES = """
SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'wheelbeat_later'::regclass
"""
UPDATES = "SELECT coalesce(sum(n_tup_upd), 0) FROM pg_stat_user_tables WHERE relname LIKE 'wheelbeat_later%'"


def timed_s(work: Callable[[], Any]) -> float:
    """Return how long ``work`` takes."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def inserts(report: Report, url: str, rows: int) -> None:
    """Measure inserts through one connection; they are removed again."""
    app = make_app("memory://")
    task = app.tasks["lanes.check"]
    at = datetime.now(UTC) + timedelta(days=20)
    with closing(psycopg.connect(url)) as connection:
        given = [([n], {"url": f"https://example.org/{n}"}, at + timedelta(seconds=n // 130)) for n in range(rows)]

        def call() -> None:
            later.apply_many(task, given, connection=connection)
            connection.commit()

        def copy() -> None:
            writer_of(caller_of(connection)).insert(runs)
            connection.commit()

        def single() -> None:
            for n in range(SINGLE_CALLS):
                later.apply_at(task.s(n, url="u"), at, connection=connection)
                connection.commit()

        at_ms = round(at.timestamp() * 1000)
        runs = [
            LaterRun(str(due_id(at_ms + n)), at_ms + n, None, "lanes.check", f"[{n}]", '{"url": "u"}', "{}")
            for n in range(rows)
        ]
        copied_s = median(timed_s(copy) for _ in range(3))
        called_s = median(timed_s(call) for _ in range(3))
        report.add("insert by COPY, checked before", rows / copied_s, "rows/s", target=at_least(80_000))
        report.add("insert by apply_many", rows / called_s, "rows/s", floor=rows / copied_s, limit="signatures, checks")
        report.add("insert by apply_at, a commit each", SINGLE_CALLS / timed_s(single), "rows/s", note="fsync off")
        connection.execute("TRUNCATE wheelbeat_later")
        connection.commit()


def fill(connection: Any, rows: int) -> int:
    """Write the resident rows; returns their first second."""
    first_s = int(time.time()) + AHEAD_S
    for start in range(0, rows, PIECE):
        connection.execute(FILL, {"first_s": first_s, "from": start, "until": min(rows, start + PIECE)})
    connection.commit()
    return first_s


def reads(report: Report, url: str, rows: int) -> None:
    """Measure the read of one second and the range query in turns, while a transaction is open."""
    with closing(psycopg.connect(url)) as connection, closing(psycopg.connect(url)) as writer:
        first_s = fill(connection, rows)
        size = connection.execute(BYTES).fetchone()[0]
        report.add("bytes a row, indexes included", size / rows, "B", target=at_most(180))
        connection.execute(RANGE_TABLE)
        connection.commit()
        clean_s = median(timed_s(lambda: connection.execute(NEXT_DUE).fetchall()) for _ in range(9))
        writer.execute("SELECT pg_current_xact_id()")  # stays open
        connection.execute(MARK_SENT, [DEAD])
        connection.commit()
        connection.autocommit = True
        reader = PostgresReader(lambda: psycopg.connect(url, autocommit=True), Resume(first_s - 1, first_s - 1, None))
        with closing(reader):
            now_s = reader.poll(0).now_s  # first_s + 599 is open then, as after an outage
            buckets, polls, ranges = [], [], []
            statement = reader._connection.statements["read"]
            table = reader._union([first_s])
            whole = statement.replace("{table}", table).replace("{rest}", "") + " LIMIT 256"
            for n in range(READS):
                second = first_s + n
                if second // 86_400 != first_s // 86_400:
                    break
                given = {"seconds": [second], "most_bytes": 1 << 20}
                buckets.append(timed_s(lambda given=given: connection.execute(whole, given).fetchall()))
                polls.append(timed_s(lambda n=n: reader.poll(first_s - now_s + 600 + n)))
                ranges.append(timed_s(lambda: connection.execute(NEXT_DUE).fetchall()))
        writer.rollback()
        connection.execute("SELECT pg_stat_force_next_flush()")
        updates = connection.execute(UPDATES).fetchone()[0]
    about = f"{rows:,} rows resident, a transaction open"
    bucket_ms = median(buckets) * 1e3
    note = f"at most {quantile(sorted(buckets), 0.99) * 1e3:.2f} ms"
    report.add(f"one second of 130 rows, {about}", bucket_ms, "ms", target=at_most(2), note=note)
    note = "late rows of every open second, one new second, three parts"
    report.add(f"whole poll, {about}", median(polls) * 1e3, "ms", note=note)
    report.add("range query on the same rows, nothing dead", clean_s * 1e3, "ms")
    report.add(f"range query, {DEAD:,} sent since the transaction began", median(ranges) * 1e3, "ms")
    ratio = median(r / b for r, b in zip(ranges, buckets, strict=True))
    report.add("range query against one second, by rounds", ratio, "×", target=at_least(100))
    report.add("rows updated", updates, "rows", target=at_most(0))


def into_redis(report: Report, url: str, runs: int) -> None:
    """Measure overdue runs from the table into Redis, confirmed."""
    with closing(psycopg.connect(url)) as connection:
        connection.execute("TRUNCATE wheelbeat_later")
        at_ms = round(time.time() * 1000) - 1_000
        rows = [
            LaterRun(str(due_id(at_ms)), at_ms, None, "lanes.check", f"[{n}]", '{"url": "https://example.org"}', "{}")
            for n in range(runs)
        ]
        writer_of(caller_of(connection)).insert(rows)
        connection.commit()
    time.sleep(2)  # the second passes in which they lie
    with PrivateRedis() as server, LaterBench(make_app(server.url), url, backlog_max=4 * runs) as bench:
        cpu_s, began_s = time.process_time(), time.perf_counter()
        bench.settle(lambda: bench.ledger.sent >= runs, "the sending of everything", 600)
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        difference = bench.ledger.difference(bench.lanes.pending)
        report.add(
            "overdue runs into Redis, confirmed, one process",
            runs / took_s,
            "/s",
            target=at_least(60_000),
            note="one process",
        )
        report.add("the same, by CPU of the process", cpu_s / runs * 1e6, "µs each", limit="read, check, wheel, render")
        report.add("difference of the account", difference, "runs", target=at_most(0))


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="ten million rows resident, 300,000 overdue runs")
    given = parser.parse_args()
    prepare()  # as a beat does
    rows, runs = (10_000_000, 300_000) if given.full else (1_000_000, 60_000)
    report = Report("later", full=given.full, rows=rows, runs=runs, **SETTINGS)
    with PrivatePostgres(**SETTINGS) as server:
        with closing(psycopg.connect(server.url)) as connection:
            create_tables(connection)
            connection.commit()
        inserts(report, server.url, 20_000)
        into_redis(report, server.url, runs)
        with closing(psycopg.connect(server.url, autocommit=True)) as connection:
            connection.execute("TRUNCATE wheelbeat_later")
        reads(report, server.url, rows)
    report.write()


if __name__ == "__main__":
    main()
