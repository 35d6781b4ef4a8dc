"""Keeps the cores of this machine awake without taking anything from whoever has work to do.

A core with nothing to do falls asleep, and waking it costs a message more than Redis needs to answer it, most of all on
a virtual machine. A worker with work to do does not see that; a benchmark with one message at a time sees little else.
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
"""Runs where nobody else wants to, and ends with whoever started it."""


@contextmanager
def cores_awake() -> Iterator[None]:
    """Keep every core of this process busy at the lowest priority meanwhile."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()
