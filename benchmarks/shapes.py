"""Cost of many distinct message shapes: ``python benchmarks/shapes.py [--full]``.

Compares monitors of which each has its own value of an option to the same number of one shape, in separate processes,
one after the other. All of these values are a job's own; new queues beyond a thousand at a time take the celery lane
until they are declared. The interval is a minute, so a sixtieth is due per
second. Each second is offered, and awaited until a private Redis has confirmed all of it; the longest second shows
whether every run is on time. The first minute renders everything for the first time, the second is the normal case, and
before the third the connection is cut.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import redis
from kombu import Exchange, Queue
from report import Report, at_most, in_process, resident_bytes
from services import PrivateRedis
from support.engine.definitions import Job
from support.lanes.bench import MINUTE_MS, FastBench
from support.lanes.fast_lane import make_app

from celery_wheelbeat.beat.loading import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SIZES = (1_000, 10_000)
FULL_SIZES = (*SIZES, 100_000)
SECOND_S = 1.0
ONE_SHAPE = "one shape"
OPTIONS: Mapping[str, Callable[[int], Mapping[str, Any]]] = {
    ONE_SHAPE: lambda _number: {},
    "headers": lambda number: {"headers": {"customer": number}},
    "option sets": lambda number: {
        "shadow": f"check of {number}",
        "link": {"task": "lanes.check", "args": [number], "kwargs": {}, "options": {}, "subtask_type": None},
    },
    "routing keys": lambda number: {"queue": "topics", "routing_key": f"customer.{number}"},
    "expiries": lambda number: {"expires": 1_000 + number},
    "priorities": lambda number: {"priority": number % 256, "headers": {"customer": number}},
    "time limits": lambda number: {"time_limit": 60 + number, "soft_time_limit": 50.5 + number},
    "header names": lambda number: {"headers": {f"x-customer-{number}": "y"}},
    "queues": lambda number: {"queue": f"tenant-{number}"},
}
"""What is distinct → options of monitor n."""
SLOW = ("queues",)
"""What may take the celery lane in the first minute."""
TOPICS = Queue("topics", Exchange("topics", "topic"), "customer.#")


def minute(bench: FastBench) -> dict[str, float]:
    """Run a minute, second by second; return CPU time per run and the longest second."""
    began_s, runs, longest_s = time.process_time(), 0, 0.0
    for _ in range(60):
        second_s = time.perf_counter()
        runs += bench.pass_second()
        bench.drain()
        longest_s = max(longest_s, time.perf_counter() - second_s)
    return {"cpu_us": (time.process_time() - began_s) / runs * 1e6, "longest_s": longest_s}


def measure(jobs: int, distinct: str) -> dict[str, Any]:
    """Send three minutes of ``jobs`` monitors, each with the options of ``distinct``."""
    with PrivateRedis() as server, redis.Redis.from_url(server.url) as client:
        app = make_app(server.url, task_queues=[Queue("celery"), TOPICS])
        with FastBench(app) as bench:
            settle()
            before = resident_bytes()
            bench.load(
                Job(
                    number,
                    interval_ms=MINUTE_MS,
                    route_index=bench.route(options=json.dumps(OPTIONS[distinct](number), sort_keys=True)),
                    payload=b'[[%d], {"url": "u"}]' % number,
                )
                for number in range(jobs)
            )
            found: dict[str, Any] = {"first": minute(bench), "following": minute(bench)}
            client.delete("celery", "topics")
            client.client_kill_filter(skipme=True)
            found["after a reconnect"] = minute(bench)
            settle()
            found["resident"] = (resident_bytes() - before) / jobs
            found["forms"] = len(bench.fast.forms.answers())
            found["slow"] = bench.slow_runs
    if found["slow"] and distinct not in SLOW:
        raise SystemExit(f"{found['slow']:,} runs took the celery lane")
    return found


def add(report: Report, jobs: int) -> None:
    """Measure one size, with and without distinct values."""
    one = in_process(__file__, "--measure", jobs, ONE_SHAPE)
    for distinct in OPTIONS:
        if distinct == ONE_SHAPE:
            continue
        many = in_process(__file__, "--measure", jobs, distinct)
        for when in ("first", "following", "after a reconnect"):
            what = f"{jobs:,} distinct {distinct}, {when}{'' if 'after' in when else ' minute'}"
            report.add(f"{what}: CPU for each run", many[when]["cpu_us"], "µs", floor=one[when]["cpu_us"])
            target = at_most(SECOND_S)
            report.add(
                f"{what}: longest second", many[when]["longest_s"], "s", floor=one[when]["longest_s"], target=target
            )
        note = f"kinds of messages: {many['forms']:,}; runs of the celery lane: {many['slow']:,} of {3 * jobs:,}"
        report.add(
            f"{jobs:,} distinct {distinct}: resident for each", many["resident"], "B", floor=one["resident"], note=note
        )


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--measure", nargs=2, metavar=("JOBS", "DISTINCT"))
    given = parser.parse_args()
    if given.measure:
        jobs, distinct = given.measure
        print(json.dumps(measure(int(jobs), distinct)))
        return
    report = Report("shapes", full=given.full, interval_ms=MINUTE_MS)
    for jobs in FULL_SIZES if given.full else SIZES:
        add(report, jobs)
    report.write()


if __name__ == "__main__":
    sys.exit(main())
