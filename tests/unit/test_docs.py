"""Every page of the documentation can be reached from the index, and no link leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import promises
import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BESIDE = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "example_project/README.md"]
INDEXES = [DOCS / "index.md", DOCS / "decisions/README.md"]
PAGES = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in BESIDE)]
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)|\]\((#[^)\s]+)\)")


def _links(page: Path) -> list[tuple[str, str]]:
    """Relative links of ``page`` as (path, anchor); code blocks do not count."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    found = [(path, anchor or own) for path, anchor, own in LINK.findall(text)]
    return [(path, anchor) for path, anchor in found if "://" not in path]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in _links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}, which does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), f"{page.name} links to {path}{anchor}; there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_promises_what_no_broker_can(page: Path) -> None:
    assert not re.search(r"exactly[\s-]+once", page.read_text(), flags=re.IGNORECASE)


def test_indexes_list_every_page() -> None:
    listed = {(index.parent / path).resolve() for index in INDEXES for path, _ in _links(index)}
    missing = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if page.resolve() not in listed]
    assert sorted(missing) == ["index.md"]


@pytest.mark.parametrize("index", INDEXES, ids=lambda index: index.relative_to(ROOT).as_posix())
def test_indexes_name_pages_by_their_titles(index: Path) -> None:
    entries = re.findall(r"^(?:\* |\| \d+ \| )\[(.+?)\]\(([^)]+\.md)\)", index.read_text(), flags=re.MULTILINE)
    assert len(entries) >= 25
    for title, path in entries:
        heading = (index.parent / path).read_text().splitlines()[0].removeprefix("# ")
        assert re.sub(r"^\d+\. ", "", heading) == title


def test_a_new_reader_needs_at_most_twelve_pages() -> None:
    start = (DOCS / "decisions/README.md").read_text().partition("## Where to start")[2].partition("\n## ")[0]
    assert 0 < len(re.findall(r"^\d+\. ", start, flags=re.MULTILINE)) <= 12


def test_architecture_draws_the_rooms_of_the_package() -> None:
    page = (DOCS / "explanation/architecture.md").read_text()
    drawing = page.partition("## Rooms")[2].split("```")[1]
    drawn = sorted(re.findall(r"\b([a-z]+/|[a-z]+\.py)", drawing))
    package = ROOT / "celery_wheelbeat"
    rooms = [f"{room.parent.name}/" for room in package.glob("*/__init__.py")]
    files = [file.name for file in package.glob("*.py") if file.name != "__init__.py"]
    assert drawn == sorted(rooms + files)


def test_each_soak_test_belongs_to_the_target_of_a_promise() -> None:
    recipes = re.findall(r"^\t\$\(SOAK\) (.+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    named = re.findall(r"tests/[\w/*.]+", " ".join(recipes))
    covered = {file for name in named for found in ROOT.glob(name) for file in (found, *found.rglob("test_*.py"))}
    soak = {file for file in (ROOT / "tests").rglob("test_*.py") if "mark.soak" in file.read_text()}
    assert len(soak - {Path(__file__)}) > 10
    assert soak - covered - {Path(__file__)} == set()


def test_every_promise_has_a_test_in_make_test_and_every_marker_a_promise() -> None:
    promised = promises.promised().keys()
    assert len(promised) >= 10
    holders = promises.holders()
    assert {promise for one in holders for promise in one.promises} - promised == set(), f"promises are {[*promised]}"
    held = {promise for one in holders if not one.soak for promise in one.promises}
    assert promised - held == set(), "mark a test with pytest.mark.promise"


def test_the_page_of_promises_is_up_to_date() -> None:
    assert promises.PAGE.read_text() == promises.page(), "run python tests/promises.py"
