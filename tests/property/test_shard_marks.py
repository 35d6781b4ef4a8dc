"""Marks by shard: whatever is merged, encoded and moved, no mark is later than it was, unless time has passed it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheelbeat.engine.sharing.shard_marks import (
    GROUPS,
    UNKNOWN_MS,
    InvalidShardMarks,
    ShardMarks,
)
from celery_wheelbeat.schedules.kinds import NEVER_MS

pytestmark = pytest.mark.promise("every-due-run-is-accounted-for")

NOW_MS = 1_764_000_000_000
MARKS = st.one_of(
    st.just(UNKNOWN_MS),
    st.integers(NOW_MS - 20_000, NOW_MS),
    st.integers(-(2**53), 2**53),
    st.sampled_from([0, NOW_MS]),
)
SHARDS = st.sampled_from([1, 2, 4, 64, 256])


@st.composite
def shard_marks(draw: st.DrawFn, shards: int | None = None) -> ShardMarks:
    """Draw marks, some of them unknown, often many of them equal."""
    count = draw(SHARDS) if shards is None else shards
    few = draw(st.lists(MARKS, min_size=1, max_size=40))
    picks = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, len(few), count)
    return ShardMarks(np.array(few, np.int64)[picks])


@given(shard_marks(), shard_marks(), shard_marks())
def test_marks_merge_in_any_order(one: ShardMarks, two: ShardMarks, three: ShardMarks) -> None:
    merged = one.merged(two).merged(three)
    assert merged == three.merged(one.merged(two)) == two.merged(three.merged(one))
    assert merged.merged(one) == merged
    assert all(merged.covers(part) for part in (one, two, three))
    size = len(merged)
    every = np.array([part.resized(size).ms for part in (one, two, three)])
    assert (merged.ms == every.max(axis=0)).all()


@given(shard_marks())
def test_the_encoding_lowers_a_mark_and_never_raises_one(marks: ShardMarks) -> None:
    read = ShardMarks.read(json.loads(json.dumps(marks.encoded())))
    assert (read.known == marks.known).all()
    assert marks.covers(read)
    different = len(np.unique(marks.ms[marks.known]))
    assert len(np.unique(read.ms[read.known])) == min(different, GROUPS)
    if different <= GROUPS:
        assert read == marks


def test_the_encoding_is_exact_where_marks_differ_much() -> None:
    """A shard with an old pending run must not pull the others back."""
    spread = np.arange(256) % 40 * 3 + NOW_MS
    spread[7] = NOW_MS - 3_600_000
    read = ShardMarks.read(ShardMarks(spread).encoded())
    assert read.ms[7] == NOW_MS - 3_600_000
    assert (spread - read.ms).max() <= 120


@given(shard_marks(256), st.integers(0, 2**53), st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), MARKS)))
def test_a_mark_moves_up_to_the_oldest_pending_run_of_its_own_shard(
    marks: ShardMarks, passed_ms: int, pending: list[tuple[int, int]]
) -> None:
    pending = [(job_id, fire_ms) for job_id, fire_ms in pending if fire_ms != UNKNOWN_MS]
    oldest_ms = np.full(256, NEVER_MS)
    for job_id, fire_ms in pending:
        oldest_ms[job_id % 256] = min(oldest_ms[job_id % 256], fire_ms)
    moved = marks.moved(passed_ms, oldest_ms)
    assert moved.covers(marks)
    for shard in range(256):
        own = [fire_ms for job_id, fire_ms in pending if job_id % 256 == shard]
        allowed_ms = min([passed_ms, *(fire_ms - 1 for fire_ms in own)])
        assert moved.ms[shard] == max(marks.ms[shard], allowed_ms)


@given(shard_marks(), SHARDS)
def test_another_number_of_shards_lowers_marks_at_most(marks: ShardMarks, shards: int) -> None:
    """A job with id i lies in shard i modulo the number of shards, before and after."""
    ids = np.arange(512)
    before, after = marks.of(ids), marks.resized(shards).of(ids)
    assert (after <= before).all()
    if shards >= len(marks):
        assert (after == before).all()


@given(shard_marks())
def test_a_shard_without_a_mark_gets_the_lowest_known_one(marks: ShardMarks) -> None:
    filled = marks.filled()
    assert filled.known.all() == marks.known.any()
    assert filled.covers(marks)
    assert filled.lowest_ms == marks.lowest_ms
    assert filled.latest_ms == marks.latest_ms


def test_unknown_marks_have_no_number() -> None:
    nothing = ShardMarks.uniform(4, UNKNOWN_MS)
    assert (nothing.lowest_ms, nothing.latest_ms, nothing.filled()) == (None, None, nothing)
    assert ShardMarks.read(nothing.encoded()) == nothing


def test_marks_can_be_bounded() -> None:
    marks = ShardMarks(np.array([1, 5, UNKNOWN_MS, 9]))
    assert marks.capped(5).ms.tolist() == [1, 5, UNKNOWN_MS, 5]
    assert marks.at_least(5).ms.tolist() == [5, 5, 5, 9]
    with pytest.raises(ValueError, match="read-only"):
        marks.ms[0] = 3
    with pytest.raises(InvalidShardMarks, match="3 shards: expected a power of two"):
        ShardMarks(np.array([1, 2, 3]))


GOOD: dict[str, Any] = {"shards": 4, "mask": "f", "mark_ms": 7, "behind": {"1": 3}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"shards": 0}, {"shards": 3}, {"shards": 10**9}, {"shards": "many"}, {"mask": "1f"}, {"mask": "-1"},
        {"mask": 3}, {"mask": ""}, {"mark_ms": None}, {"mark_ms": "7"}, {"mark_ms": True}, {"mark_ms": 2**70},
        {"behind": {"1": None}}, {"behind": {"zz": 3}}, {"behind": [1]}, {"behind": {"1" * 400: 3}},
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidShardMarks, match=r"cannot be read|power of two"):
        ShardMarks.read({**GOOD, **wrong})


def test_a_group_that_is_said_to_be_later_does_not_raise_a_mark() -> None:
    assert ShardMarks.read({**GOOD, "behind": {"1": 3, "2": 99, "3": 5}}).ms.tolist() == [3, 5, 7, 7]
