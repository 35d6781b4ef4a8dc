"""Cost of a claim per task, in process: ``python benchmarks/claims.py [--full] [redis://… postgresql://…]``.

One process runs the same tracer with the same empty task (``ignore_result``), with and without the gate, message by
message in random order, interleaved with bare round trips to the same server, so machine noise affects all rows alike.
Everything runs twice: with cores that sleep between messages, and with cores kept awake. The default servers are a
private Redis and the PostgreSQL of the tests. Exit code 1 if a budget is exceeded with cores awake.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from awake import cores_awake
from celery import Celery
from celery.app.trace import build_tracer
from claim_floors import floors_of
from report import Report, at_most
from services import postgres_database, redis_database

from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.worker.counters import Counters
from celery_wheelbeat.worker.hooks.tracer_hook import guarded
from celery_wheelbeat.worker.lifecycle.admission import Gate
from celery_wheelbeat.worker.stores.choice import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from claim_floors import Floors

    from celery_wheelbeat.worker.stores import Store

    Work = Callable[[dict[str, Any]], object]

BUDGET_US = {"redis": 120, "postgresql": 350}
"""µs that a claim with its done mark may add to the median of a task."""
LOOKUP_BUDGET_US = 2.0
BARE, NOT_OURS, CLAIM, DONE, COPY = "no hook", "hook, not ours", "claim", "claim + done mark", "dropped copy"


class Claimless:
    """A store that writes no done mark; the difference is the cost of the mark."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def post(self, *_: object) -> None:
        """Leave the claim in state running."""


class Row(NamedTuple):
    """Times of one kind of message, in µs."""

    median: float
    p99: float
    cpu: float
    """Median CPU time of the worker."""


def requests(count: int, *, ours: bool) -> list[dict[str, Any]]:
    """Return the request dicts of ``count`` messages, as a worker passes them to the tracer."""
    fire_ms = round(time.time() * 1000)
    base = {"delivery_info": {"redelivered": False}, "retries": 0, "hostname": "bench", "is_eager": False}
    headers = {"wheelbeat_fire_ms": fire_ms} if ours else {}
    return [
        {
            **base,
            **headers,
            "wheelbeat_nonce": uuid4().hex,
            "id": str(uuid4()),
            "args": [42, "https://example.org/"],
            "kwargs": {},
        }
        for _ in range(count)
    ]


def measure(works: dict[str, Work], messages: dict[str, list[dict[str, Any]]]) -> dict[str, Row]:
    """Process the messages of all rows one by one, in random order."""
    took: dict[str, list[float]] = {name: [] for name in works}
    used: dict[str, list[float]] = {name: [] for name in works}
    order = [name for name in works if name != COPY]  # the copy follows its original
    gc.disable()
    for number in range(len(messages[BARE])):
        random.shuffle(order)
        for name in (*order, COPY):
            message, work = messages[name][number], works[name]
            cpu = time.thread_time_ns()
            began = time.perf_counter_ns()
            work(message)
            ended = time.perf_counter_ns()
            used[name].append((time.thread_time_ns() - cpu) / 1000)
            took[name].append((ended - began) / 1000)
    gc.enable()
    return {
        name: Row(middle(times), sorted(times)[int(len(times) * 0.99)], middle(used[name]))
        for name, times in took.items()
    }


def middle(values: list[float]) -> float:
    """Return the median."""
    return sorted(values)[len(values) // 2]


def mean_us(work: Work, count: int, *, ours: bool) -> float:
    """Return the mean time of a message, in µs, if they follow each other immediately."""
    messages = requests(count, ours=ours)
    began = time.perf_counter_ns()
    for message in messages:
        work(message)
    return (time.perf_counter_ns() - began) / 1000 / count


def works_of(task: Any, store: Store) -> dict[str, Work]:
    """Return the work of each row, without the floors."""
    bare = build_tracer(task.name, task, app=task.app)

    def gated(kept: Any) -> Any:
        gate = Gate(kept, Settings(), Counters(), flags_redelivery=True, wall_ms=SystemClock().wall_ms)
        return guarded(task, bare, gate)

    def work(trace: Any) -> Work:
        return lambda message: trace(message["id"], message["args"], message["kwargs"], message)

    full = work(gated(store))
    return {BARE: work(bare), NOT_OURS: full, CLAIM: work(gated(Claimless(store))), DONE: full, COPY: full}


def add_store(report: Report, task: Any, url: str, count: int) -> bool:
    """Measure the claims in the store at ``url``; return whether they meet the budgets with cores awake."""
    store = open_store(url)
    store.prepare()
    kind = url.partition("://")[0]
    within = True
    with floors_of(url) as floors:
        works = {**works_of(task, store), **floors.works}
        for cores, awake in (("asleep between messages", nullcontext()), ("awake", cores_awake())):
            with awake:
                messages = {name: requests(count, ours=name in (CLAIM, DONE)) for name in works}
                messages[COPY] = [{**message, "wheelbeat_nonce": uuid4().hex} for message in messages[DONE]]
                rows = measure(works, messages)
                in_a_row = mean_us(works[DONE], count, ours=True) - mean_us(works[BARE], count, ours=False)
            kept = add_rows(Writing(report, f"{kind}, cores {cores}: "), kind, rows, floors)
            report.add(
                f"{kind}, cores {cores}: {DONE}, one task after the other",
                in_a_row,
                "µs",
                note="added to a task, mean of a loop: with what a posted mark costs the claim after it",
            )
            within = within and (cores != "awake" or kept)
    store.close()
    return within


class Writing(NamedTuple):
    """A report whose figures have a common prefix."""

    report: Report
    prefix: str

    def add(self, what: str, value: float, **more: Any) -> None:
        """Add one figure in µs."""
        self.report.add(self.prefix + what, value, "µs", **more)


def add_rows(writing: Writing, kind: str, rows: dict[str, Row], floors: Floors) -> bool:
    """Add the times of each kind of message; return whether the budgets were met."""
    base = rows[BARE]
    least = {CLAIM: rows[floors.of_a_claim].median, DONE: rows[floors.of_both].median}
    writing.add(BARE, base.median, note="the task alone")
    for name in floors.works:
        writing.add(f"bare round trip, {name}", rows[name].median, note=f"p99 {rows[name].p99:.0f} µs")
    budgets = {NOT_OURS: LOOKUP_BUDGET_US, **({DONE: BUDGET_US[kind]} if kind in BUDGET_US else {})}
    kept = True
    for name in (NOT_OURS, CLAIM, DONE, COPY):
        row = rows[name]
        target = at_most(budgets[name]) if name in budgets else None
        writing.add(
            name,
            row.median - base.median,
            floor=least.get(name),
            target=target,
            note=f"added to a task, which then takes {row.p99:.0f} µs at p99",
            limit="the round trip, then Python" if name in least else "",
        )
        kept = kept and not (target and target.missed(row.median - base.median))
    writing.add(f"{DONE}, CPU of the worker", rows[DONE].cpu - base.cpu, note="added to a task, without the server's")
    return kept


def main() -> int:
    """Measure, print and write; return 1 if a budget is exceeded."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("urls", nargs="*", help="claim stores; default: a private Redis and the tests' PostgreSQL")
    options.add_argument("--full", action="store_true", help="four times as many messages")
    given = options.parse_args()
    app = Celery("bench", broker="memory://", backend="disabled", set_as_current=False)
    app.conf.task_ignore_result = True

    @app.task(name="bench.noop")
    def noop(*_: object) -> None: ...

    count = 8_000 if given.full else 2_000
    report = Report("claims", full=given.full, messages=f"{count:,} per row")
    within = True
    with ExitStack() as servers:
        for url in given.urls or (servers.enter_context(redis_database()), servers.enter_context(postgres_database())):
            within = add_store(report, app.tasks["bench.noop"], url, count) and within
    report.write()
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
