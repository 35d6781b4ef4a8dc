"""From a table of monitors to a wheel that fires: ``python benchmarks/coldstart.py [--full] [--url postgresql://…]``.

Runs the beat's own path (change-log cursor, readers, compilation, engine) in a separate process. The floor is the time
that the server needs to read the same rows without a client: ``COPY … TO '/dev/null'``. ``--full`` first writes 25
million rows (15 minutes).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from monitor_table import postgres_table, small_table
from report import Report, at_most, in_process, resident_bytes

from celery_wheelbeat.beat.loading import prepare, settle
from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.compile_columns import Shapes
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.sources.changelog.follower import Follower
from celery_wheelbeat.sources.changelog.translator import Translator
from celery_wheelbeat.sources.databases.open import from_url
from celery_wheelbeat.sources.messages import Loaded, Sized

MANY = 25_000_000
"""Number of monitors from which the targets apply."""
NEEDED = "packed, name, args, kwargs"


class LoadingBeat:
    """The part of a beat between database and wheel."""

    def __init__(self, url: str) -> None:
        crons = CronTable()
        compile_all = partial(compile_rows, crons=crons)
        database = from_url(url)
        self.definitions = Translator(compile_all, Shapes(compile_all))
        self.follower = Follower(
            database.source, self.definitions, reconcile_period_s=3_600, open_reader=database.open_reader
        )
        self.engine = Engine(EngineConfig(), crons, Ledger())
        self.engine.start(round(time.time() * 1000))

    def step(self) -> None:
        """Run one step of the I/O thread, and apply its result as the scheduling thread does."""
        for news in self.follower.step(time.monotonic())[0]:
            if isinstance(news, Sized):
                self.engine.expect(news.jobs)
            elif isinstance(news, Loaded):
                self.engine.load(news.batch, {})
            else:
                self.engine.apply(news.changes)  # type: ignore[union-attr]


def load(url: str) -> dict[str, Any]:
    """Load the whole table; return times and memory."""
    prepare()
    before = resident_bytes()
    beat = LoadingBeat(url)
    begun, cpu = time.perf_counter(), time.process_time()
    while not beat.follower.loaded:
        beat.step()
    settle()
    loaded_s = time.perf_counter() - begun
    beat.engine.advance(beat.engine.cursor_ms + 1_000)
    found = {
        "jobs": len(beat.engine),
        "load_s": loaded_s,
        "wall_s": time.perf_counter() - begun,
        "cpu_s": time.process_time() - cpu,
        "peak": resident_bytes(field="VmHWM") - before,
    }
    found["resident"] = resident_bytes() - before
    return found


def floors(url: str) -> dict[str, float]:
    """Return the seconds that the server needs to read the table without a client."""
    found = {}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET max_parallel_workers_per_gather = 0")
        for name, what in (("table", "wheelbeat_monitor"), ("columns", f"(SELECT {NEEDED} FROM wheelbeat_monitor)")):
            begun = time.perf_counter()
            connection.execute(f"COPY {what} TO '/dev/null'")
            found[name] = time.perf_counter() - begun
        sizes = "SELECT pg_table_size('wheelbeat_monitor'), pg_indexes_size('wheelbeat_monitor')"
        heap, indexes = connection.execute(sizes).fetchall()[0]
        text = (
            "SELECT avg(octet_length(args) + octet_length(kwargs) + 4), avg(octet_length(name)) FROM wheelbeat_monitor"
        )
        payload, name = connection.execute(text).fetchall()[0]
    return {**found, "heap": heap, "indexes": indexes, "payload": float(payload), "name": float(name)}


def postgres(report: Report, url: str) -> None:
    """Measure PostgreSQL."""
    floor = floors(url)
    found = in_process(__file__, "--load", url)
    jobs = found["jobs"]
    what = f"PostgreSQL, {jobs:,} monitors"
    alone, wall_s = "one process of the server reads and writes out row by row", found["wall_s"]
    report.add(f"{what}: server alone, COPY of the table", floor["table"], "s", limit=alone)
    report.add(f"{what}: server alone, COPY of what a beat needs", floor["columns"], "s", limit=alone)
    share = found["cpu_s"] / wall_s * 100
    limit = (
        f"the beat had {share:.0f} % of a core; two processes of the server read for it on what is left of the cores"
    )
    start = f"{what}: cold start, first tick included"
    target = at_most(20) if jobs >= MANY else None
    report.add(start, wall_s, "s", floor=floor["table"], target=target, limit=limit)
    ratio = wall_s / floor["columns"]
    report.add(
        f"{what}: against COPY of what a beat needs",
        ratio,
        "×",
        target=at_most(2.2) if jobs >= MANY else None,
        limit=limit,
    )
    limit = "decoding, compiling and arming columns, and copying texts into pages"
    report.add(f"{what}: of it CPU of the beat", found["cpu_s"], "s", limit=limit)
    report.add(f"{what}: rate", jobs / wall_s, "jobs/s")
    texts = f"payload {floor['payload']:.0f} B, name {floor['name']:.0f} B of it"
    each, beside = found["resident"] / jobs, found["resident"] / jobs - floor["payload"]
    of_each, of_beside, peak = (at_most(160), at_most(100), at_most(4)) if jobs >= MANY else (None, None, None)
    limit = "arguments and names themselves"
    report.add(f"{what}: resident for each job", each, "B", target=of_each, note=texts, limit=limit)
    limit = "table, wheel, fingerprints and the process itself"
    report.add(f"{what}: of it beside the payload", beside, "B", target=of_beside, limit=limit)
    limit = "blocks that are read ahead, on top of what stays"
    report.add(f"{what}: peak while loading", found["peak"] / 1e9, "GB", target=peak, limit=limit)
    report.add(f"{what}: on disk for each, without indexes", floor["heap"] / jobs, "B")
    limit = "the primary key and the name are needed by all, the others by the filters of the admin"
    report.add(f"{what}: on disk for each, indexes", floor["indexes"] / jobs, "B", limit=limit)


def main() -> None:
    """Measure every database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--monitors", type=int, help="rows in PostgreSQL; 500,000, with --full 25 million")
    parser.add_argument("--url", help="a filled PostgreSQL database that is there already")
    parser.add_argument("--load", metavar="URL")
    given = parser.parse_args()
    if given.load:
        print(json.dumps(load(given.load)))
        return
    monitors = given.monitors or (25_000_000 if given.full else 500_000)
    report = Report("coldstart", full=given.full)
    with ExitStack() as stack:
        postgres(report, given.url or stack.enter_context(postgres_table(monitors)))
    small = 500_000 if given.full else 50_000
    for vendor in ("sqlite", "mysql"):
        with tempfile.TemporaryDirectory() as folder, small_table(vendor, small, Path(folder)) as url:
            found = in_process(__file__, "--load", url)
            name, who = {"sqlite": ("SQLite", "a library in the beat"), "mysql": ("MariaDB", "the server")}[vendor]
            share = found["cpu_s"] / found["wall_s"] * 100
            limit = f"{who} walks, checks and joins rows; the beat had {share:.0f} % of a core"
            report.add(f"{name}, {small:,} monitors: cold start", found["wall_s"], "s", limit=limit)
            report.add(f"{name}, {small:,} monitors: of it CPU of the beat", found["cpu_s"], "s")
            report.add(f"{name}, {small:,} monitors: rate", found["jobs"] / found["wall_s"], "jobs/s")
    report.write()


if __name__ == "__main__":
    sys.exit(main())
