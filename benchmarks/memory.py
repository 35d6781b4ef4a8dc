"""Memory of a job, and memory growth over a day of changes: ``python benchmarks/memory.py [--full]``.

Definitions are synthetic, with distinct payloads of 100 bytes; every size runs in a separate process. The churn is a
day of wheel time (quick: six hours) in ticks of a minute. In each hour a tenth of the jobs is replaced, half of those
by other jobs, with the watchdog's sweeps, which move and drop payload pages.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from report import Report, at_most, in_process, resident_bytes
from synthetic import MIXED_MS, NAME, PAYLOAD, batch_of, engine_with

from celery_wheelbeat.beat.loading import settle
from celery_wheelbeat.jobs.definitions import ChangeBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

SLICES = 12
"""Batches of changes in an hour of the churn."""
SWEEPS = 32
"""Sweeps per batch."""
MINUTE_MS = 60_000
MANY = 1_000_000
"""Number of jobs from which the memory of the bare process is negligible."""


def measure(jobs: int) -> dict[str, float]:
    """Load, settle, and measure the resident memory."""
    before = resident_bytes()
    engine = engine_with(jobs, MIXED_MS)
    engine.advance(engine.cursor_ms + 1_000)
    peak = resident_bytes(field="VmHWM")
    settle()
    return {"resident": resident_bytes() - before, "peak": peak - before, "payload": engine.stats().payload_bytes}


def churn(jobs: int, hours: int) -> list[tuple[float, float]]:
    """Replace a tenth of the jobs each hour, half of them by other jobs; return (hour, resident bytes)."""
    engine = engine_with(jobs, MIXED_MS, tick_ms=MINUTE_MS)
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


def add_sizes(report: Report, sizes: Sequence[int]) -> None:
    """Measure the memory per job, by number of jobs."""
    each_b, whole = [], []
    for jobs in sizes:
        found: dict[str, Any] = in_process(__file__, "--measure", jobs)
        each = found["resident"] / jobs
        each_b.append((float(jobs), each))
        whole.append((float(jobs), found["resident"] / 1e6))
        note = f"a payload of {len(PAYLOAD)} B and a name of {len(NAME)} B among it; fingerprints (5 B) are not"
        limit = "the texts themselves; then columns of 24 B, the wheel, and the places of the texts"
        whole_target, beside_target = (at_most(160), at_most(100)) if jobs >= MANY else (None, None)
        report.add(f"{jobs:,} jobs: resident for each", each, "B", target=whole_target, note=note, limit=limit)
        beside = f"{jobs:,} jobs: of it beside payload and name"
        report.add(beside, each - len(PAYLOAD) - len(NAME), "B", target=beside_target)
        report.add(f"{jobs:,} jobs: resident", found["resident"] / 1e9, "GB", target=at_most(4))
        limit = "blocks on their way into the columns"
        report.add(f"{jobs:,} jobs: peak while loading", found["peak"] / jobs, "B", note="for each job", limit=limit)
    report.plot("resident bytes for each job, by number of jobs", each_b)
    report.plot("resident memory in MB, by number of jobs", whole)


def add_churn(report: Report, jobs: int, hours: int) -> None:
    """Measure whether memory stays flat while jobs are replaced."""
    day = [(hour, size / 1e6) for hour, size in in_process(__file__, "--churn", jobs, hours)]
    what = f"{jobs:,} jobs, a tenth replaced each hour: resident after"
    report.add(f"{what} an hour", day[0][1], "MB")
    limit = "pages of payloads with holes, until a sweep of the watchdog moves what is left in them"
    report.add(f"{what} {hours} hours", day[-1][1], "MB", floor=day[0][1], target=at_most(1.1 * day[0][1]), limit=limit)
    report.plot(f"resident memory in MB under churn, by hour ({jobs:,} jobs)", day)


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
    add_sizes(report, (100_000, 1_000_000) + ((5_000_000, 25_000_000) if given.full else (2_000_000,)))
    add_churn(report, *((1_000_000, 24) if given.full else (100_000, 6)))
    report.write()


if __name__ == "__main__":
    sys.exit(main())
