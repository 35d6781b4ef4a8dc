"""A real process that is stopped and goes on: the first question whether it may send is answered with no."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from support.pauses import pause
from support.processes import ROOT

PROGRAM = """
import sys
from celery_wheelbeat.membership.pulse import Pulse
from celery_wheelbeat.runtime.clock import SystemClock

clock = SystemClock()
pulse = Pulse(clock, clock.boot_s)
pulse.start()
for _ in sys.stdin:
    print(pulse.may_send(), pulse.woken, flush=True)
    pulse.looked(clock.monotonic_s())
"""
PAUSE_S = 1.5


def test_a_process_that_was_stopped_looks_before_it_sends() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask() -> str:
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline()

        ask()  # a machine under load may pause a process, too
        os.kill(process.pid, signal.SIGSTOP)
        pause(PAUSE_S, "the process is stopped")
        process.stdin.write("\n")
        process.stdin.flush()
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == "False True\n"
        process.stdin.close()
        process.wait(30)
