"""Keeps the cores of this machine awake, at the lowest priority.

An idle core sleeps, and waking it takes longer than Redis needs to answer a message, especially on a virtual machine. A
busy worker does not see this delay, but it dominates a benchmark that sends one message at a time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NICE = 19
SPIN = f"""
import os
os.nice({NICE} - os.nice(0))
if hasattr(os, "SCHED_IDLE"):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""
"""Program that runs at idle priority and ends with its parent process."""


@contextmanager
def cores_awake() -> Iterator[None]:
    """Keep every core available to this process busy, at the lowest priority, during the block."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
