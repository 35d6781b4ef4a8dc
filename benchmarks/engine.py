"""The wheel alone: what a tick, an hour's edge, a sweep cost, from a thousand to 25 million jobs.

``python benchmarks/engine.py [--full]``. CPU time, no I/O; envelopes are measured by ``dispatch.py``.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from report import Report, in_process
from synthetic import MINUTE_MS, MIXED_MS, engine_with

from celery_wheelbeat.observe.memory import settle

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR_MS = 3_600_000
DAY_MS = 86_400_000
MIXES = {"minute": (MINUTE_MS,), "mixed": MIXED_MS, "idle": (365 * DAY_MS,)}
"""Intervals: all fire each minute; a mixture from a minute to a day; nothing fires while we look."""


def cpu_ms(call: Callable[[], object]) -> float:
    """Return the CPU time of one call in ms."""
    begun = time.process_time()
    call()
    return (time.process_time() - begun) * 1000


def measure(jobs: int, mix: str, ticks: int, tick_ms: int) -> dict[str, Any]:
    """Build one engine and look at it."""
    begun = time.process_time()
    engine, _ = engine_with(jobs, MIXES[mix], tick_ms=tick_ms)
    engine.advance(engine.cursor_ms + tick_ms)  # files what was loaded
    found: dict[str, Any] = {"build_s": time.process_time() - begun}
    settle()
    due, costs = 0, []
    for _ in range(ticks):
        ids = 0

        def advance() -> None:
            nonlocal ids
            ids = sum(map(len, engine.advance(engine.cursor_ms + tick_ms)))

        costs.append(cpu_ms(advance))
        due += ids
    costs.sort()
    found |= {"tick_ms": costs[ticks // 2], "mean_ms": sum(costs) / ticks, "due": due / ticks}
    found["sweep_ms"] = sorted(cpu_ms(lambda number=number: engine.sweep(number)) for number in range(16))[8]
    found["gc_ms"] = cpu_ms(gc.collect)
    if mix == "mixed" and tick_ms == 1000:
        found["edge_ms"] = _edge(engine)
    return found


def _edge(engine: Any) -> float:
    """Return the longest tick from five minutes before the full hour to ten seconds after it."""
    edge_ms = (engine.cursor_ms // HOUR_MS + 1) * HOUR_MS
    while engine.cursor_ms < edge_ms - 300_000:
        engine.advance(min(edge_ms - 300_000, engine.cursor_ms + 60_000))
    return max(cpu_ms(lambda: engine.advance(engine.cursor_ms + 1000)) for _ in range(310))


def main() -> None:
    """Measure every size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--measure", nargs=4, metavar=("JOBS", "MIX", "TICKS", "TICK_MS"))
    given = parser.parse_args()
    if given.measure:
        jobs, mix, ticks, tick_ms = given.measure
        print(json.dumps(measure(int(jobs), mix, int(ticks), int(tick_ms))))
        return
    sizes = [1_000, 10_000, 100_000, 1_000_000] + ([5_000_000, 25_000_000] if given.full else [])
    report = Report("engine", full=given.full, shards=256)
    per_run, idle = [], []
    for jobs in sizes:
        minute = in_process(__file__, "--measure", jobs, "minute", 60, 1000)
        ns = minute["tick_ms"] * 1e6 / max(1.0, minute["due"])
        per_run.append((jobs, ns))
        report.add(
            f"{jobs:,} jobs, each every minute: one tick", minute["tick_ms"], "ms", note=f"{minute['due']:,.0f} due/s"
        )
        still = in_process(__file__, "--measure", jobs, "idle", 60, 1000)
        idle.append((jobs, still["tick_ms"]))
        report.add(f"{jobs:,} jobs, none due: one tick", still["tick_ms"], "ms")
    largest = sizes[-1]
    mixed = in_process(__file__, "--measure", largest, "mixed", 60, 1000)
    what = f"{largest:,} jobs from a minute to a day"
    report.add(f"{what}: build", mixed["build_s"], "s")
    report.add(f"{what}: one tick", mixed["tick_ms"], "ms", note=f"{mixed['due']:,.0f} due/s")
    report.add(f"{what}: longest tick at the edge of an hour", mixed["edge_ms"], "ms")
    report.add(f"{what}: watchdog sweep of one shard", mixed["sweep_ms"], "ms", note="all 256 in 8.5 minutes")
    report.add(f"{what}: full garbage collection", mixed["gc_ms"], "ms", note="after gc.freeze")
    tenth = in_process(__file__, "--measure", largest, "minute", 100, 100)
    report.add(
        f"{largest:,} jobs each minute, ticks of 100 ms: one core", tenth["tick_ms"], "%", note="median tick / 100 ms"
    )
    report.plot("one tick with nothing due, in ms, by number of jobs", idle)
    report.plot("cost of one due run in the wheel, in ns, by number of jobs", per_run)
    report.write()


if __name__ == "__main__":
    sys.exit(main())
