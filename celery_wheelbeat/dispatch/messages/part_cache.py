"""Bounded cache of the job-specific parts of messages, which are the same in every run of a job.

Each job has 16 bytes of index, and its parts lie side by side in a chunk. The key is the ref of the job's payload;
``forget`` is called with every released ref before that ref can be reused. A miss costs a rendering, nothing else.
"""

from __future__ import annotations

import logging
import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.dispatch.messages.byte_ranges import ByteRanges, pieces_at
from celery_wheelbeat.dispatch.messages.template import LIFETIME_BYTES, TEXT_LENGTH_BYTES, Hole, Pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.messages.run_ids import Octets
    from celery_wheelbeat.dispatch.messages.template import Column, TextHole
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

logger = logging.getLogger("celery.beat")

_CHUNK_BITS = 20
CHUNK_BYTES = 1 << _CHUNK_BITS
_PLACE_BITS = 40
"""Low bits of a place: chunk number and offset in the chunk. The high bits are the number of the skeleton."""
_NOWHERE = np.uint64(2**64 - 1)
SKELETONS_MAX = (1 << (64 - _PLACE_BITS)) - 1
CHUNKS_MAX = (1 << (_PLACE_BITS - _CHUNK_BITS)) - 1
"""The greatest chunk number means "no chunk"."""
_SHORT_MAX = 2**16 - 1
_STEP_ROWS = 1 << 20
"""Rows of the index that are scanned at once."""
_ROW = np.dtype([("place", np.uint64), ("body", np.uint32), ("reprs", np.uint16), ("name", np.uint16)])
"""``place``: skeleton number, chunk number, offset, from high to low bits. The other fields are lengths in bytes."""
_LENGTHS = ("body", "reprs", "name")


class PartColumns(NamedTuple):
    """The parts of many jobs: opening, body, reprs and name of a job (``Pieces``) follow each other in ``buffer``."""

    buffer: Octets
    begin: Int64s
    opening_width: int
    body_length: Int64s
    reprs_length: Int64s
    name_length: Int64s

    @classmethod
    def of(cls, pieces: Sequence[Pieces]) -> PartColumns:
        """Turn the parts of each job (at least one job) into columns."""
        every = ByteRanges.of([piece for one in pieces for piece in one])
        _, body, reprs, name = every.length.reshape(-1, len(Pieces._fields)).T
        return cls(every.buffer, every.start[:: len(Pieces._fields)], len(pieces[0].opening), body, reprs, name)

    def at(self, where: NDArray[np.bool_]) -> PartColumns:
        """Return the parts of the jobs chosen by the mask ``where``."""
        lengths = (column[where] for column in (self.body_length, self.reprs_length, self.name_length))
        return PartColumns(self.buffer, self.begin[where], self.opening_width, *lengths)

    def whole(self) -> ByteRanges:
        """Return the parts of each job as one byte range."""
        length = self.opening_width + self.body_length + self.reprs_length + self.name_length
        return ByteRanges(self.buffer, self.begin, length)

    def by_hole(self, texts: Sequence[TextHole] = (), *, timed: bool = False) -> dict[Hole | TextHole, Column]:
        """Return hole → column, as ``Envelope.render`` takes it. ``texts``: the texts behind each name.

        ``timed``: the openings contain a lifetime.
        """
        body = self.begin + self.opening_width
        reprs = body + self.body_length
        name, name_length = reprs + self.reprs_length, self.name_length
        found: dict[Hole | TextHole, Column] = {
            Hole.BODY: ByteRanges(self.buffer, body, self.body_length),
            Hole.REPRS: ByteRanges(self.buffer, reprs, self.reprs_length),
        }
        head = TEXT_LENGTH_BYTES * len(texts)
        if head:
            lengths = self._in_opening(0, head).view("<u4").astype(np.int64)
            name_length = name_length - lengths.sum(axis=1)
            starts = (name + name_length)[:, None] + lengths.cumsum(axis=1) - lengths
            for hole, start, length in zip(texts, starts.T, lengths.T, strict=True):
                found[hole] = ByteRanges(self.buffer, start, length)
        found[Hole.NAME] = ByteRanges(self.buffer, name, name_length)
        if timed:
            found[Hole.LIFETIME] = self._in_opening(head, LIFETIME_BYTES)
            head += LIFETIME_BYTES
        if width := self.opening_width - head:
            found[Hole.OPENING] = self._in_opening(head, width)
        return found

    def _in_opening(self, offset: int, width: int) -> Octets:
        return pieces_at(self.buffer, width)[self.begin + offset].view(np.uint8).reshape(-1, width)


class _PartChunk(NamedTuple):
    size: int
    """Bytes written, those of forgotten jobs included."""
    jobs: int
    """Jobs written, forgotten ones included."""
    alive: int
    """Jobs that are not forgotten."""

    @property
    def thin_bytes(self) -> int:
        """Size of the chunk if more than half of its jobs are forgotten, else 0."""
        return self.size if 2 * self.alive < self.jobs else 0


_GONE = _PartChunk(0, 0, 0)


class PartCache:
    """The cache. ``limit_bytes`` bounds its chunks; a job that does not fit is rendered for each run.

    Parts are appended to one chunk until it is full. A chunk is released as soon as all of its jobs are forgotten. When
    room is needed, chunks that are more than half forgotten are released too, and their live jobs are rendered again;
    so forgotten parts never fill more than half of the cache.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.resident_bytes = 0
        self._limit_bytes = limit_bytes
        self._memory: mmap.mmap | None = None
        """Address space for all chunks; the system commits pages as they are written."""
        self._octets: Octets = np.empty(0, np.uint8)
        """``_memory`` as an array."""
        self._chunks: list[_PartChunk] = []
        self._free: list[int] = []
        """Numbers of released chunks."""
        self._filled: int | None = None
        """Number of the chunk to which parts are appended."""
        self._is_full = False
        """Whether no chunk could be added, and nothing has been forgotten since."""
        self._thin_bytes = 0
        """Size of the chunks that are more than half forgotten."""
        self._rows: NDArray[Any] = np.empty(0, _ROW)
        """Index by ref. One record array, not one array per field: a look-up costs one cache miss."""
        self._place: NDArray[np.uint64] = self._rows["place"]

    def columns(
        self,
        refs: UInt32s,
        skeleton: int,
        opening_width: int,
        render: Callable[[NDArray[np.intp]], PartColumns],
    ) -> PartColumns:
        """Return the parts of ``refs`` for skeleton number ``skeleton``, whose openings have ``opening_width`` bytes.

        The result may be a view of the cache, valid until the next call of ``columns`` or ``forget``. ``render`` is
        called with the positions that are missing; its exceptions pass to the caller and leave the cache unchanged.
        """
        self._grow(int(refs.max(initial=0)) + 1)
        rows = self._at(refs)
        (missing,) = np.nonzero(rows["place"] >> np.uint64(_PLACE_BITS) != np.uint64(skeleton))
        if not len(missing):
            return self._columns(rows, opening_width)
        rendered = found = render(missing)
        if len(missing) < len(refs):
            known = np.delete(np.arange(len(refs)), missing)
            # merge before ``_keep`` makes room, which may release chunks with known parts
            found = merged((known, self._columns(rows[known], opening_width)), (missing, rendered))
        self._keep(refs[missing], skeleton, rendered)
        return found

    def sizes(self, refs: UInt32s) -> Int64s:
        """Return the bytes of the cached parts of each ref, without openings; 0 if not cached."""
        self._grow(int(refs.max(initial=0)) + 1)
        rows = self._at(refs)
        sizes = rows["body"].astype(np.int64)
        sizes += rows["reprs"]
        sizes += rows["name"]
        sizes[rows["place"] == _NOWHERE] = 0
        return sizes

    def forget(self, refs: UInt32s) -> None:
        """Drop the parts of ``refs``."""
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
        """Return the rows of ``refs``. Indexing a void view copies 16 bytes per row instead of field by field."""
        return self._rows.view(f"V{_ROW.itemsize}")[refs].view(_ROW)

    def _grow(self, rows: int) -> None:
        more = rows - len(self._rows)
        if more > 0:
            added = np.zeros(more + len(self._rows) // 8, _ROW)
            added["place"] = _NOWHERE
            self._rows = np.concatenate((self._rows, added))
            self._place = self._rows["place"]

    def _keep(self, refs: UInt32s, skeleton: int, rendered: PartColumns) -> None:
        self.forget(refs)  # parts for another skeleton
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
            ByteRanges(whole.buffer, whole.start[part], length[:count]).copy_to(self._octets, at)
            added = np.empty(count, _ROW)
            added["place"] = np.uint64(skeleton << _PLACE_BITS) | at.astype(np.uint64)
            added["body"] = rendered.body_length[part]
            added["reprs"] = rendered.reprs_length[part]
            added["name"] = rendered.name_length[part]
            self._rows[refs[part]] = added
            used = chunk.size + int(ends[count - 1])
            self._put(number, _PartChunk(used, chunk.jobs + count, chunk.alive + count))

    def _chunk_for(self, size: int) -> int | None:
        """Return the number of a chunk that has room for ``size`` bytes; None if there is none."""
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

    def _put(self, number: int, chunk: _PartChunk) -> None:
        before = self._chunks[number]
        self._chunks[number] = chunk
        self._thin_bytes += chunk.thin_bytes - before.thin_bytes
        self.resident_bytes += chunk.size - before.size
        if number == self._filled and chunk.thin_bytes > CHUNK_BYTES // 2:
            self._filled = None  # a thin chunk is the next to be released; append elsewhere

    def _make_room(self, size: int) -> bool:
        """Release chunks that are more than half forgotten, if that frees enough to pay for a scan of the index."""
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

    def _columns(self, rows: NDArray[Any], opening_width: int) -> PartColumns:
        begin = (rows["place"] & np.uint64((1 << _PLACE_BITS) - 1)).astype(np.int64)
        return PartColumns(self._octets, begin, opening_width, *(rows[name].astype(np.int64) for name in _LENGTHS))


def _reserved(size: int) -> mmap.mmap | None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        memory = mmap.mmap(-1, max(1, size), flags=flags)
    except (OSError, OverflowError) as error:
        logger.warning(
            "beat: The system gives no %d bytes for the pieces of messages (%s): each message is made as a whole. Set"
            " wheelbeat_envelope_bytes to what there is",
            size,
            error,
        )
        return None
    if hasattr(mmap, "MADV_HUGEPAGE"):  # the runs of one second are spread over the whole mapping
        with suppress(OSError):  # not every kernel supports them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def merged(known: tuple[NDArray[np.intp], PartColumns], rendered: tuple[NDArray[np.intp], PartColumns]) -> PartColumns:
    """Return known and rendered parts, of disjoint positions, as one set of columns, each job at its position."""
    count = len(known[0]) + len(rendered[0])
    body, reprs, name, length = (np.empty(count, np.int64) for _ in range(4))
    for positions, columns in (known, rendered):
        body[positions], reprs[positions] = columns.body_length, columns.reprs_length
        name[positions], length[positions] = columns.name_length, columns.whole().length
    begin = length.cumsum() - length
    buffer = np.empty(int(length.sum()), np.uint8)
    for positions, columns in (known, rendered):
        columns.whole().copy_to(buffer, begin[positions])
    return PartColumns(buffer, begin, rendered[1].opening_width, body, reprs, name)


def _chunk_of(places: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (places >> np.uint64(_CHUNK_BITS)).astype(np.int64) & CHUNKS_MAX
