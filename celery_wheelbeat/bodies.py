"""Bodies: the pieces of messages that belong to single jobs, kept because they are the same in every run.

A bounded cache in front of the renderer: 16 bytes of index per job and one slice of a chunk. A job is known by the
ref of its payload *and* by the age of that ref's page, so a ref that was given to another job never finds the old one's
pieces. What is not kept is rendered again, never wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.envelopes import Hole, Pieces
from celery_wheelbeat.payloads import PAGE_BITS, PAGE_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.jobs import Int64s, UInt32s

_CHUNK_BITS = 20
CHUNK_BYTES = 1 << _CHUNK_BITS
_PLACE_BITS = 40
"""Number of the chunk and offset in it; the other bits are the number of the skeleton."""
_NOWHERE = np.uint64(2**64 - 1)
SKELETONS_MAX = (1 << (64 - _PLACE_BITS)) - 1
CHUNKS_MAX = 1 << (_PLACE_BITS - _CHUNK_BITS)
_SHORT_MAX = 2**16 - 1


class Columns(NamedTuple):
    """The pieces of many jobs, one list per kind of piece."""

    opening: list[bytes]
    body: list[bytes]
    reprs: list[bytes]
    name: list[bytes]

    @classmethod
    def of(cls, pieces: Sequence[Pieces]) -> Columns:
        """Turn pieces per job into columns."""
        return cls(*(list(column) for column in zip(*pieces, strict=True))) if pieces else cls([], [], [], [])

    def by_hole(self) -> dict[Hole, Sequence[bytes]]:
        """Return what the renderer fills in."""
        return {Hole.OPENING: self.opening, Hole.BODY: self.body, Hole.REPRS: self.reprs, Hole.NAME: self.name}


class Bodies:
    """The cache. ``limit_bytes`` bounds its chunks; a job that does not fit any more is rendered for each run."""

    def __init__(self, limit_bytes: int) -> None:
        self.resident_bytes = 0
        self._limit_bytes = limit_bytes
        self._chunks: list[bytes] = []
        self._place: NDArray[np.uint64] = np.full(0, _NOWHERE)
        """By ref: number of the skeleton, then of the chunk, then offset."""
        self._body_length: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._reprs_length: NDArray[np.uint16] = np.zeros(0, np.uint16)
        self._name_length: NDArray[np.uint16] = np.zeros(0, np.uint16)
        self._births: Int64s = np.zeros(0, np.int64)
        """By page: when it was made, as far as this cache has seen."""

    def clear(self) -> None:
        """Forget everything."""
        self._chunks.clear()
        self.resident_bytes = 0
        self._place[:] = _NOWHERE

    def columns(
        self,
        refs: UInt32s,
        births: Int64s,
        skeleton: int,
        opening_width: int,
        render: Callable[[NDArray[np.intp]], Sequence[Pieces]],
    ) -> Columns:
        """Return the pieces of ``refs`` for the skeleton of that number, whose openings are ``opening_width`` long.

        ``births[page]`` is when the page of a ref was made. ``render`` is asked for the pieces at the positions that
        are not known; what it raises goes on to the caller and leaves the cache as it was.
        """
        self._notice(births)
        missing = self._missing(refs, skeleton)
        if not len(missing):
            return self._gather(refs, opening_width)
        rendered = render(missing)
        self._keep(refs[missing], skeleton, rendered)
        if not len(self._missing(refs, skeleton)):
            return self._gather(refs, opening_width)
        known = np.setdiff1d(np.arange(len(refs)), missing)
        pieces: list[Pieces] = [_NONE] * len(refs)
        for position, found in zip(
            known.tolist(), zip(*self._gather(refs[known], opening_width), strict=True), strict=True
        ):
            pieces[position] = Pieces(*found)
        for position, found in zip(missing.tolist(), rendered, strict=True):
            pieces[position] = found
        return Columns.of(pieces)

    def _missing(self, refs: UInt32s, skeleton: int) -> NDArray[np.intp]:
        return np.flatnonzero(self._place[refs] >> np.uint64(_PLACE_BITS) != np.uint64(skeleton))

    def _notice(self, births: Int64s) -> None:
        """Forget the pieces of pages that were made anew since."""
        if len(births) > len(self._births):
            self._grow(len(births))
        for page in np.flatnonzero(self._births[: len(births)] != births).tolist():
            self._place[page << PAGE_BITS : (page + 1) << PAGE_BITS] = _NOWHERE
            self._births[page] = births[page]

    def _grow(self, pages: int) -> None:
        more = pages - len(self._births)
        self._births = np.concatenate((self._births, np.full(more, -1)))
        self._place = np.concatenate((self._place, np.full(more * PAGE_ROWS, _NOWHERE)))
        rows = np.zeros(more * PAGE_ROWS, np.uint8)
        self._body_length = np.concatenate((self._body_length, rows.astype(np.uint32)))
        self._reprs_length = np.concatenate((self._reprs_length, rows.astype(np.uint16)))
        self._name_length = np.concatenate((self._name_length, rows.astype(np.uint16)))

    def _keep(self, refs: UInt32s, skeleton: int, rendered: Sequence[Pieces]) -> None:
        chunk: list[Pieces] = []
        size = 0
        for ref, pieces in zip(refs.tolist(), rendered, strict=True):
            length = sum(map(len, pieces))
            if length > CHUNK_BYTES or len(pieces.reprs) > _SHORT_MAX or len(pieces.name) > _SHORT_MAX:
                continue
            if size + length > CHUNK_BYTES:
                self._add_chunk(chunk, size)
                chunk, size = [], 0
            if self.resident_bytes + size + length > self._limit_bytes or len(self._chunks) >= CHUNKS_MAX:
                break
            self._place[ref] = np.uint64(skeleton << _PLACE_BITS | len(self._chunks) << _CHUNK_BITS | size)
            self._body_length[ref] = len(pieces.body)
            self._reprs_length[ref] = len(pieces.reprs)
            self._name_length[ref] = len(pieces.name)
            chunk.append(pieces)
            size += length
        if chunk:
            self._add_chunk(chunk, size)

    def _add_chunk(self, chunk: Sequence[Pieces], size: int) -> None:
        self._chunks.append(b"".join([piece for pieces in chunk for piece in pieces]))
        self.resident_bytes += size

    def _gather(self, refs: UInt32s, opening_width: int) -> Columns:
        places = (self._place[refs] & np.uint64((1 << _PLACE_BITS) - 1)).astype(np.int64)
        begin = places & (CHUNK_BYTES - 1)
        body = begin + opening_width
        reprs = body + self._body_length[refs]
        name = reprs + self._reprs_length[refs]
        end = (name + self._name_length[refs]).tolist()
        chunks = [self._chunks[number] for number in (places >> _CHUNK_BITS).tolist()]
        body_at, reprs_at, name_at = body.tolist(), reprs.tolist(), name.tolist()
        openings = [b""] * len(chunks) if not opening_width else _slices(chunks, begin.tolist(), body_at)
        return Columns(
            openings,
            _slices(chunks, body_at, reprs_at),
            _slices(chunks, reprs_at, name_at),
            _slices(chunks, name_at, end),
        )


_NONE = Pieces(b"", b"", b"", b"")


def _slices(chunks: Sequence[bytes], starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    return [chunk[start:end] for chunk, start, end in zip(chunks, starts, ends)]  # noqa: B905 - the hot loop
