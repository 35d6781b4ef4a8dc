"""Real time that passes because the scenario is its passing. A test that waits for something waits for that event."""

from __future__ import annotations

import time


def pause(seconds: float, why: str) -> None:
    """Let ``seconds`` pass; ``why`` says what they are in the scenario."""
    assert why
    time.sleep(max(0.0, seconds))
