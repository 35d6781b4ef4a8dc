"""Pages that name tests: every test that they name exists, and every report that a test claims is on its page."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
PAGE = (DOCS / "reference" / "public-reports.md").read_text()
FAULTS = (DOCS / "explanation" / "faults.md").read_text()
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


@cache
def _functions(path: Path) -> dict[str, str]:
    """Test functions of a module, with their docstrings; methods of test classes too."""
    tree = ast.parse(path.read_text())
    return {node.name: ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("page", "at_least"), [(PAGE, 80), (FAULTS, 40)], ids=["reports", "faults"])
def test_every_test_on_the_page_exists(page: str, at_least: int) -> None:
    named = NAMED.findall(page)
    assert len(named) > at_least
    missing = [f"{path}::{name}" for path, name in named if name not in _functions(TESTS / path)]
    assert missing == []


def test_every_report_is_on_the_page_once() -> None:
    ids = re.findall(r"^\| (B\d+) \|", PAGE, flags=re.MULTILINE)
    assert len(ids) == len(set(ids))
    claimed = {
        found
        for path in TESTS.rglob("test_bug_cases_*.py")
        for text in _functions(path).values()
        for found in re.findall(r"\bB\d{2,3}\b", text)
    }
    assert claimed <= set(ids)
