"""A beat started by hand, on a terminal: it shows the progress of its load."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from support.processes import WAIT_S, DjangoProject, redis_conf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.processes

FEW = """
Monitor.objects.bulk_create(Monitor(name=f"m{n}", task="proj.note", interval_ms=60_000) for n in range(3))
"""


class Terminal:
    """Both ends of a terminal, and what a person has seen on it so far."""

    def __init__(self) -> None:
        self.end, self.of_process = os.openpty()
        self.shown = b""

    def read_until(self, condition: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > end_s:
                raise AssertionError(f"{what}: not within {WAIT_S} s\n{self.shown.decode()}")
            if select.select([self.end], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):  # what it says when nobody holds its other end any more
                    self.shown += os.read(self.end, 10_000)


def test_the_load_is_seen_at_the_level_that_celery_beat_logs_at_by_itself(tmp_path: Path, redis_url: str) -> None:
    with DjangoProject(tmp_path, redis_conf(redis_url)) as project:
        project.django(FEW)
        terminal = Terminal()
        command = [sys.executable, "-m", "celery", "-A", "proj", "beat", "-S", "wheelbeat"]
        own = terminal.of_process
        beat = subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ, **project.env}, stdin=own, stdout=own, stderr=own
        )
        os.close(own)
        try:
            terminal.read_until(lambda: b"beat: Read 0 of about 3 monitors" in terminal.shown, "the load")
            beat.send_signal(signal.SIGTERM)
            terminal.read_until(lambda: beat.poll() is not None, "the end")
            assert beat.returncode == 0, terminal.shown.decode()
            assert b"jobs loaded" not in terminal.shown, "the log is at its own level"
        finally:
            beat.kill()
            beat.wait()
            os.close(terminal.end)
