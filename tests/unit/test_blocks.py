"""Blocks: so many runs, so many bytes, in order, and nothing is lost that does not fit yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheelbeat.dispatch.backlog import Backlog
from celery_wheelbeat.dispatch.fast_lane.batches import BLOCK_BYTES, SendBlocks
from celery_wheelbeat.dispatch.pending import PendingRuns
from celery_wheelbeat.engine.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

RUNS = 10


def backlog_of(runs: int) -> Backlog:
    """Return a backlog of the runs 0 … ``runs`` - 1."""
    backlog = Backlog(Ledger(), limit=1000, keep_all=lambda ids: np.ones(len(ids), np.bool_))
    backlog.adopt(PendingRuns(np.arange(runs), np.arange(runs), np.zeros(runs, np.int32)))
    return backlog


@given(
    sizes=st.lists(st.integers(1, 2 * BLOCK_BYTES) | st.integers(1, BLOCK_BYTES // 5), min_size=1, max_size=60),
    rooms=st.lists(st.integers(1, 4), min_size=1),
)
def test_every_run_is_in_one_block_in_order_and_none_is_too_large(sizes: Sequence[int], rooms: Sequence[int]) -> None:
    backlog = backlog_of(len(sizes))
    blocks = SendBlocks(backlog, RUNS)
    found: list[int] = []
    for turn in range(1000):
        room = rooms[turn % len(rooms)]
        count = blocks.count(room)
        if not count:
            break
        taken = blocks.take(count)
        ids = [job_id for block in taken for job_id in block.pairs.ids.tolist()]
        for block in blocks.fit(taken, np.array([sizes[job_id] for job_id in ids], np.int64), room):
            runs = block.pairs.ids.tolist()
            assert 0 < len(runs) <= RUNS
            assert len(runs) == 1 or sum(sizes[run] for run in runs) <= BLOCK_BYTES
            assert backlog.confirm_block(block.token).ids.tolist() == runs
            found += runs
    assert found == list(range(len(sizes)))
    assert backlog.pending == 0


def test_small_runs_are_not_cut_and_large_ones_go_alone() -> None:
    blocks = SendBlocks(backlog_of(30), RUNS)
    small = blocks.fit(blocks.take(2), np.full(20, 100), 2)
    assert [block.pairs.ids.tolist() for block in small] == [list(range(10)), list(range(10, 20))]
    large = blocks.fit(blocks.take(1), np.full(10, BLOCK_BYTES + 1), 3)
    assert [block.pairs.ids.tolist() for block in large] == [[20], [21], [22]]
    assert blocks.count(100) == 7


@pytest.mark.parametrize("closed", [1, 7])
def test_what_has_left_a_block_stays_away_from_both_halves(closed: int) -> None:
    backlog = backlog_of(10)
    token, _ = backlog.take_block(10)
    backlog.skip(backlog.break_up(token, [closed]), "removed")
    rest = backlog.cut(token, 4)
    assert [*backlog.confirm_block(token).ids, *backlog.confirm_block(rest).ids] == [
        number for number in range(10) if number != closed
    ]
    assert backlog.pending == 0
