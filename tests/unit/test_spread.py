"""Files that wait and files that compute are mixed, long ones come first, and no test leaves its file."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.spread import LONG, pytest_collection_modifyitems, unit_of


def test_kinds_are_mixed_and_what_computes_comes_last() -> None:
    files = [
        f"tests/{folder}/test_{at}.py" for folder in ("unit", "acceptance", "integration/admin") for at in range(9)
    ]
    worlds = [f"tests/simulation/test_simulation.py::test_worlds[{part}]" for part in range(9)]
    items: list[Any] = [SimpleNamespace(nodeid=f"{file}::test_{at}") for file in files for at in range(3)]
    items += [SimpleNamespace(nodeid=world) for world in worlds]
    items.append(SimpleNamespace(nodeid=f"{LONG[0]}::test_0"))
    pytest_collection_modifyitems(items)

    units = [unit for unit, _ in groupby(unit_of(item.nodeid) for item in items)]
    assert sorted(units) == sorted([*files, *worlds, LONG[0]]), "each unit is in one piece"
    assert LONG[0] in units[:2]
    waits = [unit.startswith(("tests/acceptance", "tests/integration")) for unit in units]
    assert all(any(waits[at : at + 4]) and not all(waits[at : at + 4]) for at in range(24))
    assert not any(waits[-3:])


def test_the_long_files_exist() -> None:
    root = Path(__file__).parents[2]
    assert [name for name in LONG if not (root / name).exists()] == []
