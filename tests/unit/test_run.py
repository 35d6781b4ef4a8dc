"""Up to three failed tests are tried again, and the output names them; more failures fail the run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "run.py"

TESTS = """
import pathlib

def fails(name, times):
    tries = pathlib.Path(name)
    count = len(tries.read_text()) if tries.exists() else 0
    tries.write_text("x" * (count + 1))
    assert count >= times

def test_a(): fails("a", {a})
def test_b(): fails("b", {b})
def test_c(): fails("c", {c})
def test_d(): fails("d", {d})
"""


def run(folder: Path, text: str) -> tuple[int, str]:
    """Run the tests of ``text``; return the exit code and what was printed."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(text)
    done = subprocess.run(
        [sys.executable, RUN, "test_it.py"],
        cwd=folder,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "xdist.plugin",
            "PYTEST_ADDOPTS": "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("failures", "code", "tries", "printed"),
    [
        ((0, 0, 0, 0), 0, ["x", "x", "x", "x"], []),
        ((1, 0, 0, 0), 0, ["xx", "x", "x", "x"], ["test_a", "passed"]),
        ((0, 2, 0, 0), 1, ["x", "xx", "x", "x"], ["test_b", "failed"]),
        ((1, 1, 1, 0), 0, ["xx", "xx", "xx", "x"], ["test_a", "test_b", "test_c", "passed"]),
        ((1, 2, 1, 0), 1, ["xx", "xx", "xx", "x"], ["test_a", "test_b", "test_c", "failed"]),
        ((1, 1, 1, 1), 1, ["x", "x", "x", "x"], []),
    ],
)
def test_few_failed_tests_are_tried_again(
    failures: tuple[int, int, int, int], code: int, tries: list[str], printed: list[str], tmp_path: Path
) -> None:
    ended, output = run(tmp_path, TESTS.format(**dict(zip("abcd", failures, strict=True))))
    assert ended == code, output
    assert [(tmp_path / name).read_text() for name in "abcd"] == tries
    needed = re.findall(r"needed a second try: test_it.py::(\w+)", output)
    assert [*needed, *re.findall(r"failed at first; second try, alone: (\w+)", output)] == printed
    assert ("4 tests failed, so none gets a second try" in output) is (failures == (1, 1, 1, 1))


def test_a_file_that_cannot_be_imported_is_no_failed_test(tmp_path: Path) -> None:
    code, printed = run(tmp_path, "import nothing_of_the_kind")
    assert code == pytest.ExitCode.INTERRUPTED
    assert "second try" not in printed


def test_a_test_whose_fixture_fails_is_one_failed_test(tmp_path: Path) -> None:
    fixture = "import pytest\n@pytest.fixture\ndef broken():\n    yield\n    assert False\n"
    code, printed = run(tmp_path, f"{fixture}def test_a(broken): assert False\n")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "needed a second try: test_it.py::test_a" in printed
