"""Counts what a call executes, for tests that bound steps instead of time."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def lines(call: Callable[[], object]) -> int:
    """Count the lines that ``call`` executes, also each turn of a loop: Python 3.13 loses the first opcode events.

    Without garbage collections: Hypothesis has a callback for them, which is Python code and would be counted.
    """
    count = 0

    def trace(_frame: Any, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return count
