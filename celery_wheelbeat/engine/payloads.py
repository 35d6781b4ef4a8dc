"""Payloads and names of all jobs, as bytes in immutable pages.

A job holds one uint32 *ref*: page number and position in the page. A full page never changes, so its slices can be
handed out without a lock. Released texts keep their bytes until more than half of the page is dead. The page is then
*thin*: the watchdog moves its live texts to the open page (``thin``, ``move``), and an empty page is freed.
"""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.errors import WheelbeatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

PAGE_BITS = 12
PAGE_ROWS = 1 << PAGE_BITS
PAGE_ROWS_MIN = PAGE_ROWS // 4
"""A batch (or its rest) with fewer texts than this goes into the open page."""
PAGE_BYTES = 1 << 26
"""A page with this many bytes is full, however few texts it holds."""
PAGES_MAX = 1 << (32 - PAGE_BITS)
_FROM_ONE = np.arange(1, PAGE_ROWS + 1, dtype=np.int64)
_WIDTHS = tuple((np.iinfo(width).max, width) for width in (np.int8, np.int16, np.int32, np.int64))


class Text(NamedTuple):
    """The name and payload that a ref points to."""

    name: bytes
    payload: bytes


class Ends(NamedTuple):
    """The end offsets of concatenated texts, stored as differences from a straight line.

    One byte a text instead of four if the lengths are nearly equal, two if they are similar. For payload and name of
    25 million jobs these are 3 bytes a job instead of 8, of 155 in all.
    """

    total: int
    off: NDArray[np.signedinteger[Any]]

    @classmethod
    def of(cls, ends: NDArray[np.int64]) -> Ends:
        """Build from the end offset of each text; at least one."""
        off = ends - _line(int(ends[-1]), len(ends))
        most = max(int(off.max()), -int(off.min()))
        return cls(int(ends[-1]), off.astype(next(width for limit, width in _WIDTHS if most <= limit)))

    def span(self, position: int) -> slice:
        """Return the byte range of the text at ``position``."""
        count = len(self.off)
        start = self.total * position // count + self.off.item(position - 1) if position else 0
        return slice(start, self.total * (position + 1) // count + self.off.item(position))

    def bounds(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Return where the texts at ``positions`` begin and end."""
        ends = np.concatenate(([0], self.all()))
        return ends[positions], ends[positions + 1]

    def all(self) -> NDArray[np.int64]:
        """Return all end offsets."""
        return _line(self.total, len(self.off)) + self.off


class Page(NamedTuple):
    """Up to ``PAGE_ROWS`` texts, concatenated."""

    payloads: bytes
    payload_ends: Ends
    names: bytes
    name_ends: Ends
    checksum: int

    @classmethod
    def of(cls, payloads: bytes, ends_of_payloads: Int64s, names: bytes, ends_of_names: Int64s) -> Page:
        """Build a page and its checksum from concatenated texts and their end offsets."""
        payload_ends, name_ends = Ends.of(ends_of_payloads), Ends.of(ends_of_names)
        return cls(payloads, payload_ends, names, name_ends, _checksum(payloads, payload_ends, names, name_ends))

    def text(self, position: int) -> Text:
        """Return the text at ``position``."""
        return Text(self.names[self.name_ends.span(position)], self.payloads[self.payload_ends.span(position)])

    def texts(self, positions: Int64s) -> Iterator[Text]:
        """Yield the texts at ``positions``."""
        names, payloads = self.names, self.payloads
        bounds = (bound.tolist() for ends in (self.name_ends, self.payload_ends) for bound in ends.bounds(positions))
        return (Text(names[a:b], payloads[c:d]) for a, b, c, d in zip(*bounds, strict=True))

    def length(self, position: int) -> int:
        """Return the length in bytes of payload and name together."""
        payload, name = self.payload_ends.span(position), self.name_ends.span(position)
        total: int = payload.stop - payload.start + name.stop - name.start
        return total

    def positions_of(self, name: bytes) -> list[int]:
        """Return the positions of the texts named exactly ``name``."""
        if name not in self.names:
            return []
        ends = self.name_ends.all()
        starts = np.concatenate(([0], ends[:-1]))
        fitting = np.flatnonzero(ends - starts == len(name)).tolist()
        return [position for position in fitting if self.names.startswith(name, starts[position])]

    def intact(self) -> bool:
        """Return whether the checksum still matches the bytes."""
        return self.checksum == _checksum(self.payloads, self.payload_ends, self.names, self.name_ends)


class Payloads:
    """Owner of all pages. Not thread-safe."""

    def __init__(self) -> None:
        self._pages: list[Page | None] = [None]
        self.on_release: Callable[[UInt32s], None] = lambda _refs: None
        """Called with released refs, before they are reused for other texts."""
        self.longest = 0
        """Upper bound in bytes of any text, payload and name together; never shrinks."""
        self._rows = [0]
        self._live = [0]
        self._free: list[int] = []
        self._open = 0
        self._open_texts: list[Text] = []
        self._open_bytes = 0
        self._thin: set[int] = set()

    def add(
        self, payloads: bytes, lengths: NDArray[np.integer], names: bytes, name_lengths: NDArray[np.integer]
    ) -> UInt32s:
        """Store ``n`` concatenated texts and return their refs.

        Whole pages are sliced off; a rest below ``PAGE_ROWS_MIN`` goes into the open page text by text. Raises
        ``WheelbeatError`` if the lengths do not add up to the bytes.
        """
        payload_ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        name_ends = np.concatenate(([0], np.cumsum(name_lengths, dtype=np.int64)))
        if payload_ends[-1] != len(payloads) or name_ends[-1] != len(names):
            raise WheelbeatError(
                f"a batch of {len(lengths)} jobs has {len(payloads)} payload bytes and {len(names)} name bytes, its"
                f" lengths say {payload_ends[-1]} and {name_ends[-1]}"
            )
        longest = int(lengths.max(initial=0)) + int(name_lengths.max(initial=0))
        self.longest = max(self.longest, longest)
        refs = np.empty(len(lengths), np.uint32)
        start = 0
        while (stop := min(start + PAGE_ROWS, len(lengths))) - start >= PAGE_ROWS_MIN and (
            payload_ends[stop] - payload_ends[start] + name_ends[stop] <= PAGE_BYTES
        ):
            number = self._new_page()
            self._fill(
                number,
                Page.of(
                    payloads[payload_ends[start] : payload_ends[stop]],
                    payload_ends[start + 1 : stop + 1] - payload_ends[start],
                    names[name_ends[start] : name_ends[stop]],
                    name_ends[start + 1 : stop + 1] - name_ends[start],
                ),
            )
            self._live[number] = stop - start
            refs[start:stop] = (number << PAGE_BITS) + np.arange(stop - start, dtype=np.uint32)
            start = stop
        texts = (
            Text(names[name_from:name_to], payloads[from_:to])
            for (from_, to), (name_from, name_to) in zip(
                pairwise(payload_ends[start:].tolist()), pairwise(name_ends[start:].tolist()), strict=True
            )
        )
        refs[start:] = self._add_texts(texts)
        return refs

    def read(self, refs: UInt32s) -> list[Text]:
        """Return the texts of ``refs``, in their order."""
        if len(refs) >= PAGE_ROWS_MIN:
            return self._read_pages(refs)
        texts = []
        for ref in refs.tolist():
            page = self._pages[ref >> PAGE_BITS]
            position = ref & (PAGE_ROWS - 1)
            texts.append(self._open_texts[position] if page is None else page.text(position))
        return texts

    def _read_pages(self, refs: UInt32s) -> list[Text]:
        """Read page by page: the places of many texts are found at once."""
        texts: list[Text] = [Text(b"", b"")] * len(refs)
        numbers, positions = refs >> PAGE_BITS, (refs & (PAGE_ROWS - 1)).astype(np.int64)
        for number in np.unique(numbers).tolist():
            (at,) = np.nonzero(numbers == number)
            page, of = self._pages[number], positions[at]
            found = map(self._open_texts.__getitem__, of.tolist()) if page is None else page.texts(of)
            for place, text in zip(at.tolist(), found, strict=True):
                texts[place] = text
        return texts

    def lengths(self, refs: UInt32s) -> list[int]:
        """Return for each ref the length in bytes of payload and name together."""
        lengths = []
        for ref in refs.tolist():
            page = self._pages[ref >> PAGE_BITS]
            position = ref & (PAGE_ROWS - 1)
            lengths.append(sum(map(len, self._open_texts[position])) if page is None else page.length(position))
        return lengths

    def named(self, name: bytes) -> UInt32s:
        """Return the refs with this name, released ones included; scans the names of all pages."""
        refs = [
            (number << PAGE_BITS) + position
            for number, page in enumerate(self._pages)
            if page is not None
            for position in page.positions_of(name)
        ]
        refs += [(self._open << PAGE_BITS) + at for at, text in enumerate(self._open_texts) if text.name == name]
        return np.array(refs, np.uint32)

    def release(self, refs: UInt32s) -> None:
        """Mark the texts of ``refs`` as dead; they must not be read again."""
        if not len(refs):
            return
        self.on_release(refs)
        numbers, counts = np.unique(refs >> PAGE_BITS, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._live[number] -= count
            if number != self._open:
                self._judge(number)

    def thin(self, refs: UInt32s) -> NDArray[np.bool_]:
        """Return a mask of the ``refs`` in thin pages (more than half dead), to be passed to ``move``."""
        if not self._thin:
            return np.zeros(len(refs), np.bool_)
        numbers = np.fromiter(self._thin, np.uint32, len(self._thin))
        return np.isin(refs >> PAGE_BITS, numbers)

    def move(self, refs: UInt32s) -> UInt32s:
        """Copy the texts of ``refs`` into the open page, release ``refs``, and return the new refs."""
        moved = self._add_texts(self.read(refs))
        self.release(refs)
        return moved

    def valid(self, refs: UInt32s) -> NDArray[np.bool_]:
        """Return a mask of the ``refs`` that point to an existing position."""
        rows = np.array(self._rows, np.int64)
        rows[self._open] = len(self._open_texts)
        numbers = refs >> PAGE_BITS
        known = numbers < len(rows)
        return known & ((refs & (PAGE_ROWS - 1)) < rows[np.where(known, numbers, 0)])

    def damaged(self, numbers: Iterable[int]) -> list[int]:
        """Return those of the pages ``numbers`` whose checksum fails."""
        pages = ((number, self._pages[number]) for number in numbers)
        return [number for number, page in pages if page is not None and not page.intact()]

    @property
    def page_count(self) -> int:
        """Length of the page list, freed pages included."""
        return len(self._pages)

    @property
    def resident_bytes(self) -> int:
        """Bytes held by all pages, dead texts included."""
        full = sum(
            len(page.payloads) + len(page.names) + page.payload_ends.off.nbytes + page.name_ends.off.nbytes
            for page in self._pages
            if page
        )
        return full + self._open_bytes

    def _add_texts(self, texts: Iterable[Text]) -> UInt32s:
        refs: list[int] = []
        for text in texts:
            refs.append((self._open << PAGE_BITS) | len(self._open_texts))
            self._open_texts.append(text)
            self._open_bytes += len(text.payload) + len(text.name)
            self._live[self._open] += 1
            if len(self._open_texts) == PAGE_ROWS or self._open_bytes >= PAGE_BYTES:
                self._close_open_page()
        return np.array(refs, np.uint32)

    def _close_open_page(self) -> None:
        full, self._open = self._open, self._new_page()
        self._fill(full, _joined(self._open_texts))
        self._open_texts = []
        self._open_bytes = 0
        self._judge(full)

    def _new_page(self) -> int:
        return self._free.pop() if self._free else self._next_number()

    def _next_number(self) -> int:
        if len(self._pages) == PAGES_MAX:
            raise WheelbeatError(f"payloads: all {PAGES_MAX} pages are in use; lower wheelbeat_max_jobs")
        self._pages.append(None)
        self._rows.append(0)
        self._live.append(0)
        return len(self._pages) - 1

    def _fill(self, number: int, page: Page) -> None:
        self._pages[number] = page
        self._rows[number] = len(page.payload_ends.off)

    def _judge(self, number: int) -> None:
        live = self._live[number]
        if live == 0:
            self._thin.discard(number)
            self._pages[number] = None
            self._rows[number] = 0
            self._free.append(number)
        elif 2 * live < self._rows[number]:
            self._thin.add(number)


def _joined(texts: Sequence[Text]) -> Page:
    return Page.of(
        b"".join(text.payload for text in texts),
        np.cumsum([len(text.payload) for text in texts], dtype=np.int64),
        b"".join(text.name for text in texts),
        np.cumsum([len(text.name) for text in texts], dtype=np.int64),
    )


def _line(total: int, count: int) -> NDArray[np.int64]:
    """Return the end offsets that ``count`` texts of equal length would have."""
    return total * _FROM_ONE[:count] // count


def _checksum(payloads: bytes, payload_ends: Ends, names: bytes, name_ends: Ends) -> int:
    """Return the CRC of all bytes of a page."""
    checksum = zlib.crc32(b"%d %d" % (payload_ends.total, name_ends.total))
    for part in (payloads, payload_ends.off.tobytes(), names, name_ends.off.tobytes()):
        checksum = zlib.crc32(part, checksum)
    return checksum
