"""Guards the cost of the hot paths without a clock: ``python benchmarks/guard.py [--store]``.

Counts function calls of a tick, a load, the compilation of a block of rows, a batch of edits and (with a Redis) a block
of messages. The counts are equal on every machine and in every run, and a loop over jobs multiplies them. Work inside
one numpy call is counted separately, as accessed elements of a shard's columns, because a scan of the whole table is
also one call. A count may exceed the stored one by ``TOLERANCE``, here and in the tests.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from support.changelog.table import PLAIN
from synthetic import MINUTE_MS, MIXED_MS, batch_of, engine_with

from celery_wheelbeat.engine.packing import Rows
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.compile_columns import Shapes
from celery_wheelbeat.jobs.definitions import ChangeBatch
from celery_wheelbeat.schedules.cron import CronTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_wheelbeat.engine.engine import Engine

BASELINE = Path(__file__).parent / "baseline.json"
TOLERANCE = 1.25
"""Versions of Python and numpy differ by a few percent; a loop over jobs multiplies a count a hundredfold."""
JOBS = 100_000
DAY_MS = 86_400_000
BLOCK_ROWS = 10_000
MESSAGES = 12_000


def calls(work: Callable[[], object]) -> int:
    """Return the number of function calls (Python and built-in) of one call of ``work``."""
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


class Watched(np.ndarray):
    """A column that counts accesses to its elements, including those through slices but not through results."""

    touched = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        Watched.touched += max((one.size for one in inputs if isinstance(one, Watched)), default=0)
        if out is not None:
            options["out"] = tuple(map(_bare, out))
        return getattr(ufunc, method)(*map(_bare, inputs), **options)

    def __array_function__(self, function: Any, _types: Any, arguments: Any, options: Mapping[str, Any]) -> Any:
        if function is np.searchsorted:  # accesses only a few elements
            Watched.touched += int(np.size(arguments[1])) * int(self.size).bit_length()
        else:
            Watched.touched += sum(one.size for one in arguments if isinstance(one, Watched))
        return function(*map(_bare, arguments), **{name: _bare(value) for name, value in options.items()})

    def __getitem__(self, key: Any) -> Any:
        found = _bare(self)[key]
        if isinstance(key, slice):
            return found.view(Watched)
        looked_at_all = isinstance(key, np.ndarray) and key.dtype == np.bool_
        Watched.touched += self.size if looked_at_all else int(np.size(found))
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        bare = _bare(self)
        Watched.touched += int(np.size(bare[key]))
        bare[key] = _bare(value)

    def astype(self, *arguments: Any, **options: Any) -> Any:
        """Count all elements."""
        return self._all().astype(*arguments, **options)

    def copy(self, *arguments: Any) -> Any:
        """See ``astype``."""
        return self._all().copy(*arguments)

    def tolist(self) -> Any:
        """See ``astype``."""
        return self._all().tolist()

    def nonzero(self) -> Any:
        """See ``astype``."""
        return self._all().nonzero()

    def _all(self) -> Any:
        Watched.touched += self.size
        return _bare(self)


def _bare(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, Watched) else value


def watch(engine: Engine) -> None:
    """Make the columns of all shards count."""
    for shard in engine.shards:
        shard.table.columns = Rows(*(column.view(Watched) for column in shard.table.columns))


def touched(engine: Engine, work: Callable[[], object]) -> int:
    """Return the number of column elements that ``work`` accesses."""
    watch(engine)
    Watched.touched = 0
    work()
    return Watched.touched


def engines() -> tuple[Engine, Engine, Engine]:
    """Return engines whose jobs fire every minute, at intervals from a minute to a day, and once in ten years."""
    mixed = engine_with(JOBS, MIXED_MS)
    minute = engine_with(JOBS, (MINUTE_MS,))
    idle = engine_with(JOBS, (3_650 * DAY_MS,))
    for one in (mixed, minute, idle):
        one.advance(one.cursor_ms + 1_000)
    return minute, mixed, idle


def tick(engine: Engine) -> Callable[[], object]:
    """Return a function that advances the engine by one second."""
    return lambda: engine.advance(engine.cursor_ms + 1_000)


def measure() -> dict[str, int]:
    """Count each path once, after a warm-up."""
    minute, mixed, idle = engines()
    ids = np.arange(0, JOBS, 50, dtype=np.int64)
    changed = ChangeBatch(batch_of(ids, np.full(len(ids), 120_000)), np.empty(0, np.int64))
    more = batch_of(np.arange(JOBS, 2 * JOBS, dtype=np.int64), np.full(JOBS, 300_000))
    found = {
        "calls: a tick of 100,000 jobs that fire each minute": calls(tick(minute)),
        "calls: a tick of 100,000 jobs from a minute to a day": calls(tick(mixed)),
        "calls: an edit of 2,000 jobs": calls(lambda: mixed.apply(changed)),
        "calls: a load of 100,000 jobs more": calls(lambda: mixed.load(more, {})),
        "calls: the sweep of one shard": calls(lambda: mixed.sweep(1)),
        **compiling(),
    }
    minute, mixed, idle = engines()
    found |= {
        "elements: a tick of 100,000 jobs that fire each minute": touched(minute, tick(minute)),
        "elements: a tick of 100,000 jobs from a minute to a day": touched(mixed, tick(mixed)),
        "elements: a tick with nothing due": touched(idle, tick(idle)),
        "elements: an edit of 2,000 jobs": touched(mixed, lambda: mixed.apply(changed)),
    }
    return found


def compiling() -> dict[str, int]:
    """Count the compilation of a block of rows of three shapes."""
    shapes = Shapes(partial(compile_rows, crons=CronTable()))
    rows = [
        PLAIN._replace(id=n, name=f"m{n}", args=f"[{n}]", interval_ms=60_000 * (1 + n % 5), queue=f"q{n % 3}")
        for n in range(1, BLOCK_ROWS + 1)
    ]
    columns = shapes.columns_of(rows)
    shapes.learn({number: rows[job_id - 1] for number, job_id in shapes.unknown(columns).items()})
    none = np.empty(0, np.int64)
    return {"calls: a block of 10,000 rows, compiled": calls(lambda: shapes.compile(columns, none))}


def rendering(url: str) -> dict[str, int]:
    """Count a block of messages for the Redis at ``url``: the first of each monitor, and later ones.

    The connection only serves to record Celery's own message; nothing is sent to the server.
    """
    from dispatch import Absorbing, definitions
    from support.lanes.bench import FastBench
    from support.lanes.fast_lane import make_app

    class Connected(Absorbing):
        def health(self) -> Any:
            return replace(self._sender.health(), connected=True)

    with FastBench(make_app(url), shards=16) as bench:
        route = bench.route()
        bench.engine.load(definitions(100, route), {})
        bench.pass_minutes()
        bench.drain()  # the envelope is known now
        more = definitions(MESSAGES + 100, route).take(np.arange(100, MESSAGES + 100))
        bench.engine.load(more, {})
        fast = bench.fast
        fast.publisher = absorbing = Connected(fast.publisher, keep=False)  # type: ignore[assignment]

        def all_of_a_minute() -> int:
            bench.pass_minutes()

            def hand_over() -> None:
                while fast.backlog.waiting:
                    fast.refresh(time.monotonic())
                    fast.submit_due(time.monotonic())

            count = calls(hand_over)
            for token in absorbing.tokens:
                fast.backlog.confirm([token])
            absorbing.tokens.clear()
            return count

        found = {
            "calls: 12,100 messages, most of them the first of their monitor": all_of_a_minute(),
            "calls: 12,100 messages, following ones": all_of_a_minute(),
        }
        fast.publisher = absorbing._sender
        return found


def worse(found: Mapping[str, int], stored: Mapping[str, int]) -> dict[str, int]:
    """Return the counts that are too high or have no stored value."""
    return {what: count for what, count in found.items() if count > TOLERANCE * stored.get(what, -1)}


def main() -> int:
    """Compare with the baseline, or store a new one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", action="store_true", help="accept the counts of this run as the new baseline")
    given = parser.parse_args()
    from services import PrivateRedis

    found = measure()
    with PrivateRedis() as server:
        found |= rendering(server.url)
    if given.store:
        BASELINE.write_text(json.dumps(found, indent=1) + "\n")
    stored = json.loads(BASELINE.read_text())
    too_many = worse(found, stored)
    for what, count in found.items():
        print(f"  {what:<65} {count:>9,}, stored {stored.get(what, 0):>9,}{'   TOO MANY' if what in too_many else ''}")
    return 1 if too_many else 0


if __name__ == "__main__":
    sys.exit(main())
