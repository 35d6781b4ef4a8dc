"""Run pytest with the arguments given; if at most three tests fail, try them again, one process and nothing beside.

The tests start many processes on few cores, so a deadline can pass without a mistake in the code. The second try shows
whether that happened. It is printed, whichever way it ends. More failures are not put down to load: they fail the run.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence


SECOND_TRIES = 3
"""Most failed tests that are tried again."""


class FailedTests:
    """A plug-in that keeps the node ids of failed tests, each once, in the order of failure."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure of a test, of its set-up or of its tear-down."""
        if report.failed and report.nodeid not in self.names:
            self.names.append(report.nodeid)


def main(arguments: Sequence[str]) -> int:
    """Return the exit code of pytest, or that of the second try."""
    failed = FailedTests()
    code = int(pytest.main([*arguments], plugins=[failed]))
    if code != pytest.ExitCode.TESTS_FAILED:
        return code
    names = failed.names
    if not 0 < len(names) <= SECOND_TRIES:
        emphasise(f"{len(names)} tests failed, so none gets a second try")
        return code
    for name in names:
        emphasise(f"a second try: {name}")
    again = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *names], check=False).returncode
    for name in names:
        emphasise(f"needed a second try: {name}")
    emphasise(f"{len(names)} failed at first; second try, alone: {'failed' if again else 'passed'}")
    return again


def emphasise(line: str) -> None:
    """Print a line that is easy to find among pytest's lines."""
    text = f" {line} ".center(100, "#")
    sys.stdout.write(f"\033[1;33m{text}\033[0m\n" if sys.stdout.isatty() else f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
