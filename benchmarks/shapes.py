"""Cost of many distinct message shapes in the fast lane: ``python benchmarks/shapes.py [--full]``.

Compares monitors with a distinct header each to the same number without, in separate processes, one after the other.
The interval is a minute, so a sixtieth is due per second. Each second is offered, and awaited until a private Redis has
confirmed all of it; the longest second shows whether every run is on time. The first minute renders everything for the
first time, the second is the normal case, and before the third the connection is cut.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import redis
from report import Report, at_most, in_process, resident_bytes
from services import PrivateRedis
from support.engine.definitions import Job
from support.lanes.bench import MINUTE_MS, FastBench
from support.lanes.fast_lane import make_app

from celery_wheelbeat.beat.loading import settle

SIZES = (1_000, 10_000)
FULL_SIZES = (*SIZES, 100_000)
SECOND_S = 1.0


def minute(bench: FastBench) -> dict[str, float]:
    """Run a minute, second by second; return CPU time per run and the longest second."""
    began_s, runs, longest_s = time.process_time(), 0, 0.0
    for _ in range(60):
        second_s = time.perf_counter()
        runs += bench.pass_second()
        bench.drain()
        longest_s = max(longest_s, time.perf_counter() - second_s)
    return {"cpu_us": (time.process_time() - began_s) / runs * 1e6, "longest_s": longest_s}


def measure(jobs: int, *, distinct: bool) -> dict[str, Any]:
    """Send three minutes of ``jobs`` monitors, each with its own header if ``distinct``."""
    with PrivateRedis() as server, redis.Redis.from_url(server.url) as client, FastBench(make_app(server.url)) as bench:
        settle()
        before = resident_bytes()
        bench.load(
            Job(
                number,
                interval_ms=MINUTE_MS,
                route_index=bench.route(options=json.dumps({"headers": {"customer": number}}) if distinct else "{}"),
                payload=b'[[%d], {"url": "u"}]' % number,
            )
            for number in range(jobs)
        )
        found: dict[str, Any] = {"first": minute(bench), "following": minute(bench)}
        client.flushall()
        client.client_kill_filter(skipme=True)
        found["after a reconnect"] = minute(bench)
        settle()
        found["resident"] = (resident_bytes() - before) / jobs
        found["forms"] = len(bench.fast.forms.answers())
        if bench.slow_runs:
            raise SystemExit(f"{bench.slow_runs:,} runs took the celery lane")
    return found


def add(report: Report, jobs: int) -> None:
    """Measure one size, with and without distinct headers."""
    one = in_process(__file__, "--measure", jobs, 0)
    many = in_process(__file__, "--measure", jobs, 1)
    for when in ("first", "following", "after a reconnect"):
        what = f"{jobs:,} distinct headers, {when}{'' if 'after' in when else ' minute'}"
        report.add(f"{what}: CPU for each run", many[when]["cpu_us"], "µs", floor=one[when]["cpu_us"])
        target = at_most(SECOND_S)
        report.add(f"{what}: longest second", many[when]["longest_s"], "s", floor=one[when]["longest_s"], target=target)
    note = f"{many['forms']} form, as with one shape; floor: monitors of one shape in the same run"
    report.add(f"{jobs:,} distinct headers: resident for each", many["resident"], "B", floor=one["resident"], note=note)


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--measure", type=int, nargs=2, metavar=("JOBS", "DISTINCT"))
    given = parser.parse_args()
    if given.measure:
        jobs, distinct = given.measure
        print(json.dumps(measure(jobs, distinct=bool(distinct))))
        return
    report = Report("shapes", full=given.full, interval_ms=MINUTE_MS)
    for jobs in FULL_SIZES if given.full else SIZES:
        add(report, jobs)
    report.write()


if __name__ == "__main__":
    sys.exit(main())
