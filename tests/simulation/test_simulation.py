"""Worlds under a seed: two hundred in every run of the tests, twenty thousand in ``make soak-simulation``."""

from __future__ import annotations

import logging
import os
import random
from typing import TYPE_CHECKING

import pytest

from simulation.world import FAULTS, World, run_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS = 4
WORLDS = 50
"""Worlds of one part."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A world logs every fault that it injects."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.promise("an-edit-is-never-lost")
@pytest.mark.promise("never-early")
@pytest.mark.promise("same-run-same-id")
@pytest.mark.promise("every-due-run-is-accounted-for")
@pytest.mark.parametrize("part", range(PARTS))
def test_worlds(part: int) -> None:
    reports = [run_seed(seed) for seed in range(part * WORLDS, (part + 1) * WORLDS)]
    assert sum(report.runs for report in reports) > 20 * WORLDS
    assert sum(report.lives for report in reports) > WORLDS
    assert {fault for report in reports for fault in report.faults} == set(FAULTS)


def test_the_same_seed_gives_the_same_world() -> None:
    def life_of(seed: int) -> tuple[object, ...]:
        world = World(seed)
        return world.run(), world.broker.messages, world.table.history, world.clock.wall_ms()

    assert life_of(7) == life_of(7)
    assert life_of(7) != life_of(8)


@pytest.mark.promise("every-due-run-is-accounted-for")
@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_many_worlds() -> None:
    """``WHEELBEAT_SEEDS`` worlds from a first seed that is drawn each time, unless ``WHEELBEAT_SEED`` names it."""
    first = int(os.environ.get("WHEELBEAT_SEED") or random.SystemRandom().randrange(10**6, 10**9))
    for seed in range(first, first + int(os.environ.get("WHEELBEAT_SEEDS") or 20_000)):
        run_seed(seed)
