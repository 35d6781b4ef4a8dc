"""Bodies: the pieces of messages that belong to single jobs, kept because they are the same in every run.

A bounded cache in front of the renderer: 16 bytes of index per job, and its pieces side by side in a chunk. A job is
known by the ref of its payload; ``forget`` hears of every ref that is given up, before it can be given to another job.
What is not kept is rendered again, never wrong.
"""

from __future__ import annotations

import logging
import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.dispatch.messages.byte_ranges import Slices, pieces_at
from celery_wheelbeat.dispatch.messages.template import Hole, Pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.messages.run_ids import Octets
    from celery_wheelbeat.dispatch.messages.template import Column
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

logger = logging.getLogger("celery.beat")

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
_ROW = np.dtype([("place", np.uint64), ("body", np.uint32), ("reprs", np.uint16), ("name", np.uint16)])
"""Place: number of the skeleton, then of the chunk, then offset. The others are lengths."""
_LENGTHS = ("body", "reprs", "name")


class Columns(NamedTuple):
    """The pieces of many jobs. Of each, opening, body, reprs and name follow each other in ``buffer``."""

    buffer: Octets
    begin: Int64s
    opening_width: int
    body_length: Int64s
    reprs_length: Int64s
    name_length: Int64s

    @classmethod
    def of(cls, pieces: Sequence[Pieces]) -> Columns:
        """Turn pieces per job (at least one) into columns."""
        every = Slices.of([piece for one in pieces for piece in one])
        _, body, reprs, name = every.length.reshape(-1, len(Pieces._fields)).T
        return cls(every.buffer, every.start[:: len(Pieces._fields)], len(pieces[0].opening), body, reprs, name)

    def whole(self) -> Slices:
        """Return all pieces of each job as one."""
        length = self.opening_width + self.body_length + self.reprs_length + self.name_length
        return Slices(self.buffer, self.begin, length)

    def by_hole(self) -> dict[Hole, Column]:
        """Return what the renderer fills in."""
        body = self.begin + self.opening_width
        reprs = body + self.body_length
        found: dict[Hole, Column] = {
            Hole.BODY: Slices(self.buffer, body, self.body_length),
            Hole.REPRS: Slices(self.buffer, reprs, self.reprs_length),
            Hole.NAME: Slices(self.buffer, reprs + self.reprs_length, self.name_length),
        }
        if self.opening_width:
            openings = pieces_at(self.buffer, self.opening_width)[self.begin]
            found[Hole.OPENING] = openings.view(np.uint8).reshape(-1, self.opening_width)
        return found


class _Chunk(NamedTuple):
    size: int
    """Bytes that are in use, or were."""
    jobs: int
    """How many have pieces there, or had."""
    alive: int
    """How many of them are not forgotten."""

    @property
    def thin_bytes(self) -> int:
        """Its size where more than half is forgotten."""
        return self.size if 2 * self.alive < self.jobs else 0


_GONE = _Chunk(0, 0, 0)


class Bodies:
    """The cache. ``limit_bytes`` bounds its chunks; a job that does not fit any more is rendered for each run.

    Pieces are appended to one chunk until it is full. A chunk whose last piece is forgotten is given back at once.
    Where room is wanted, chunks that are more than half forgotten go too, and the rest of their pieces is rendered
    again: what is forgotten never fills more than half of the cache.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.resident_bytes = 0
        self._limit_bytes = limit_bytes
        self._memory: mmap.mmap | None = None
        """Room for all chunks, of which the system has given what was written to."""
        self._octets: Octets = np.empty(0, np.uint8)
        """The same as an array."""
        self._chunks: list[_Chunk] = []
        self._free: list[int] = []
        """Numbers of chunks that are gone."""
        self._filled: int | None = None
        """Number of the chunk that is appended to."""
        self._is_full = False
        """Whether a chunk did not fit, and nothing was forgotten since."""
        self._thin_bytes = 0
        """Size of the chunks that are more than half forgotten."""
        self._rows: NDArray[Any] = np.empty(0, _ROW)
        """By ref; side by side, since a look-up in so large an array waits for memory."""
        self._place: NDArray[np.uint64] = self._rows["place"]

    def columns(
        self,
        refs: UInt32s,
        skeleton: int,
        opening_width: int,
        render: Callable[[NDArray[np.intp]], Columns],
    ) -> Columns:
        """Return the pieces of ``refs`` for the skeleton of that number, whose openings are ``opening_width`` long.

        They may lie in the cache itself, and are valid until it is asked for others or has to forget some. ``render``
        is asked for the pieces at the positions that are not known; what it raises goes on to the caller and leaves
        the cache as it was.
        """
        self._grow(int(refs.max(initial=0)) + 1)
        rows = self._at(refs)
        (missing,) = np.nonzero(rows["place"] >> np.uint64(_PLACE_BITS) != np.uint64(skeleton))
        if not len(missing):
            return self._columns(rows, opening_width)
        rendered = found = render(missing)
        if len(missing) < len(refs):
            known = np.delete(np.arange(len(refs)), missing)
            # before room is made, which may cost some of those that are known
            found = _merged((known, self._columns(rows[known], opening_width)), (missing, rendered))
        self._keep(refs[missing], skeleton, rendered)
        return found

    def sizes(self, refs: UInt32s) -> Int64s:
        """Return the bytes of the pieces of ``refs``, without openings; 0 of what is not kept."""
        self._grow(int(refs.max(initial=0)) + 1)
        rows = self._at(refs)
        sizes = rows["body"].astype(np.int64)
        sizes += rows["reprs"]
        sizes += rows["name"]
        sizes[rows["place"] == _NOWHERE] = 0
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
            chunk = self._chunks[number]
            self._put(number, chunk._replace(alive=chunk.alive - count))
            if chunk.alive == count:
                self._drop(number)

    def _at(self, refs: UInt32s) -> NDArray[Any]:
        """Return the rows of ``refs``: copied as octets, which a copy field by field is not."""
        return self._rows.view(f"V{_ROW.itemsize}")[refs].view(_ROW)

    def _grow(self, rows: int) -> None:
        more = rows - len(self._rows)
        if more > 0:
            added = np.zeros(more + len(self._rows) // 8, _ROW)
            added["place"] = _NOWHERE
            self._rows = np.concatenate((self._rows, added))
            self._place = self._rows["place"]

    def _keep(self, refs: UInt32s, skeleton: int, rendered: Columns) -> None:
        self.forget(refs)  # the pieces for another skeleton
        if self._is_full:
            return
        whole = rendered.whole()
        fits = (whole.length <= CHUNK_BYTES) & (rendered.reprs_length <= _SHORT_MAX)
        fits &= rendered.name_length <= _SHORT_MAX
        _, rest = np.unique(refs, return_index=True)
        rest = rest[fits[rest]]
        while len(rest):
            length = whole.length[rest]
            number = self._chunk_for(int(length[0]))
            if number is None:
                self._is_full = True
                return
            chunk = self._chunks[number]
            ends = length.cumsum()
            count = int(np.searchsorted(ends, self._room(number), side="right"))
            part, rest = rest[:count], rest[count:]
            at = (number << _CHUNK_BITS) + chunk.size + ends[:count] - length[:count]
            Slices(whole.buffer, whole.start[part], length[:count]).copy_to(self._octets, at)
            added = np.empty(count, _ROW)
            added["place"] = np.uint64(skeleton << _PLACE_BITS) | at.astype(np.uint64)
            added["body"] = rendered.body_length[part]
            added["reprs"] = rendered.reprs_length[part]
            added["name"] = rendered.name_length[part]
            self._rows[refs[part]] = added
            used = chunk.size + int(ends[count - 1])
            self._put(number, _Chunk(used, chunk.jobs + count, chunk.alive + count))

    def _chunk_for(self, size: int) -> int | None:
        """Return the number of a chunk that has room for ``size`` bytes; None where there is none."""
        if self._filled is not None and self._room(self._filled) >= size:
            return self._filled
        self._filled = self._new_chunk(size)
        if self._filled is None and self._make_room(size):
            self._filled = self._new_chunk(size)
        return self._filled

    def _new_chunk(self, size: int) -> int | None:
        if self._memory is None:
            self._memory = _reserved(self._limit_bytes)
            if self._memory is None:
                self._limit_bytes = 0
                return None
            self._octets = np.frombuffer(self._memory, np.uint8)
        if self._free:
            return self._free.pop()
        number = len(self._chunks)
        if (number << _CHUNK_BITS) + size > self._limit_bytes or number >= CHUNKS_MAX:
            return None
        self._chunks.append(_GONE)
        return number

    def _room(self, number: int) -> int:
        end = min(CHUNK_BYTES, self._limit_bytes - (number << _CHUNK_BITS))
        return end - self._chunks[number].size

    def _put(self, number: int, chunk: _Chunk) -> None:
        before = self._chunks[number]
        self._chunks[number] = chunk
        self._thin_bytes += chunk.thin_bytes - before.thin_bytes
        self.resident_bytes += chunk.size - before.size
        if number == self._filled and chunk.thin_bytes > CHUNK_BYTES // 2:
            self._filled = None  # what is appended to it would go with it

    def _make_room(self, size: int) -> bool:
        """Drop the chunks that are more than half forgotten, if that is worth a look through the index."""
        if self._thin_bytes < max(size, self._limit_bytes // 16):
            return False
        thin = np.zeros(CHUNKS_MAX + 1, np.bool_)
        numbers = [number for number, chunk in enumerate(self._chunks) if chunk.thin_bytes]
        thin[numbers] = True
        for start in range(0, len(self._place), _STEP_ROWS):
            places = self._place[start : start + _STEP_ROWS]
            places[thin[_chunk_of(places)]] = _NOWHERE
        for number in numbers:
            self._drop(number)
        return True

    def _drop(self, number: int) -> None:
        self._put(number, _GONE)
        self._free.append(number)
        if number == self._filled:
            self._filled = None
        start = number << _CHUNK_BITS
        if self._memory is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED, start, min(CHUNK_BYTES, len(self._memory) - start))

    def _columns(self, rows: NDArray[Any], opening_width: int) -> Columns:
        begin = (rows["place"] & np.uint64((1 << _PLACE_BITS) - 1)).astype(np.int64)
        return Columns(self._octets, begin, opening_width, *(rows[name].astype(np.int64) for name in _LENGTHS))


def _reserved(size: int) -> mmap.mmap | None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        memory = mmap.mmap(-1, max(1, size), flags=flags)
    except (OSError, OverflowError) as error:
        logger.warning(
            "beat: The system gives no %d bytes for the pieces of messages (%s): each message is made anew. Set"
            " wheelbeat_envelope_bytes to what there is",
            size,
            error,
        )
        return None
    if hasattr(mmap, "MADV_HUGEPAGE"):  # the runs of a second are spread over all of it
        with suppress(OSError):  # not every kernel knows them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _merged(known: tuple[NDArray[np.intp], Columns], rendered: tuple[NDArray[np.intp], Columns]) -> Columns:
    """Return the pieces of two kinds of jobs as one, each at its positions."""
    count = len(known[0]) + len(rendered[0])
    body, reprs, name, length = (np.empty(count, np.int64) for _ in range(4))
    for positions, columns in (known, rendered):
        body[positions], reprs[positions] = columns.body_length, columns.reprs_length
        name[positions], length[positions] = columns.name_length, columns.whole().length
    begin = length.cumsum() - length
    buffer = np.empty(int(length.sum()), np.uint8)
    for positions, columns in (known, rendered):
        columns.whole().copy_to(buffer, begin[positions])
    return Columns(buffer, begin, rendered[1].opening_width, body, reprs, name)


def _chunk_of(places: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (places >> np.uint64(_CHUNK_BITS)).astype(np.int64) & CHUNKS_MAX
