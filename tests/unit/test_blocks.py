"""Blocks: so many runs, so many bytes, in order, and every run is in one of them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheelbeat.dispatch.fast_lane.batches import BLOCK_BYTES, block_ends

if TYPE_CHECKING:
    from collections.abc import Sequence

RUNS = 10


@given(
    sizes=st.lists(st.integers(1, 2 * BLOCK_BYTES) | st.integers(1, BLOCK_BYTES // 5), min_size=1, max_size=60),
)
def test_every_run_is_in_one_block_and_none_is_too_large(sizes: Sequence[int]) -> None:
    ends = block_ends(np.array(sizes, np.int64), RUNS)
    assert ends[-1] == len(sizes)
    for start, stop in pairwise([0, *ends]):
        assert 0 < stop - start <= RUNS
        assert stop - start == 1 or sum(sizes[start:stop]) <= BLOCK_BYTES


@pytest.mark.parametrize(
    ("sizes", "ends"),
    [
        ([100] * 20, [10, 20]),
        ([100] * 25, [10, 20, 25]),
        ([BLOCK_BYTES + 1] * 3, [1, 2, 3]),
        ([1, BLOCK_BYTES, 1], [1, 2, 3]),
        ([], []),
    ],
)
def test_small_runs_are_not_cut_and_large_ones_go_alone(sizes: Sequence[int], ends: Sequence[int]) -> None:
    assert block_ends(np.array(sizes, np.int64), RUNS) == ends
