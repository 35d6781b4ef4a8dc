"""Where a one-off run lies: the second it is due in, the partition of that second, and ids that carry the due time.

The 59 partitions form a ring, so no statement ever creates or drops one: 32 parts of a day for what is due within 30
days, 26 parts of 30 days for what is due within two years, one for everything beyond. A row is never moved: a second
is read from the three parts in which its rows can lie.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

DAY_S: Final = 86_400
MONTH_S: Final = 30 * DAY_S
DAY_PARTS: Final = 32
MONTH_PARTS: Final = 26
BEYOND: Final = DAY_PARTS + MONTH_PARTS
"""Number of the last part; it holds what is due in ``NEAR_S + 23`` months or later."""
PARTS: Final = BEYOND + 1
NEAR_S: Final = MONTH_S
"""What is due within this time lies in a part of a day."""
FAR_S: Final = 24 * MONTH_S
"""What is due within this time lies in a part of 30 days."""
LAST_MS: Final = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp()) * 1000
"""Instants from here on are refused: no library of the workers represents them."""

_TABLE: Final = "wheelbeat_later"
_ID_BITS: Final = 48


def part_of(second: int, now_s: int) -> int:
    """Return the part into which a row due in ``second`` is inserted at database time ``now_s`` (both unix seconds)."""
    ahead_s = second - now_s
    if ahead_s < NEAR_S:
        return second // DAY_S % DAY_PARTS
    if ahead_s < FAR_S:
        return DAY_PARTS + second // MONTH_S % MONTH_PARTS
    return BEYOND


def parts_of(second: int) -> tuple[int, int, int]:
    """Return the three parts in which rows of ``second`` can lie."""
    return second // DAY_S % DAY_PARTS, DAY_PARTS + second // MONTH_S % MONTH_PARTS, BEYOND


def parts_between(from_s: int, until_s: int) -> list[int]:
    """Return the parts in which rows of the seconds ``from_s`` to ``until_s`` (exclusive) can lie, ascending."""
    found = {BEYOND}
    for length_s, parts, first in ((DAY_S, DAY_PARTS, 0), (MONTH_S, MONTH_PARTS, DAY_PARTS)):
        turns = range(from_s // length_s, -(-until_s // length_s))[:parts]  # a longer period covers the whole ring
        found.update(first + turn % parts for turn in turns)
    return sorted(found)


def table_of(part: int) -> str:
    """Return the name of the table of ``part``."""
    if part < DAY_PARTS:
        return f"{_TABLE}_d{part:02}"
    return f"{_TABLE}_beyond" if part == BEYOND else f"{_TABLE}_m{part - DAY_PARTS:02}"


def day_part(day: int) -> int:
    """Return the part that holds the rows due on day number ``day`` (days since 1970)."""
    return day % DAY_PARTS


def due_id(at_ms: int, octets: bytes | None = None) -> UUID:
    """Return a new UUIDv7 whose time is the due time ``at_ms``, so that an id alone leads to its second.

    ``octets``: ten random bytes. The layout is that of RFC 9562, section 5.7.
    """
    random = os.urandom(10) if octets is None else octets
    head = max(0, at_ms).to_bytes(6, "big")
    return UUID(bytes=head + bytes([0x70 | random[0] & 0x0F, random[1], 0x80 | random[2] & 0x3F]) + random[3:])


def due_ms_of(task_id: str) -> int | None:
    """Return the due time in a task id of ``due_id``; None for any other id."""
    try:
        found = UUID(task_id)
    except ValueError:
        return None
    if found.version != 7 or str(found) != task_id:
        return None
    return found.int >> (128 - _ID_BITS)
