"""Speeds up the monitor of a site that is down, until the site is up again or two minutes have passed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_wheelbeat.models import Monitor

FAILURES = 2
"""Failed checks in a row that open an incident."""
EVERY = timedelta(seconds=2)
LASTS = timedelta(minutes=2)
"""An incident ends by itself, without a write, so a site that stays down is not checked at this pace for ever."""


def follow(monitor: Monitor, failures: int, *, up: bool) -> None:
    """Open, keep or end the incident of ``monitor`` after a check."""
    is_slower = monitor.interval_ms is None or timedelta(milliseconds=monitor.interval_ms) > EVERY
    if failures == FAILURES and is_slower:
        monitor.speed_up(EVERY, LASTS)
    elif up and monitor.incident_until is not None:
        monitor.end_incident()
