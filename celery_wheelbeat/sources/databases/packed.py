"""The column ``packed`` of a monitor in PostgreSQL: all fixed-width values that a beat needs, in 54 bytes.

The database computes it when a row is written, so that reading 25 million rows computes nothing. It is null for a
monitor that must be compiled row by row. ``LAYOUT`` and the migration that adds the column define the same format.
"""

from __future__ import annotations

import operator
import secrets
import struct
from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.errors import SourceError

if TYPE_CHECKING:
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

LAYOUT = np.dtype(
    [
        ("id", ">i8"),
        ("shape", ">i8"),
        ("shape_rest", ">i8"),
        ("interval_ms", ">i8"),
        ("effective_us", ">i8"),
        ("name_bytes", ">u2"),
        ("args_bytes", ">u2"),
        ("kwargs_bytes", ">u2"),
        ("content", ">i8"),
    ]
)
"""``shape`` and ``shape_rest``: 16 bytes of a SHA-256 over the columns that monitors share; ``content``: 8 bytes of a
SHA-256 over name and arguments. ``effective_us``: µs since 2000. Lengths are bytes in the encoding of the database."""
_ONE = struct.Struct(">8xQQQ8x6xQ")
_MIXED = ("shape", "shape_rest", "interval_ms", "content")
_FACTORS = tuple(secrets.randbits(64) | 1 for _ in _MIXED)
"""Random per process: users cannot construct two definitions with one fingerprint."""
_EPOCH_MS = 946_684_800_000
"""2000-01-01, PostgreSQL's epoch."""
_64_BITS = (1 << 64) - 1
_FORMAT = (
    "the column packed of wheelbeat_monitor was made by another version: run `manage.py migrate wheelbeat`, or "
    "restart the beat if you have just migrated"
)


class Packed:
    """The packed columns of ``n`` monitors, concatenated."""

    def __init__(self, content: bytes) -> None:
        """Raises ``SourceError`` where this is another format."""
        if len(content) % LAYOUT.itemsize:
            raise SourceError(_FORMAT)
        self._rows = np.frombuffer(content, LAYOUT)
        self._columns: dict[str, Int64s] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> Int64s:
        """Return one column of ``LAYOUT``."""
        if name not in self._columns:
            self._columns[name] = self._rows[name].astype(np.int64)
        return self._columns[name]

    def effective_from_ms(self) -> Int64s:
        """Return ``effective_from`` of each definition in ms since the Unix epoch, rounded down."""
        return self.column("effective_us") // 1000 + _EPOCH_MS

    def prints(self) -> UInt32s:
        """Return the fingerprint of each definition."""
        mixed = np.zeros(len(self), np.uint64)
        for name, factor in zip(_MIXED, _FACTORS, strict=True):
            mixed += self.column(name).view(np.uint64) * np.uint64(factor)
        return (mixed >> np.uint64(32)).astype(np.uint32)


def fingerprint(packed: bytes | None) -> int | None:
    """Return the fingerprint of one monitor, the same as ``Packed.prints``; None for one without ``packed``.

    Raises ``SourceError`` where this is another format.
    """
    if packed is None:
        return None
    if len(packed) != LAYOUT.itemsize:
        raise SourceError(_FORMAT)
    values: tuple[int, ...] = _ONE.unpack(packed)
    mixed: int = sum(map(operator.mul, values, _FACTORS)) & _64_BITS
    return mixed >> 32
