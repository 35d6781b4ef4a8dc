"""The column ``packed`` of a monitor in PostgreSQL: everything of a fixed width that a beat wants of it, in 54 bytes.

The database puts it together when a row is written, so that nothing has to be computed when 25 million are read. A
monitor that has to be looked at by itself has none. The migration that adds the column and ``LAYOUT`` are one format.
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
"""``shape`` and ``shape_rest``: 16 bytes of a SHA-256 over what the monitor has in common with others; ``content``: 8
bytes of one over name and arguments. ``effective_us`` counts from 2000. Lengths are those in the encoding of the
database."""
_ONE = struct.Struct(">8xQQQ8x6xQ")
_MIXED = ("shape", "shape_rest", "interval_ms", "content")
_FACTORS = tuple(secrets.randbits(64) | 1 for _ in _MIXED)
"""Secrets of this process: nobody can make two definitions that have one fingerprint."""
_EPOCH_MS = 946_684_800_000
"""2000-01-01, from where PostgreSQL counts."""
_64_BITS = (1 << 64) - 1
_FORMAT = (
    "the column packed of wheelbeat_monitor is that of another version: run `manage.py migrate wheelbeat`, or restart"
    " the beat if that has just been done"
)


class Packed:
    """The packed columns of ``n`` monitors, one after the other."""

    def __init__(self, content: bytes) -> None:
        """Raises ``SourceError`` where this is another format."""
        if len(content) % LAYOUT.itemsize:
            raise SourceError(_FORMAT)
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
