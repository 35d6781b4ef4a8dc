"""Bodies: the pieces of messages that belong to single jobs, kept because they are the same in every run.

A bounded cache in front of the renderer: 16 bytes of index per job and one slice of a chunk. A job is known by the
ref of its payload; ``forget`` hears of every ref that is given up, before it can be given to another job. What is not
kept is rendered again, never wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.envelopes import Hole, Pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.jobs import Int64s, UInt32s

_CHUNK_BITS = 20
CHUNK_BYTES = 1 << _CHUNK_BITS
_PLACE_BITS = 40
"""Number of the chunk and offset in it; the other bits are the number of the skeleton."""
_NOWHERE = np.uint64(2**64 - 1)
SKELETONS_MAX = (1 << (64 - _PLACE_BITS)) - 1
CHUNKS_MAX = (1 << (_PLACE_BITS - _CHUNK_BITS)) - 1
"""The greatest number stands for no chunk."""
_SHORT_MAX = 2**16 - 1
_STEP_ROWS = 1 << 20
"""Rows of the index that are looked through at once."""


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


class _Chunk(NamedTuple):
    data: bytes
    jobs: int
    """How many it was made of."""
    alive: int
    """How many of them are not forgotten."""

    @property
    def is_thin(self) -> bool:
        return 2 * self.alive < self.jobs


_GONE = _Chunk(b"", 0, 0)


class Bodies:
    """The cache. ``limit_bytes`` bounds its chunks; a job that does not fit any more is rendered for each run.

    A chunk whose last piece is forgotten goes at once. Where room is wanted, chunks that are more than half forgotten
    go too, and the rest of their pieces is rendered again: what is forgotten never fills more than half of the cache.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.resident_bytes = 0
        self._limit_bytes = limit_bytes
        self._chunks: list[_Chunk] = []
        self._free: list[int] = []
        """Numbers of chunks that are gone."""
        self._is_full = False
        """Whether a chunk did not fit, and nothing was forgotten since."""
        self._thin_bytes = 0
        """Size of the chunks that are more than half forgotten."""
        self._place: NDArray[np.uint64] = np.full(0, _NOWHERE)
        """By ref: number of the skeleton, then of the chunk, then offset."""
        self._body_length: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._reprs_length: NDArray[np.uint16] = np.zeros(0, np.uint16)
        self._name_length: NDArray[np.uint16] = np.zeros(0, np.uint16)

    def columns(
        self,
        refs: UInt32s,
        skeleton: int,
        opening_width: int,
        render: Callable[[NDArray[np.intp]], Sequence[Pieces]],
    ) -> Columns:
        """Return the pieces of ``refs`` for the skeleton of that number, whose openings are ``opening_width`` long.

        ``render`` is asked for the pieces at the positions that are not known; what it raises goes on to the caller
        and leaves the cache as it was.
        """
        self._grow(int(refs.max(initial=0)) + 1)
        missing = self._missing(refs, skeleton)
        if not len(missing):
            return self._gather(refs, opening_width)
        rendered = render(missing)
        if len(missing) == len(refs):
            self._keep(refs, skeleton, rendered)
            return Columns.of(rendered)
        known = np.setdiff1d(np.arange(len(refs)), missing)
        found = self._gather(refs[known], opening_width)  # before room is made, which may cost some of them
        self._keep(refs[missing], skeleton, rendered)
        pieces: list[Pieces] = [_NONE] * len(refs)
        for position, one in zip(known.tolist(), zip(*found, strict=True), strict=True):
            pieces[position] = Pieces(*one)
        for position, one in zip(missing.tolist(), rendered, strict=True):
            pieces[position] = one
        return Columns.of(pieces)

    def sizes(self, refs: UInt32s) -> Int64s:
        """Return the bytes of the pieces of ``refs``, without openings; 0 of what is not kept."""
        self._grow(int(refs.max(initial=0)) + 1)
        sizes = self._body_length[refs].astype(np.int64)
        sizes += self._reprs_length[refs]
        sizes += self._name_length[refs]
        sizes[self._place[refs] == _NOWHERE] = 0
        return sizes

    def forget(self, refs: UInt32s) -> None:
        """Let go the pieces of ``refs``."""
        refs = refs[refs < len(self._place)]
        refs = np.unique(refs[self._place[refs] != _NOWHERE])
        if not len(refs):
            return
        self._is_full = False
        numbers, counts = np.unique(_chunk_of(self._place[refs]), return_counts=True)
        self._place[refs] = _NOWHERE
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            before = self._chunks[number]
            self._chunks[number] = after = before._replace(alive=before.alive - count)
            if after.is_thin and not before.is_thin:
                self._thin_bytes += len(after.data)
            if not after.alive:
                self._drop(number)

    def _missing(self, refs: UInt32s, skeleton: int) -> NDArray[np.intp]:
        return np.flatnonzero(self._place[refs] >> np.uint64(_PLACE_BITS) != np.uint64(skeleton))

    def _grow(self, rows: int) -> None:
        more = rows - len(self._place)
        if more <= 0:
            return
        more += len(self._place) // 8
        self._place = np.concatenate((self._place, np.full(more, _NOWHERE)))
        self._body_length = np.concatenate((self._body_length, np.zeros(more, np.uint32)))
        self._reprs_length = np.concatenate((self._reprs_length, np.zeros(more, np.uint16)))
        self._name_length = np.concatenate((self._name_length, np.zeros(more, np.uint16)))

    def _keep(self, refs: UInt32s, skeleton: int, rendered: Sequence[Pieces]) -> None:
        self.forget(refs)  # the pieces for another skeleton
        if self._is_full:
            return
        distinct, first = np.unique(refs, return_index=True)
        chunk: dict[int, Pieces] = {}
        size = 0
        for ref, at in zip(distinct.tolist(), first.tolist(), strict=True):
            pieces = rendered[at]
            length = sum(map(len, pieces))
            if length > CHUNK_BYTES or len(pieces.reprs) > _SHORT_MAX or len(pieces.name) > _SHORT_MAX:
                continue
            if size + length > CHUNK_BYTES:
                self._add_chunk(chunk, size, skeleton)
                chunk, size = {}, 0
            chunk[ref] = pieces
            size += length
        if chunk:
            self._add_chunk(chunk, size, skeleton)

    def _add_chunk(self, pieces: Mapping[int, Pieces], size: int, skeleton: int) -> None:
        """Keep the pieces by ref, ``size`` bytes, if there is room for them."""
        if self.resident_bytes + size > self._limit_bytes:
            self._make_room(size)
        if self.resident_bytes + size > self._limit_bytes or (not self._free and len(self._chunks) >= CHUNKS_MAX):
            self._is_full = True
            return
        number = self._free.pop() if self._free else len(self._chunks)
        refs = np.fromiter(pieces, np.uint32, len(pieces))
        lengths = np.array([[*map(len, one)] for one in pieces.values()], np.uint64)
        ends = lengths.sum(axis=1).cumsum()
        starts = np.concatenate((ends[:1] * 0, ends[:-1]))
        self._place[refs] = np.uint64(skeleton << _PLACE_BITS | number << _CHUNK_BITS) | starts
        self._body_length[refs], self._reprs_length[refs], self._name_length[refs] = lengths.T[1:]
        chunk = _Chunk(b"".join([piece for one in pieces.values() for piece in one]), len(pieces), len(pieces))
        self._chunks[number : number + 1] = [chunk]
        self.resident_bytes += size

    def _make_room(self, size: int) -> None:
        """Drop the chunks that are more than half forgotten, if that is worth a look through the index."""
        if self._thin_bytes < max(size, self._limit_bytes // 16):
            return
        thin = np.zeros(CHUNKS_MAX + 1, np.bool_)
        numbers = [number for number, chunk in enumerate(self._chunks) if chunk.is_thin]
        thin[numbers] = True
        for start in range(0, len(self._place), _STEP_ROWS):
            places = self._place[start : start + _STEP_ROWS]
            places[thin[_chunk_of(places)]] = _NOWHERE
        for number in numbers:
            self._drop(number)

    def _drop(self, number: int) -> None:
        chunk = self._chunks[number]
        self._thin_bytes -= len(chunk.data)
        self.resident_bytes -= len(chunk.data)
        self._chunks[number] = _GONE
        self._free.append(number)

    def _gather(self, refs: UInt32s, opening_width: int) -> Columns:
        places = (self._place[refs] & np.uint64((1 << _PLACE_BITS) - 1)).astype(np.int64)
        begin = places & (CHUNK_BYTES - 1)
        body = begin + opening_width
        reprs = body + self._body_length[refs]
        name = reprs + self._reprs_length[refs]
        end = (name + self._name_length[refs]).tolist()
        chunks = [self._chunks[number].data for number in (places >> _CHUNK_BITS).tolist()]
        body_at, reprs_at, name_at = body.tolist(), reprs.tolist(), name.tolist()
        openings = [b""] * len(chunks) if not opening_width else _slices(chunks, begin.tolist(), body_at)
        return Columns(
            openings,
            _slices(chunks, body_at, reprs_at),
            _slices(chunks, reprs_at, name_at),
            _slices(chunks, name_at, end),
        )


_NONE = Pieces(b"", b"", b"", b"")


def _chunk_of(places: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (places >> np.uint64(_CHUNK_BITS)).astype(np.int64) & CHUNKS_MAX


def _slices(chunks: Sequence[bytes], starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    return [chunk[start:end] for chunk, start, end in zip(chunks, starts, ends)]  # noqa: B905 - the hot loop
