"""Time zones as segments of constant offset from UTC, computed from the zone database.

Invariant: the segments of a zone cover time in order, without gap or overlap. The only I/O is the zone database, read
once per zone; the time zone and the clock of the machine have no influence.
"""

from __future__ import annotations

import difflib
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from zoneinfo import TZPATH, ZoneInfo, available_timezones

from celery_wheelbeat.errors import InvalidSchedule

EARLIEST_S = -62_135_424_000
"""0001-01-03T00:00Z: from here on ``datetime`` can represent the local time of every zone."""
LATEST_S = 253_402_128_000
"""9999-12-30T00:00Z: up to here ``datetime`` can represent the local time of every zone."""

_NO_ZONES = ("localtime", "posixrules", "Factory", "posix/", "right/")
"""Files beside the zones: the zone of the machine, a default for TZ, a placeholder for "not set", copies of all zones
without and with leap seconds. On some systems Python omits some of them itself."""
_BLOCK_BITS = 25
"""Segments are computed on demand, for 2^25 s (388 days) at a time."""
_SAMPLE_S = 1 << 17
"""36 h between samples. The closest two changes in the zone database are 95 h apart (Africa/Freetown, 1939)."""
_BLOCKS_MAX = 2048
"""Blocks cached per zone, about 1 MB; when the cache is full it is cleared."""


class Segment(NamedTuple):
    """A stretch ``[start_s, end_s)`` of instants (seconds since the Unix epoch) with one offset from UTC."""

    start_s: int
    end_s: int
    offset_s: int
    shift_s: int
    """Change of the wall clock at ``start_s``: > 0 skips local time, < 0 repeats it, 0 = no change."""


class Zone:
    """One zone of the IANA database. Segments are computed on demand and cached; thread-safe."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._rules = ZoneInfo(name)
        self._blocks: dict[int, tuple[Segment, ...]] = {}

    def segment(self, instant_s: int) -> Segment:
        """Return the segment that contains ``instant_s``, which must be in ``[EARLIEST_S, LATEST_S)``.

        A segment may begin or end without a change (``shift_s`` = 0).
        """
        block = instant_s >> _BLOCK_BITS
        segments = self._blocks.get(block)
        if segments is None:
            if len(self._blocks) >= _BLOCKS_MAX:
                self._blocks.clear()
            segments = self._blocks[block] = self._read(block)
        for segment in segments:
            if instant_s < segment.end_s:
                return segment
        raise AssertionError(f"{self.name}: no segment at {instant_s}")  # unreachable

    def _offset_s(self, instant_s: int) -> int:
        return offset_s(self._rules, instant_s)

    def _read(self, block: int) -> tuple[Segment, ...]:
        """Sample the offsets of one block and bisect every change to the second."""
        begin_s = max(block << _BLOCK_BITS, EARLIEST_S)
        end_s = min((block + 1) << _BLOCK_BITS, LATEST_S)
        offset_s = self._offset_s(begin_s)
        segments = []
        # A change at the first second of the block shows only against the second before it.
        shift_s = offset_s - self._offset_s(begin_s - 1) if begin_s > EARLIEST_S else 0
        start_s = low_s = begin_s
        while low_s < end_s - 1:
            high_s = min(low_s + _SAMPLE_S, end_s - 1)
            if self._offset_s(high_s) != offset_s:
                change_s = self._first_other(low_s, high_s, offset_s)
                segments.append(Segment(start_s, change_s, offset_s, shift_s))
                new_s = self._offset_s(change_s)
                start_s, shift_s, offset_s = change_s, new_s - offset_s, new_s
                high_s = change_s
            low_s = high_s
        segments.append(Segment(start_s, end_s, offset_s, shift_s))
        return tuple(segments)

    def _first_other(self, low_s: int, high_s: int, offset_s: int) -> int:
        """Return, by bisection, the first second in ``(low_s, high_s]`` whose offset is not ``offset_s``."""
        while high_s - low_s > 1:
            middle_s = (low_s + high_s) // 2
            if self._offset_s(middle_s) == offset_s:
                low_s = middle_s
            else:
                high_s = middle_s
        return high_s


def offset_s(rules: tzinfo, instant_s: int) -> int:
    """Return the offset of local time from UTC at an instant, in seconds; > 0 is ahead."""
    offset = datetime.fromtimestamp(instant_s, UTC).astimezone(rules).utcoffset()
    assert offset is not None  # noqa: S101 - every aware time has one
    return offset.days * 86_400 + offset.seconds


@lru_cache(maxsize=1)
def database_version() -> str:
    """Return the version of the zone database that this process reads, like ``2025b``, or ``unknown``.

    Python prefers the files of the system to the package tzdata. Beats with different versions may compute different
    fire times, and so different run ids.
    """
    for folder in map(Path, TZPATH):
        for name in ("tzdata.zi", "+VERSION", "version"):
            with suppress(OSError, UnicodeDecodeError), (folder / name).open(encoding="ascii") as stream:
                return stream.readline().removeprefix("# version").strip() or "unknown"
        if (folder / "UTC").exists():
            return "unknown"
    return _package_version()


def _package_version() -> str:
    try:
        return str(import_module("tzdata").IANA_VERSION)
    except ImportError:
        return "unknown"


@lru_cache(maxsize=1)
def names() -> frozenset[str]:
    """Return the names of all zones of the zone database."""
    return frozenset(name for name in available_timezones() if not name.startswith(_NO_ZONES))


@lru_cache(maxsize=1024)
def zone(name: str) -> Zone:
    """Return the zone with this IANA name; raises ``InvalidSchedule`` for an unknown name.

    Other files beside the zones are refused, see ``_NO_ZONES``.
    """
    if name not in names():
        close = difflib.get_close_matches(name[:80], names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "expected a name like 'UTC' or 'Europe/Berlin'"
        raise InvalidSchedule(f"unknown time zone {name!r:.80}: {hint}")
    return Zone(name)
