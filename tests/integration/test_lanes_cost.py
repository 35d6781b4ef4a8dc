"""What a message may cost at most: Python calls for a block of them, which no machine makes faster or slower."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a module of the benchmarks."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def test_following_messages_take_no_step_each(redis_url: str, benchmark: Callable[[str], Any]) -> None:
    guard = benchmark("guard")
    found = guard.rendering(redis_url)
    stored = guard.json.loads(guard.BASELINE.read_text())
    assert found.keys() <= stored.keys()
    assert guard.worse(found, stored) == {}
    first, following = found.values()
    assert following < guard.MESSAGES < first


def test_a_run_is_submitted_in_one_pass(redis_url: str, benchmark: Callable[[str], Any]) -> None:
    """The lane takes, looks up, chooses, renders and submits; it is not a hub that every helper returns to."""
    found = benchmark("trace_of_a_run").traced(redis_url)["submit_due"].row()
    bounds = {"files": 20, "rooms": 12, "hub": 12}
    assert {name: found[name] for name in bounds if found[name] > bounds[name]} == {}
