"""The promises of the documentation, and the tests that hold them: what ``docs/explanation/promises.md`` is made from.

Under the heading "What is promised", a bullet of the README or a paragraph of the guarantees begins with a promise in
bold. Its id is that text with hyphens. A test names what it holds with ``pytest.mark.promise(id)``.
``python tests/promises.py`` writes the page.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/explanation/promises.md"
SOURCES = ("README.md", "docs/explanation/guarantees.md")
HEADING = """\
# Promises and their tests

Each promise of the [README](../../README.md#what-is-promised) and of the
[guarantees](guarantees.md), with the tests that prove it (below `tests/`). `python tests/promises.py` writes this page
from the markers of the tests, and a test fails if a promise has no test.

| promise | tests |
|---|---|
"""


class Holder(NamedTuple):
    """A test, or a class of tests, and what its markers say."""

    name: str
    promises: list[str]
    soak: bool


def promised() -> dict[str, str]:
    """Return the text of every promise by its id."""
    found = {}
    for source in SOURCES:
        sections = re.split(r"^## ", (ROOT / source).read_text(), flags=re.MULTILINE)
        (section,) = (section for section in sections if section.startswith("What is promised"))
        for bold in re.findall(r"^(?:\* )?\*\*(.+?)\*\*", section, re.DOTALL | re.MULTILINE):
            text = " ".join(bold.split()).rstrip(".")
            found[re.sub(r"[^\w]+", "-", text.lower())] = text
    return found


def holders() -> list[Holder]:
    """Return every test that names a promise, in the order of their files."""
    return [
        Holder(f"{path.relative_to(ROOT / 'tests').as_posix()}::{name}", promises, soak)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name, promises, soak in _marked(ast.parse(path.read_text()))
    ]


def page() -> str:
    """Return the page as it has to be."""
    found = holders()
    rows = []
    for promise, text in sorted(promised().items()):
        tests = [f"`{one.name}`{' (soak)' if one.soak else ''}" for one in found if promise in one.promises]
        rows.append(f"| {text} | {'<br>'.join(tests)} |\n")
    return HEADING + "".join(rows)


def _marked(module: ast.Module) -> Iterator[tuple[str, list[str], bool]]:
    everywhere = any("mark.soak" in ast.unparse(node) for node in module.body if "pytestmark" in ast.unparse(node))
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            marks = [ast.unparse(decorator) for decorator in node.decorator_list]
            promises = [found[1] for mark in marks if (found := re.fullmatch(r"pytest\.mark\.promise\('(.+)'\)", mark))]
            if promises:
                yield node.name, promises, everywhere or any(mark.endswith("mark.soak") for mark in marks)


if __name__ == "__main__":
    PAGE.write_text(page())
