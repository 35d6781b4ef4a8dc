"""What the hot paths may call at most: bounds of steps, which no machine makes faster or slower."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from celery_wheelbeat.engine.shard import Shard

if TYPE_CHECKING:
    from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def guard() -> ModuleType:
    """``benchmarks/guard.py``."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("guard")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def stored(guard: ModuleType) -> dict[str, int]:
    """The counts that were accepted."""
    return dict(guard.json.loads(guard.BASELINE.read_text()))


def test_no_hot_path_takes_a_step_for_each_job(guard: ModuleType, stored: dict[str, int]) -> None:
    found = guard.measure()
    assert found.keys() <= stored.keys()
    assert guard.worse(found, stored) == {}


def test_a_scan_of_the_table_is_noticed_although_numpy_makes_one_call_of_it(
    guard: ModuleType, stored: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, idle = guard.engines()
    what = "elements: a tick with nothing due"
    assert guard.touched(idle, guard.tick(idle)) <= stored[what]
    pop = Shard.pop

    def scanning(shard: Shard, tick: int) -> Any:
        np.flatnonzero(shard.table.columns.next_fire <= tick * 1_000)
        return pop(shard, tick)

    monkeypatch.setattr(Shard, "pop", scanning)
    assert guard.worse({what: guard.touched(idle, guard.tick(idle))}, stored)
    assert guard.touched(idle, guard.tick(idle)) >= guard.JOBS


def test_a_tick_costs_no_more_steps_with_ten_times_the_jobs(guard: ModuleType) -> None:
    def steps(jobs: int) -> int:
        engine = guard.engine_with(jobs, (guard.MINUTE_MS,), shards=16)
        engine.advance(engine.cursor_ms + 1_000)
        return int(guard.calls(lambda: engine.advance(engine.cursor_ms + 1_000)))

    assert steps(200_000) < 1.2 * steps(20_000)
