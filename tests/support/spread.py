"""How tests are spread over the processes of ``--dist loadfile``.

A process runs whole files, because the tests of a file share what its fixtures start. The tests of a file in ``APART``
share nothing, so they go one by one. Files that wait for servers and processes are mixed with files that compute, so
that the cores are busy all the time. Of the former, the ``LONG`` ones come first and none comes last: one long file
would be waited for alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

WAITING = ("tests/acceptance/", "tests/integration/")
APART = ("tests/simulation/test_simulation.py::", "tests/acceptance/test_claims_death.py::")
LONG = tuple(
    f"tests/{file}.py"
    for file in (
        "integration/test_other_sites",
        "acceptance/test_claims_election",
        "acceptance/test_claims_death",
        "integration/admin/test_admin_list",
        "integration/changelog/test_clocks_apart",
        "integration/test_lanes_tls",
        "acceptance/test_admin_browser_many",
        "acceptance/test_lanes_observers",
        "acceptance/test_bug_cases_beat",
        "integration/test_claim_stores",
        "acceptance/test_later_whole_path",
        "integration/admin/test_any_row",
        "integration/changelog/test_load_joined",
        "acceptance/test_admin_browser",
        "acceptance/test_claims_state_table",
        "integration/test_lanes_shapes",
        "integration/admin/test_import_celery_beat",
        "acceptance/test_beat_neighbours",
        "integration/test_lanes_sentinel",
        "integration/admin/test_admin_form",
        "acceptance/test_demo",
        "acceptance/test_claims_overlap",
        "acceptance/test_dispatch_faults",
        "acceptance/test_beat_restart",
        "acceptance/test_beat_signals",
        "acceptance/test_whole_path",
        "acceptance/test_lanes_beat",
        "acceptance/test_beat_plain",
    )
)
"""Files that take longest."""
LATEST = 0.8
"""The share of the queue before which every file that waits has begun."""


def unit_of(nodeid: str) -> str:
    """Return the name of what goes to one process: a file, or a test of ``APART``."""
    return nodeid if nodeid.startswith(APART) else nodeid.partition("::")[0]


class SpreadScheduling(LoadFileScheduling):
    """Units in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SpreadScheduling | None:
    """Replace ``loadfile``, which begins with the files that have the most tests: those of the unit tests."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return SpreadScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix both kinds of files evenly; the order within a kind stays random, but for the long files."""
    units = list(dict.fromkeys(unit_of(item.nodeid) for item in items))
    waiting = sorted((unit for unit in units if unit.startswith(WAITING)), key=lambda unit: not unit.startswith(LONG))
    computing = [unit for unit in units if not unit.startswith(WAITING)]
    places = {unit: at / len(waiting) * LATEST for at, unit in enumerate(waiting)}
    places |= {unit: at / len(computing) for at, unit in enumerate(computing)}
    items.sort(key=lambda item: places[unit_of(item.nodeid)])
