"""A real process that is stopped and goes on: the first question whether it may send is answered with no."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from services import wait_until
from support.pauses import pause
from support.processes import ROOT

PROGRAM = r"""
import sys
from celery_wheelbeat.membership.pulse import Pulse
from celery_wheelbeat.runtime.clock import SystemClock

clock = SystemClock()
pulse = Pulse(clock, clock.boot_s)
pulse.start()
for line in sys.stdin:
    if line == "look\n":
        pulse.looked(clock.monotonic_s())
    print(pulse.may_send(), pulse.woken, flush=True)
"""
PAUSE_S = 1.5
PATIENCE_S = 20.0


def test_a_process_that_was_stopped_looks_before_it_sends() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask(what: str) -> str:
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
            return process.stdout.readline()

        wait_until(lambda: ask("look") == "True False\n", "a process that runs", PATIENCE_S)
        os.kill(process.pid, signal.SIGSTOP)
        pause(PAUSE_S, "the process is stopped")
        process.stdin.write("may it send?\n")
        process.stdin.flush()
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == "False True\n"
        wait_until(lambda: ask("look") == "True False\n", "a process that has looked", PATIENCE_S)
        process.stdin.close()
        process.wait(30)
