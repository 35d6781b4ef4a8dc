"""The page of public reports: every test that it names exists, and every id that a test claims is on the page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "reference" / "public-reports.md").read_text()
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def _functions(path: Path) -> dict[str, str]:
    """Test functions of a module, with their docstrings; methods of test classes too."""
    tree = ast.parse(path.read_text())
    return {node.name: ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_test_on_the_page_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 80
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
