"""Blocks: what waits in a backlog, cut into what is sent together: so many runs, and so many bytes.

Both bounds are needed: a thousand messages are a megabyte, or hundreds of them where jobs have large arguments. What
was taken and does not fit now is kept, in order, and taken first the next time. Sizes are estimates; no run is too
large to be sent, the largest go alone.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.backlog import Backlog
    from celery_wheelbeat.jobs import Int64s
    from celery_wheelbeat.pairs import Pairs

BLOCK_BYTES = 1 << 20
"""Most of what the jobs' own pieces of a block have; with what all messages have in common, a block has about twice
that."""


class Block(NamedTuple):
    """Pairs that are sent together."""

    token: int
    """Of the backlog."""
    pairs: Pairs


class Layout:
    """Which runs of several blocks, in columns one block behind the other, belong to which of them."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        self._ends = np.cumsum([len(block.pairs.ids) for block in blocks])

    def parts(self, positions: NDArray[np.intp]) -> Iterator[tuple[int, slice, NDArray[np.intp]]]:
        """Yield each block that has some of ``positions`` (ascending): its number, which of them, where in it."""
        begin = start = 0
        for number, (end, stop) in enumerate(
            zip(self._ends.tolist(), np.searchsorted(positions, self._ends).tolist(), strict=True)
        ):
            if stop > start:
                yield number, slice(start, stop), positions[start:stop] - begin
            begin, start = end, stop


class Blocks:
    """See the module. Owned by the scheduling thread."""

    def __init__(self, backlog: Backlog, runs: int) -> None:
        """``runs``: most of one block."""
        self._backlog = backlog
        self._runs = runs
        self._rest: deque[Block] = deque()

    def count(self, most: int) -> int:
        """Return how many blocks ``take`` would find, up to ``most``."""
        return min(most, len(self._rest) or -(-self._backlog.waiting // self._runs))

    def take(self, count: int) -> list[Block]:
        """Return the next ``count`` blocks, no more than ``Blocks.count`` says."""
        if self._rest:
            return [self._rest.popleft() for _ in range(count)]
        return [Block(*self._backlog.take_block(self._runs)) for _ in range(count)]

    def fit(self, blocks: Sequence[Block], sizes: Int64s, room: int) -> list[Block]:
        """Cut ``blocks`` where they have too many bytes, and return the first ``room``; the others are kept.

        ``sizes``: bytes of each run, through all blocks.
        """
        fitting: list[Block] = []
        start = 0
        for block in blocks:
            stop = start + len(block.pairs.ids)
            fitting += self._cut(block, sizes[start:stop])
            start = stop
        self._rest.extendleft(reversed(fitting[room:]))
        return fitting[:room]

    def _cut(self, block: Block, sizes: Int64s) -> list[Block]:
        pieces = []
        for at in reversed(_cuts(sizes)):
            token = self._backlog.cut(block.token, at)
            pieces.append(Block(token, block.pairs.at(slice(at, None))))
            block = block._replace(pairs=block.pairs.at(slice(at)))
        return [block, *reversed(pieces)]


def _cuts(sizes: Int64s) -> list[int]:
    """Return the positions at which something new begins, so that nothing in between is too large unless it is one."""
    if sizes.sum() <= BLOCK_BYTES:
        return []
    cuts = []
    together = 0
    for position, size in enumerate(sizes.tolist()):
        if together and together + size > BLOCK_BYTES:
            cuts.append(position)
            together = 0
        together += size
    return cuts
