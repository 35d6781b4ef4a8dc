"""What a message may cost at most: Python calls for a block of them, which no machine makes faster or slower."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_following_messages_take_no_step_each(redis_url: str) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        guard = importlib.import_module("guard")
        found = guard.rendering(redis_url)
    finally:
        sys.path.remove(str(BENCHMARKS))
    stored = guard.json.loads(guard.BASELINE.read_text())
    assert found.keys() <= stored.keys()
    assert guard.worse(found, stored) == {}
    first, following = found.values()
    assert following < guard.MESSAGES < first
