"""The wheel alone: cost of a tick, an hour boundary and a sweep, from a thousand to 25 million jobs.

``python benchmarks/engine.py [--full]``. CPU time, no I/O; envelopes are measured by ``dispatch.py``.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from report import Report, at_most, in_process, quantile
from synthetic import MINUTE_MS, MIXED_MS, engine_with

from celery_wheelbeat.beat.loading import settle
from celery_wheelbeat.beat.supervision import SWEEP_EVERY_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.engine.engine import Engine

HOUR_MS = 3_600_000
DAY_MS = 86_400_000
MIXES = {"minute": (MINUTE_MS,), "mixed": MIXED_MS, "idle": (365 * DAY_MS,)}
"""Name → intervals: all jobs fire every minute; a mixture from a minute to a day; none fires during the measurement.
Any other name: one interval, long enough that a thousand jobs fire per second."""
ROTATION_S = 256 * SWEEP_EVERY_S
WORK = "a few numpy calls for each shard that has something due, and the columns of the due rows"
SHARDS = "256 shards are asked whether they have something due, however many jobs they hold"


def cpu_ms(call: Callable[[], object]) -> float:
    """Return the CPU time of one call in ms."""
    begun = time.process_time()
    call()
    return (time.process_time() - begun) * 1000


def measure(jobs: int, mix: str, ticks: int, tick_ms: int) -> dict[str, Any]:
    """Build one engine and measure it."""
    begun = time.process_time()
    intervals_ms = MIXES.get(mix) or (max(1, jobs // 1000) * 1000,)
    engine = engine_with(jobs, intervals_ms, tick_ms=tick_ms)
    engine.advance(engine.cursor_ms + tick_ms)  # files the loaded jobs in the wheel
    found: dict[str, Any] = {"build_s": time.process_time() - begun}
    settle()
    found |= _ticks(engine, ticks)
    found["sweep_ms"] = _median([cpu_ms(partial(engine.sweep, number)) for number in range(16)])
    found["gc_ms"] = cpu_ms(gc.collect)
    if mix == "mixed" and tick_ms == 1000:
        found |= _edges(engine)
    return found


def _ticks(engine: Engine, ticks: int) -> dict[str, float]:
    due, costs = 0, []
    for _ in range(ticks):
        begun = time.process_time()
        batches = engine.advance(engine.cursor_ms + engine.config.tick_ms)
        costs.append((time.process_time() - begun) * 1000)
        due += sum(map(len, batches))
    costs.sort()
    return {
        "tick_ms": sum(costs) / ticks,
        "median_ms": quantile(costs, 0.5),
        "p99_ms": quantile(costs, 0.99),
        "longest_ms": costs[-1],
        "due": due / ticks,
    }


def _edges(engine: Engine) -> dict[str, float]:
    """Return the longest tick and the longest garbage collector pause around a full hour.

    Measures every tick from five minutes before the hour, when the first shard promotes its jobs, to ten seconds after.
    """
    edge_ms = (engine.cursor_ms // HOUR_MS + 1) * HOUR_MS
    while engine.cursor_ms < edge_ms - 300_000:
        engine.advance(min(edge_ms - 300_000, engine.cursor_ms + 60_000))
    engine.advance(engine.cursor_ms + 1000)  # a jump over this many runs counts as a stall: all jobs are filed again
    pauses, begun = [0.0], 0.0

    def note(phase: str, _info: dict[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.process_time()
        else:
            pauses.append((time.process_time() - begun) * 1000)

    gc.callbacks.append(note)
    costs = [cpu_ms(lambda: engine.advance(engine.cursor_ms + 1000)) for _ in range(309)]
    gc.callbacks.remove(note)
    return {"edge_ms": max(costs), "pause_ms": max(pauses)}


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def add_growth(report: Report, sizes: list[int]) -> None:
    """Measure the cost of a run and of an idle tick by number of jobs."""
    per_run, idle = [], []
    for jobs in sizes:
        minute = in_process(__file__, "--measure", jobs, "minute", 60, 1000)
        ns = minute["tick_ms"] * 1e6 / max(1.0, minute["due"])
        per_run.append((float(jobs), ns))
        note = f"{minute['due']:,.0f} due/s, {ns:,.0f} ns each; longest {minute['longest_ms']:.3g} ms"
        report.add(f"{jobs:,} jobs, each every minute: one tick", minute["tick_ms"], "ms", note=note, limit=WORK)
        still = in_process(__file__, "--measure", jobs, "idle", 60, 1000)
        idle.append((float(jobs), still["tick_ms"]))
        longest = f"longest {still['longest_ms']:.3g} ms"
        report.add(f"{jobs:,} jobs, none due: one tick", still["tick_ms"], "ms", floor=idle[0][1], note=longest)
    jobs = f"from {sizes[0]:,} to {sizes[-1]:,} jobs"
    most = max(ns for _, ns in per_run) / per_run[0][1]
    report.add(f"{jobs}: dearest run against one of {sizes[0]:,} jobs", most, "×", target=at_most(2), limit=SHARDS)
    grown = max(ms for _, ms in idle) / idle[0][1]
    report.add(
        f"{jobs}: dearest idle tick against that of {sizes[0]:,} jobs", grown, "×", target=at_most(3), limit=SHARDS
    )
    report.plot("one tick with nothing due, in ms, by number of jobs", idle)
    report.plot("cost of one due run in the wheel, in ns, by number of jobs", per_run)


def add_mixed(report: Report, jobs: int) -> None:
    """Measure intervals from a minute to a day: hour boundary, garbage collector, watchdog."""
    mixed = in_process(__file__, "--measure", jobs, "mixed", 60, 1000)
    what = f"{jobs:,} jobs from a minute to a day"
    report.add(f"{what}: build", mixed["build_s"], "s", limit="columns and slots are written once for each job")
    note = f"{mixed['due']:,.0f} due/s; longest {mixed['longest_ms']:.3g} ms"
    report.add(f"{what}: one tick", mixed["tick_ms"], "ms", note=note, limit=WORK)
    edge = f"{what}: longest tick around a full hour"
    why = "the shards promote what the next hour brings one after the other"
    report.add(edge, mixed["edge_ms"], "ms", target=at_most(50), limit=why)
    pause = f"{what}: longest pause of the garbage collector meanwhile"
    report.add(pause, mixed["pause_ms"], "ms", limit="gc.freeze: what is loaded is not looked at")
    report.add(f"{what}: full garbage collection", mixed["gc_ms"], "ms", note="after gc.freeze")
    report.add(
        f"{what}: watchdog sweep of one shard, deep", mixed["sweep_ms"], "ms", limit="every column of the shard is read"
    )
    share = mixed["sweep_ms"] / (SWEEP_EVERY_S * 1000) * 100
    report.add(f"{what}: watchdog, share of a core", share, "%", target=at_most(1))
    note = f"one shard each {SWEEP_EVERY_S:g} s"
    report.add(f"{what}: watchdog, all shards", ROTATION_S / 60, "min", target=at_most(9), note=note)


def add_tenths(report: Report, jobs: int) -> None:
    """Measure ticks of 100 ms: fire times are whole seconds, so nine of ten ticks are idle."""
    tenth = in_process(__file__, "--measure", jobs, "minute", 600, 100)
    what = f"{jobs:,} jobs each minute, ticks of 100 ms"
    note = f"mean of 600 ticks, nine of ten of them idle; median {tenth['median_ms']:.3g} ms"
    report.add(f"{what}: one tick", tenth["tick_ms"], "ms", note=note, limit=WORK)
    report.add(f"{what}: p99 tick", tenth["p99_ms"], "ms", note="one in ten has the runs of a whole second")
    report.add(f"{what}: longest tick", tenth["longest_ms"], "ms", target=at_most(100))
    report.add(f"{what}: share of a core", tenth["tick_ms"], "%", target=at_most(5), note="mean tick / 100 ms")


def main() -> None:
    """Measure every size in a separate process."""
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
    add_growth(report, sizes)
    largest = sizes[-1]
    if given.full:
        minute = next(
            figure for figure in report.figures if figure.what == f"{largest:,} jobs, each every minute: one tick"
        )
        what = f"{largest:,} jobs, each every minute: share of a core"
        report.add(what, minute.value / 10, "%", target=at_most(5), note="mean tick / 1 s")
    what = f"{largest:,} jobs, about a thousand due each second"
    few = in_process(__file__, "--measure", largest, "few", 60, 1000)
    note = f"{few['due']:,.0f} due/s; longest {few['longest_ms']:.3g} ms"
    report.add(f"{what}: one tick", few["tick_ms"], "ms", note=note, limit="a few rows in each of 256 shards")
    add_mixed(report, largest)
    add_tenths(report, largest)
    report.write()


if __name__ == "__main__":
    sys.exit(main())
