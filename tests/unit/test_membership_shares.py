"""Which beat sends which shard: frozen results, and who counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from celery_wheelbeat.membership.shares import Candidate, assign, senders

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "share_vectors.json").read_text("utf-8"))
NEW = Candidate(1, "a", ready=True, able=True, offset_ms=0, damped=False, active=16, shards=256)


def candidate(order: int, **changed: object) -> Candidate:
    return NEW._replace(order=order, beat_id=f"beat-{order}", **changed)


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: f"{len(case['beats'])} beats, {case['shards']} shards")
def test_no_release_moves_a_shard(case: dict[str, object]) -> None:
    """A release that assigned otherwise would send twice beside an older one."""
    beats, shards = case["beats"], case["shards"]
    found = assign(beats, shards)
    assert "".join(f"{sorted(beats).index(found[shard]):x}" for shard in range(shards)) == case["owners"]


def test_without_beats_no_shard_has_an_owner() -> None:
    assert assign([], 256) == {}


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], ["beat-1"]),
        ([candidate(3), candidate(2)], ["beat-1", "beat-2", "beat-3"]),
        ([candidate(2, ready=False)], ["beat-1"]),
        ([candidate(2, able=False)], ["beat-1"]),
        ([candidate(2, damped=True)], ["beat-1"]),
        ([candidate(2, shards=128)], ["beat-1"]),
        ([candidate(2, offset_ms=5_001)], ["beat-1"]),
        ([candidate(2, offset_ms=-5_001)], ["beat-1"]),
        ([candidate(2, offset_ms=5_000)], ["beat-1", "beat-2"]),
        ([candidate(2, active=1)], ["beat-1", "beat-2"]),
    ],
)
def test_who_sends_beside_a_good_beat(others: list[Candidate], expected: list[str]) -> None:
    assert senders([candidate(1), *others]) == expected


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        ([], []),
        ([candidate(1, ready=False)], []),
        ([candidate(1, able=False), candidate(2, able=False)], []),
        ([candidate(1, active=1), candidate(2)], ["beat-1"]),
        ([candidate(1, active=1, able=False), candidate(2)], ["beat-2"]),
        ([candidate(1, damped=True), candidate(2, damped=True)], ["beat-1", "beat-2"]),
        ([candidate(1, offset_ms=12_000), candidate(2, offset_ms=-3_000)], ["beat-1", "beat-2"]),
        ([candidate(1, offset_ms=12_000), candidate(2, offset_ms=900)], ["beat-2"]),
        ([candidate(1, shards=128), candidate(2)], ["beat-1"]),
    ],
)
def test_who_sends(candidates: list[Candidate], expected: list[str]) -> None:
    assert senders(candidates) == expected


def test_twenty_beats_of_which_four_send() -> None:
    beats = [candidate(number, active=4) for number in range(1, 21)]
    assert senders(beats) == ["beat-1", "beat-2", "beat-3", "beat-4"]
    assert senders(beats[:7] + beats[8:]) == senders(beats), "the end of one that does not send moves nothing"
