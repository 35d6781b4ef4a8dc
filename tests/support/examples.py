"""How many examples a property test draws: in a soak, ``WHEELBEAT_EXAMPLES`` times as many as in other runs."""

from __future__ import annotations

import os

from hypothesis import settings

TIMES = int(os.environ.get("WHEELBEAT_EXAMPLES", "1"))


def examples(count: int) -> settings:
    """Settings of a property test that draws ``count`` examples."""
    return settings(max_examples=count * TIMES)
