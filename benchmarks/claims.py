"""What a claim costs a task, in process: ``python benchmarks/claims.py [redis://…] [postgresql://…]``.

The same tracer runs the same empty task (``ignore_result``) with and without the gate in front of it, message by
message in random order in one process, so that all rows see the same machine. Without arguments a private Redis and the
PostgreSQL of the tests are used. Prints median and 99th percentile in µs; exit code 1 where a budget is exceeded.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from celery import Celery
from celery.app.trace import build_tracer
from services import postgres_database, redis_database

from celery_wheelbeat.clock import SystemClock
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.worker.counters import Counters
from celery_wheelbeat.worker.gate import Gate
from celery_wheelbeat.worker.hook import guarded
from celery_wheelbeat.worker.stores.choice import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

BUDGET_US = {"redis": 120, "postgresql": 350}
"""What a claim with its done mark may add to the median of a task."""
LOOKUP_BUDGET_US = 2.0


class Claimless:
    """Marks nothing: what the done mark costs is the difference."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def post(self, *_: object) -> None:
        """Leave the claim running."""


def requests(ours: bool, count: int) -> list[dict[str, Any]]:
    """Build the request dicts of ``count`` messages, as a worker hands them to the tracer."""
    fire_ms = round(time.time() * 1000)
    headers = {"wheelbeat_fire_ms": fire_ms, "wheelbeat_nonce": uuid4().hex} if ours else {}
    base = {"delivery_info": {"redelivered": False}, "retries": 0, "hostname": "bench", "is_eager": False, **headers}
    return [{**base, "id": str(uuid4()), "args": [42, "https://example.org/"], "kwargs": {}} for _ in range(count)]


def measure(traces: dict[str, Callable[..., Any]], prepared: dict[str, list[dict[str, Any]]]) -> dict[str, list[float]]:
    """Run message after message of every row and return the sorted durations in µs."""
    took: dict[str, list[float]] = {name: [] for name in traces}
    order = list(prepared)[:-1]  # the dropped copy follows the message that it is a copy of
    gc.disable()
    for number in range(len(prepared["no hook"])):
        random.shuffle(order)
        for name in (*order, "dropped copy"):
            request, trace = prepared[name][number], traces[name]
            began = time.perf_counter()
            trace(request["id"], request["args"], request["kwargs"], request)
            took[name].append((time.perf_counter() - began) * 1e6)
    gc.enable()
    return {name: sorted(times) for name, times in took.items()}


def main() -> int:
    """Measure, print, and return 1 where a budget is exceeded."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("urls", nargs="*", help="claim stores; default: a private Redis and the tests' PostgreSQL")
    options.add_argument("-n", type=int, default=5_000, help="messages per row")
    given = options.parse_args()
    app = Celery("bench", broker="memory://", backend="disabled", set_as_current=False)
    app.conf.task_ignore_result = True

    @app.task(name="bench.noop")
    def noop(*_: object) -> None: ...

    task = app.tasks["bench.noop"]
    bare = build_tracer(task.name, task, app=app)
    exceeded = 0
    with ExitStack() as servers:
        urls = given.urls or [servers.enter_context(redis_database()), servers.enter_context(postgres_database())]
        for url in urls:
            store = open_store(url)
            store.prepare()

            def gate(kept: Any) -> Gate:
                wall_ms = SystemClock().wall_ms
                return Gate(kept, Settings(), Counters(), flags_redelivery=True, wall_ms=wall_ms)

            full = guarded(task, bare, gate(store))
            traces = {
                "no hook": bare,
                "hook, not ours": full,
                "claim": guarded(task, bare, gate(Claimless(store))),
                "claim + done": full,
                "dropped copy": full,
            }
            prepared = {name: requests("claim" in name, given.n) for name in traces}
            copies = [{**request, "wheelbeat_nonce": uuid4().hex} for request in prepared["claim + done"]]
            prepared["dropped copy"] = copies
            times = measure(traces, prepared)
            store.close()
            kind = url.partition("://")[0]
            print(f"\n{kind}, {given.n:,} messages per row: µs per task   median      p99   added")
            base = times["no hook"][given.n // 2]
            for name, row in times.items():
                median = row[given.n // 2]
                print(f"  {name:42} {median:8.1f} {row[int(given.n * 0.99)]:8.1f} {median - base:7.1f}")
            added = times["claim + done"][given.n // 2] - base
            looked = times["hook, not ours"][given.n // 2] - base
            exceeded += added > BUDGET_US.get(kind, float("inf")) or looked > LOOKUP_BUDGET_US
    return int(exceeded > 0)


if __name__ == "__main__":
    sys.exit(main())
