"""What the hot paths may call at most: bounds of steps, which no machine makes faster or slower."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def guard() -> ModuleType:
    """``benchmarks/guard.py``."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("guard", BENCHMARKS / "guard.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


def test_no_hot_path_takes_a_step_for_each_job(guard: ModuleType) -> None:
    """The stored counts hold within a quarter here, whatever versions of Python and numpy are in use."""
    stored = guard.json.loads(guard.BASELINE.read_text())
    found = guard.measure()
    assert found.keys() == stored.keys()
    assert {what: count for what, count in found.items() if count > 1.25 * stored[what]} == {}


def test_a_tick_costs_no_more_steps_with_ten_times_the_jobs(guard: ModuleType) -> None:
    def steps(jobs: int) -> int:
        engine, _ = guard.engine_with(jobs, (guard.MINUTE_MS,), shards=16)
        engine.advance(engine.cursor_ms + 1_000)
        return int(guard.calls(lambda: engine.advance(engine.cursor_ms + 1_000)))

    assert steps(200_000) < 1.2 * steps(20_000)
