"""The column ``packed`` of a monitor in PostgreSQL: everything of a fixed width that a beat wants of it, in 42 bytes.

The database puts it together when a row is written, so that nothing has to be computed when 25 million are read. A
monitor that has to be looked at by itself has none. The migration that adds the column and ``LAYOUT`` are one format.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from celery_wheelbeat.jobs import Int64s, UInt32s

LAYOUT = np.dtype(
    [
        ("id", ">i8"),
        ("shape", ">i8"),
        ("interval_ms", ">i8"),
        ("effective_us", ">i8"),
        ("name_bytes", ">u2"),
        ("args_bytes", ">u2"),
        ("kwargs_bytes", ">u2"),
        ("content", ">u4"),
    ]
)
"""``effective_us`` counts from 2000; ``content`` is a hash of name and arguments. Lengths are those in the encoding of
the database."""
_ONE = struct.Struct(">8xqq8x6xI")
_EPOCH_MS = 946_684_800_000
"""2000-01-01, from where PostgreSQL counts."""
_KEPT = 0xFFFF_FFFF


class Packed:
    """The packed columns of ``n`` monitors, one after the other."""

    def __init__(self, content: bytes) -> None:
        self._rows = np.frombuffer(content, LAYOUT)
        self._columns: dict[str, Int64s] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> Int64s:
        """Return one of the columns in ``LAYOUT``."""
        if name not in self._columns:
            self._columns[name] = self._rows[name].astype(np.int64)
        return self._columns[name]

    def effective_from_ms(self) -> Int64s:
        """Return since when each definition is in force, in ms since the Unix epoch, cut."""
        return self.column("effective_us") // 1000 + _EPOCH_MS

    def prints(self) -> UInt32s:
        """Return the fingerprint of each definition."""
        prints: UInt32s = (self.column("shape") ^ self.column("interval_ms")).astype(np.uint32)
        prints ^= self._rows["content"]
        return prints


def fingerprint(packed: bytes | None) -> int | None:
    """Return the fingerprint of one monitor, the same as ``Packed.prints``; None for one without ``packed``."""
    if packed is None:
        return None
    shape, interval_ms, content = _ONE.unpack(packed)
    return int(shape ^ interval_ms ^ content) & _KEPT
