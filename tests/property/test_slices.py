"""Copies of many slices at once against one copy after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from celery_wheelbeat.dispatch.messages.byte_ranges import LENGTHS_MAX, ByteRanges


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=200), st.randoms(use_true_random=False))
@example([b"", b"a"], None)
@example([bytes([number]) * number for number in range(LENGTHS_MAX + 20)], None)
@example([b"x" * 70_000, b"y" * 65_536, b""], None)
def test_pieces_arrive_whole_and_where_they_belong(pieces: list[bytes], random: object) -> None:
    order = list(range(len(pieces)))
    if random is not None:
        random.shuffle(order)  # type: ignore[attr-defined]
    slices = ByteRanges.of(pieces)
    chosen = np.array(order)
    length = slices.length[chosen]
    at = length.cumsum() - length + np.arange(len(order))  # an octet between each two is nobody's
    out = np.full(int(length.sum()) + len(order), ord("."), np.uint8)
    ByteRanges(slices.buffer, slices.start[chosen], length).copy_to(out, at)
    assert out.tobytes() == b"".join(pieces[number] + b"." for number in order)
