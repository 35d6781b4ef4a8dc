"""From a table of monitors to a wheel that fires: ``python benchmarks/coldstart.py [--full] [--url postgresql://…]``.

The beat's own path (change-log cursor, readers, compilation, engine) in a process of its own, beside what the server
needs to read the same rows for nobody: ``COPY … TO '/dev/null'``. ``--full`` writes 25 million rows first (15 minutes).
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
from report import Report, in_process, resident_bytes

from celery_wheelbeat.columns import Shapes
from celery_wheelbeat.cron import CronTable
from celery_wheelbeat.engine import Engine, EngineConfig
from celery_wheelbeat.jobs import RouteTable
from celery_wheelbeat.ledger import Ledger
from celery_wheelbeat.monitors import compile_rows
from celery_wheelbeat.observe.memory import settle
from celery_wheelbeat.sources.databases import from_url
from celery_wheelbeat.sources.definitions import Definitions
from celery_wheelbeat.sources.follower import Follower
from celery_wheelbeat.sources.news import Loaded, Sized

NEEDED = "packed, name, args, kwargs"


class LoadingBeat:
    """The parts of a beat between its database and its wheel."""

    def __init__(self, url: str) -> None:
        crons, self.routes = CronTable(), RouteTable()
        compile_all = partial(compile_rows, crons=crons, routes=self.routes)
        database = from_url(url)
        self.definitions = Definitions(compile_all, Shapes(compile_all))
        self.follower = Follower(
            database.source, self.definitions, reconcile_period_s=3_600, open_reader=database.open_reader
        )
        self.engine = Engine(EngineConfig(), crons, Ledger())
        self.engine.start(round(time.time() * 1000))

    def step(self) -> None:
        """Do one step of the I/O thread and what the scheduling thread makes of it."""
        for news in self.follower.step(time.monotonic())[0]:
            if isinstance(news, Sized):
                self.engine.expect(news.jobs)
            elif isinstance(news, Loaded):
                self.engine.load(news.batch, {}, self.routes)
            else:
                self.engine.apply(news.changes)  # type: ignore[union-attr]


def load(url: str) -> dict[str, Any]:
    """Load the whole table; returns times and memory."""
    before = resident_bytes()
    beat = LoadingBeat(url)
    begun, cpu = time.perf_counter(), time.process_time()
    while not beat.follower.loaded:
        beat.step()
    loaded_s = time.perf_counter() - begun
    beat.engine.advance(beat.engine.cursor_ms + 1_000)
    found = {
        "jobs": len(beat.engine),
        "load_s": loaded_s,
        "wall_s": time.perf_counter() - begun,
        "cpu_s": time.process_time() - cpu,
        "peak": resident_bytes(field="VmHWM") - before,
    }
    settle()
    found["resident"] = resident_bytes() - before
    return found


def floors(url: str) -> dict[str, float]:
    """Return what the server needs to read the table for nobody, in seconds."""
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
    report.add(f"{what}: server alone, COPY of the table", floor["table"], "s")
    report.add(f"{what}: server alone, COPY of what a beat needs", floor["columns"], "s")
    report.add(f"{what}: cold start, first tick included", found["wall_s"], "s", floor=floor["table"])
    report.add(f"{what}: of it CPU of the beat", found["cpu_s"], "s")
    report.add(f"{what}: rate", jobs / found["wall_s"], "jobs/s")
    report.add(
        f"{what}: resident for each job",
        found["resident"] / jobs,
        "B",
        note=f"payload {floor['payload']:.0f} B, name {floor['name']:.0f} B of it",
    )
    beside = found["resident"] / jobs - floor["payload"]
    report.add(
        f"{what}: of it beside the payload", beside, "B", note="table, wheel, fingerprints and the process itself"
    )
    report.add(f"{what}: peak while loading", found["peak"] / 1e9, "GB")
    report.add(f"{what}: on disk for each, without indexes", floor["heap"] / jobs, "B")
    report.add(f"{what}: on disk for each, indexes", floor["indexes"] / jobs, "B")


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
            name = {"sqlite": "SQLite", "mysql": "MariaDB"}[vendor]
            report.add(f"{name}, {small:,} monitors: cold start", found["wall_s"], "s")
            report.add(f"{name}, {small:,} monitors: rate", found["jobs"] / found["wall_s"], "jobs/s")
    report.write()


if __name__ == "__main__":
    sys.exit(main())
