"""The time wheel of one shard: row numbers filed under the tick in which they fire.

Near ticks are *slots* (``dict[tick → bytes]``, four bytes a row); everything past ``edge`` is *far*, filed by window of
ticks (a quarter of an hour) and promoted window by window. Keys are absolute, so nothing aliases, and empty slots cost
nothing. A *place* is a slot or a far window. It is stored as ``bytes`` and replaced when it grows: there are hundreds
of thousands of places, ``bytes`` are half as large as a growable type, and the garbage collector does not track them.

Deletion is lazy: an entry is valid only while ``next_fire`` of its row falls into its place. Invariant: code that moves
a row out of a place marks the place *dirty* (``moved_away``). A dirty place may hold a row twice, because it left and
came back, and is deduplicated when it is emptied; otherwise the row would fire twice. The wheel must never be asked to
file a row that it already holds as valid.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

NO_ROWS: UInt32s = np.empty(0, np.uint32)
ROW_BYTES = 4


class Wheel:
    """Slots, far windows and their dirty marks. Knows ticks and rows, but no jobs or fire times.

    ``window_ticks`` is the length of a far window; ``edge`` is the first far tick, a multiple of ``window_ticks``.
    """

    def __init__(self, cursor: int, window_ticks: int) -> None:
        self.window_ticks = window_ticks
        self.slots: dict[int, bytes] = {}
        self.far: dict[int, bytes] = {}
        self.dirty_slots: set[int] = set()
        self.dirty_far: set[int] = set()
        self.edge = (cursor // window_ticks + 1) * window_ticks

    def arm(self, rows: UInt32s, ticks: Int64s) -> None:
        """File ``rows`` under ``ticks``, in any order."""
        if len(rows) == 1:
            self._arm_one(int(rows[0]), int(ticks[0]))
            return
        near = ticks < self.edge
        if near.all():
            _file(self.slots, rows, ticks)
            return
        # positions: numpy scans a mask again for each column
        here, there = np.flatnonzero(near), np.flatnonzero(~near)
        _file(self.slots, rows[here], ticks[here])
        _file(self.far, rows[there], ticks[there] // self.window_ticks)

    def moved_away(self, ticks: Int64s) -> None:
        """Mark dirty the places of rows that were armed for ``ticks`` and no longer are."""
        for tick in set(ticks.tolist()):
            if tick < self.edge:
                if tick in self.slots:
                    self.dirty_slots.add(tick)
            elif tick // self.window_ticks in self.far:
                self.dirty_far.add(tick // self.window_ticks)

    def pop(self, tick: int) -> UInt32s:
        """Empty the slot of ``tick`` and return its rows, each once, stale ones included."""
        rows = self.slots.pop(tick, None)
        if rows is None:
            return NO_ROWS
        found = np.frombuffer(rows, np.uint32)
        if tick in self.dirty_slots:
            self.dirty_slots.discard(tick)
            return np.unique(found)
        return found

    def pop_window(self) -> UInt32s:
        """Advance the edge by one window and return its rows, stale ones included, for the caller to file."""
        window = self.edge // self.window_ticks
        self.edge += self.window_ticks
        rows = self.far.pop(window, None)
        if rows is None:
            return NO_ROWS
        found = np.frombuffer(rows, np.uint32)
        if window in self.dirty_far:
            self.dirty_far.discard(window)
            return np.unique(found)
        return found

    def entries(self) -> Iterator[tuple[bool, UInt32s, Int64s]]:
        """Yield (is far, rows, place of each row): once for all slots, once for all far windows."""
        for is_far, places in ((False, self.slots), (True, self.far)):
            lengths = np.fromiter(map(len, places.values()), np.int64, len(places)) // ROW_BYTES
            rows = np.frombuffer(b"".join(places.values()), np.uint32)
            yield is_far, rows, np.repeat(np.fromiter(places, np.int64, len(places)), lengths)

    def _arm_one(self, row: int, tick: int) -> None:
        near = tick < self.edge
        places, place = (self.slots, tick) if near else (self.far, tick // self.window_ticks)
        _extend(places, place, row.to_bytes(ROW_BYTES, sys.byteorder))


def _file(places: dict[int, bytes], rows: UInt32s, keys: Int64s) -> None:
    if not len(rows):
        return
    low = int(keys.min())
    span = int(keys.max()) - low
    if span == 0:
        _extend(places, low, np.ascontiguousarray(rows).view(np.uint8).data)
        return
    # numpy sorts 16-bit keys by radix, several times faster than int64; one hour of ticks always fits
    above = keys - low if span >= 1 << 16 else (keys - low).astype(np.uint16)
    order = np.argsort(above, kind="stable")
    above = above[order]
    content = rows[order].view(np.uint8).data
    starts = np.concatenate(([0], np.flatnonzero(above[1:] != above[:-1]) + 1))
    bounds = [*(ROW_BYTES * starts).tolist(), len(content)]
    for place, (start, end) in zip((low + above[starts].astype(np.int64)).tolist(), pairwise(bounds), strict=True):
        _extend(places, place, content[start:end])


def _extend(places: dict[int, bytes], place: int, content: memoryview | bytes) -> None:
    rows = places.get(place)
    places[place] = bytes(content) if rows is None else rows + content
