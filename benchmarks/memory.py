"""What a job takes in memory, and what a day of changes leaves behind: ``python benchmarks/memory.py [--full]``.

Definitions are made up, with payloads of 100 bytes of their own; every size in a process of its own. The churn is a day
of wheel time (quick: six hours) in ticks of a minute, in each hour of which a tenth of the jobs is replaced, half of
those by other jobs, with the sweeps of the watchdog that move and drop payload pages.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np
from report import Report, in_process, resident_bytes
from synthetic import MIXED_MS, NAME, PAYLOAD, batch_of, engine_with

from celery_wheelbeat.jobs import ChangeBatch
from celery_wheelbeat.observe.memory import settle

SLICES = 12
"""Batches of changes in an hour of the churn."""
SWEEPS = 32
"""Sweeps beside each of them."""
MINUTE_MS = 60_000


def measure(jobs: int) -> dict[str, float]:
    """Load, settle, and look at the resident memory."""
    before = resident_bytes()
    engine, _ = engine_with(jobs, MIXED_MS)
    engine.advance(engine.cursor_ms + 1_000)
    peak = resident_bytes(field="VmHWM")
    settle()
    return {"resident": resident_bytes() - before, "peak": peak - before, "payload": engine.stats().payload_bytes}


def churn(jobs: int, hours: int) -> list[tuple[float, float]]:
    """Replace a tenth of the jobs each hour, half of them by other jobs; returns (hour, resident bytes)."""
    engine, _ = engine_with(jobs, MIXED_MS, tick_ms=MINUTE_MS)
    rng, choice = np.random.default_rng(2), np.array(MIXED_MS, np.int64)
    alive = np.arange(jobs, dtype=np.int64)
    next_id, sweeps = jobs, 0
    each = jobs // 10 // SLICES
    points = []
    for hour in range(hours):
        for _ in range(SLICES):
            picked = rng.choice(len(alive), each, replace=False)
            gone, kept = alive[picked[: each // 2]], np.sort(alive[picked[each // 2 :]])
            new = np.arange(next_id, next_id + len(gone), dtype=np.int64)
            next_id += len(new)
            ids = np.concatenate((kept, new))
            upserts = batch_of(ids, choice[rng.integers(0, len(choice), len(ids))])
            engine.apply(ChangeBatch(upserts, np.sort(gone)))
            alive[picked[: each // 2]] = new
            for _ in range(60 // SLICES):
                engine.advance(engine.cursor_ms + MINUTE_MS)
            for _ in range(SWEEPS):
                engine.sweep(sweeps % 256)
                sweeps += 1
        points.append((float(hour + 1), float(resident_bytes())))
    return points


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--measure", type=int, metavar="JOBS")
    parser.add_argument("--churn", type=int, nargs=2, metavar=("JOBS", "HOURS"))
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure)))
        return
    if given.churn:
        print(json.dumps(churn(*given.churn)))
        return
    report = Report("memory", full=given.full, payload_bytes=len(PAYLOAD), name_bytes=len(NAME))
    points = []
    for jobs in (100_000, 1_000_000) + ((5_000_000, 25_000_000) if given.full else ()):
        found: dict[str, Any] = in_process(__file__, "--measure", jobs)
        each = found["resident"] / jobs
        points.append((float(jobs), each))
        report.add(f"{jobs:,} jobs: resident for each", each, "B", note=f"a payload of {len(PAYLOAD)} B among it")
        report.add(f"{jobs:,} jobs: of it beside payload and name", each - len(PAYLOAD) - len(NAME), "B")
        report.add(f"{jobs:,} jobs: peak while loading", found["peak"] / jobs, "B")
    jobs, hours = (1_000_000, 24) if given.full else (100_000, 6)
    day = in_process(__file__, "--churn", jobs, hours)
    what = f"{jobs:,} jobs, a tenth replaced each hour: resident after"
    report.add(f"{what} an hour", day[0][1] / 1e6, "MB")
    report.add(f"{what} {hours} hours", day[-1][1] / 1e6, "MB", floor=day[0][1] / 1e6)
    report.plot("resident bytes for each job, by number of jobs", points)
    report.plot(
        f"resident memory in MB under churn, by hour ({jobs:,} jobs)", [(hour, size / 1e6) for hour, size in day]
    )
    report.write()


if __name__ == "__main__":
    sys.exit(main())
