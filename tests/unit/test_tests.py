"""The rules of CONTRIBUTING for the tests that a machine can check: no sleeps, small folders, no class name twice."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("*.py"))

SLEEP_EXCEPTIONS = {
    "services/server.py": "asks a server that starts whether it answers, and has no event to wait for",
    "support/claims.py": "asks files and logs that other processes write",
    "support/lanes/fast_lane.py": "polls a sender as the scheduling thread does",
    "support/pauses.py": "the time that passes is the scenario, and the caller says what it is",
    "support/processes.py": "asks files that other processes write",
}
"""Modules that may sleep, and why: they hold the loops with a deadline that all other modules use."""

FOLDER_MODULES_MAX = 12


def _name(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def _sleeps(path: Path) -> list[int]:
    """Return the lines that call ``time.sleep`` or import ``sleep``."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr == "sleep")
        or (isinstance(node, ast.ImportFrom) and any(alias.name == "sleep" for alias in node.names))
    ]


def test_no_test_sleeps() -> None:
    sleepers = {_name(path): lines for path in FILES if (lines := _sleeps(path))}
    assert {name: lines for name, lines in sleepers.items() if name not in SLEEP_EXCEPTIONS} == {}, (
        "wait for an event with a deadline (services.wait_until); where the time is the scenario, support.pauses.pause"
    )
    assert sleepers.keys() == SLEEP_EXCEPTIONS.keys()


def test_a_folder_of_support_has_at_most_twelve_modules() -> None:
    support = [path for path in FILES if TESTS / "support" in path.parents and path.stem != "__init__"]
    counts = Counter(path.parent for path in support)
    assert [folder for folder, count in counts.items() if count > FOLDER_MODULES_MAX] == []
    assert sorted(path.name for path in TESTS.glob("*.py")) == ["conftest.py", "promises.py", "run.py"]


def test_no_two_classes_of_support_have_one_name() -> None:
    classes = Counter(
        node.name
        for path in FILES
        if {TESTS / "support", TESTS / "services"} & {*path.parents}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in classes.items() if count > 1] == []
