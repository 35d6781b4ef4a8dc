"""Instants as text: fire times in a monitor's zone, to the second, with the zone's abbreviation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django_wheelbeat.monitors.rows import EPOCH, to_datetime


def now_ms() -> int:
    """Return the web process's wall clock in ms since the Unix epoch; "next run" in the admin is relative to it."""
    return (datetime.now(UTC) - EPOCH) // timedelta(milliseconds=1)


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo | None:
    """Return the zone, or None if the system does not know the name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        return None


def in_zone(instant_ms: int, zone_name: str) -> str:
    """Return ``Mon 2026-03-29 03:00:17 CEST``; with milliseconds if not zero, in UTC if the zone is unknown."""
    try:
        instant = to_datetime(instant_ms).astimezone(zone(zone_name) or UTC)
    except OverflowError:
        return f"{instant_ms} ms"
    fraction = f".{instant_ms % 1000:03d}" if instant_ms % 1000 else ""
    return f"{instant:%a %Y-%m-%d %H:%M:%S}{fraction} {instant:%Z}"
