"""How tests are spread over the processes of ``--dist loadfile``: long files first, and no file that is the tail.

A process runs whole files, because the tests of a file share what its fixtures start. The tests of a file in ``APART``
share nothing and only compute: they fill the gaps, one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

LONG_FIRST = ("tests/acceptance", "tests/integration", "tests/property", "tests/simulation", "tests/unit")
APART = ("tests/simulation/test_simulation.py",)


class SpreadScheduling(LoadFileScheduling):
    """Files in the order in which they were collected, those of ``APART`` test by test."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(APART) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SpreadScheduling | None:
    """Replace ``loadfile``, which begins with the files that have the most tests: those of the unit tests."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return SpreadScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by folder; within one, the order stays random."""
    items.sort(key=lambda item: next((at for at, folder in enumerate(LONG_FIRST) if folder in item.nodeid), 0))
