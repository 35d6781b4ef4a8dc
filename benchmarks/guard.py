"""Guards the cost of the hot paths without a clock: ``python benchmarks/guard.py [--store]``.

Counts the Python functions that are called for a tick, a load and a batch of edits: the same on every machine and in
every run, and what a careless loop over jobs multiplies. A count may exceed the stored one by ``TOLERANCE``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from synthetic import MINUTE_MS, MIXED_MS, batch_of, engine_with

from celery_wheelbeat.jobs import ChangeBatch

if TYPE_CHECKING:
    from collections.abc import Callable

BASELINE = Path(__file__).parent / "baseline.json"
TOLERANCE = 1.1
JOBS = 100_000


def calls(work: Callable[[], object]) -> int:
    """Return how many functions, Python's and built-in ones, one call of ``work`` calls."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def measure() -> dict[str, int]:
    """Count each path once, after it has been warmed up."""
    engine, routes = engine_with(JOBS, MIXED_MS)
    minute, _ = engine_with(JOBS, (MINUTE_MS,))
    for one in (engine, minute):
        one.advance(one.cursor_ms + 1_000)
    ids = np.arange(0, JOBS, 50, dtype=np.int64)
    changed = ChangeBatch(batch_of(ids, np.full(len(ids), 120_000)), np.empty(0, np.int64))
    more = batch_of(np.arange(JOBS, 2 * JOBS, dtype=np.int64), np.full(JOBS, 300_000))
    return {
        "a tick of 100,000 jobs that fire each minute": calls(lambda: minute.advance(minute.cursor_ms + 1_000)),
        "a tick of 100,000 jobs from a minute to a day": calls(lambda: engine.advance(engine.cursor_ms + 1_000)),
        "an edit of 2,000 jobs": calls(lambda: engine.apply(changed)),
        "a load of 100,000 jobs more": calls(lambda: engine.load(more, {}, routes)),
        "the sweep of one shard": calls(lambda: engine.sweep(1)),
    }


def main() -> int:
    """Compare with the baseline, or store a new one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", action="store_true", help="accept the counts of this run as the new baseline")
    given = parser.parse_args()
    found = measure()
    if given.store:
        BASELINE.write_text(json.dumps(found, indent=1) + "\n")
    stored = json.loads(BASELINE.read_text())
    worse = {what: count for what, count in found.items() if count > stored.get(what, 0) * TOLERANCE}
    for what, count in found.items():
        print(
            f"  {what:<50} {count:>9,} calls, stored {stored.get(what, 0):>9,}{'   TOO MANY' if what in worse else ''}"
        )
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
