"""Beats that share the work in worlds of kills, pauses, partitions and wrong clocks: nothing is lost, little is copied.

``World`` runs the pure modules; a failing seed is printed and repeats its world.
"""

from __future__ import annotations

import pytest
from support.membership.world import FAULTS, GONE_MS, GRACEFUL, HEARTBEAT_MS, WATCH_MS, Settings, World, drawn

WORLDS = 200
SOAK_WORLDS = 10_000
UNOWNED_MS = GONE_MS + 2 * HEARTBEAT_MS + WATCH_MS


def check(seeds: range) -> None:
    for seed in seeds:
        world = drawn(seed).run()
        where = f"seed {seed}, {world.settings}"
        assert world.lost() == [], where
        assert world.longest_unowned_ms <= UNOWNED_MS, where


def total(count: int, *faults: str, without: str = "") -> int:
    """Return the shard-milliseconds that were sent twice in ``count`` worlds of three beats and two rolls."""
    settings = Settings(faults=faults, without=frozenset({without}))
    return sum(World(seed, settings).run().copied_ms() for seed in range(count))


def test_nothing_is_lost_and_every_shard_is_soon_taken() -> None:
    check(range(WORLDS))


@pytest.mark.soak
def test_nothing_is_lost_in_ten_thousand_worlds() -> None:
    check(range(WORLDS, WORLDS + SOAK_WORLDS))


@pytest.mark.parametrize("active", [1, 2, 16])
def test_beats_that_come_and_go_copy_nothing(active: int) -> None:
    for seed in range(10):
        world = World(seed, Settings(faults=GRACEFUL, active=active)).run()
        assert (world.lost(), world.copied_ms(), world.two_owners_ms) == ([], 0, 0), f"seed {seed}"


@pytest.mark.parametrize("fault", ["cut database", "cut redis", "database down", "slow", "forget"])
def test_a_fault_of_one_roll_copies_nothing(fault: str) -> None:
    """With two rolls, a beat is heard on the other one."""
    assert total(5, fault) == 0


@pytest.mark.parametrize(
    ("rule", "faults", "factor"),
    [("pulse", ("pause",), 2), ("left", GRACEFUL, 0), ("announce", GRACEFUL, 0), ("left", FAULTS, 2)],
)
def test_without_a_rule_more_is_copied(rule: str, faults: tuple[str, ...], factor: int) -> None:
    assert total(10, *faults, without=rule) > factor * total(10, *faults)
