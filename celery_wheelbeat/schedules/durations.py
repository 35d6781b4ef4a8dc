"""Parses and formats durations such as ``90s``, ``5m``, ``1h30m``, ``0.5s``.

Exact to the millisecond in both directions. An ambiguous text is refused.
"""

from __future__ import annotations

import re

from celery_wheelbeat.errors import InvalidSchedule

_UNIT_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_TEXT = re.compile(
    r"(?:([0-9]{1,6})w)?(?:([0-9]{1,7})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,11})m)?"
    r"(?:([0-9]{1,12}(?:\.[0-9]{1,3})?)s)?(?:([0-9]{1,15})ms)?"
)
_EXAMPLES = "write it like 90s, 5m, 1h30m, 2d or 0.5s"


def parse_duration(text: str) -> int:
    """Return ``text`` in milliseconds: weeks, days, hours, minutes, seconds and ``ms``, in this order.

    Spaces and capitals are allowed. Raises ``InvalidSchedule`` for other texts, and for zero.
    """
    squeezed = "".join(text.split()).lower()
    match = _TEXT.fullmatch(squeezed)
    if not squeezed or match is None:
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", squeezed):
            raise InvalidSchedule(f"duration {text!r:.80} has no unit: {_EXAMPLES}")
        raise InvalidSchedule(f"duration {text!r:.80} cannot be read: {_EXAMPLES}")
    total_ms = 0
    for number, unit_ms in zip(match.groups(), _UNIT_MS.values(), strict=True):
        whole, _, fraction = (number or "0").partition(".")
        total_ms += int(whole) * unit_ms + int(fraction.ljust(3, "0") or 0)
    if total_ms == 0:
        raise InvalidSchedule(f"duration {text!r:.80} is zero: {_EXAMPLES}")
    return total_ms


def format_duration(duration_ms: int) -> str:
    """Return the shortest text for ``duration_ms`` (≥ 0) that ``parse_duration`` reads back; without weeks."""
    if 0 < duration_ms < 1_000:
        return f"{duration_ms}ms"
    parts = []
    rest_ms = duration_ms
    for unit in ("d", "h", "m"):
        count, rest_ms = divmod(rest_ms, _UNIT_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    seconds, fraction_ms = divmod(rest_ms, 1_000)
    if fraction_ms:
        parts.append(f"{seconds}.{fraction_ms:03d}".rstrip("0") + "s")
    elif seconds or not parts:
        parts.append(f"{seconds}s")
    return "".join(parts)
