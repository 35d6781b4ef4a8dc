"""Incidents: a faster interval that replaces a monitor's schedule until an instant; they end without a write."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.utils import timezone

from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.schedules.durations import format_duration, parse_duration
from django_wheelbeat.monitors.rows import aware

if TYPE_CHECKING:
    from django_wheelbeat.models import Monitor
    from django_wheelbeat.monitors.queryset import MonitorQuerySet


def incident_interval_ms(every: str | float | timedelta) -> int:
    """Return ``every`` (text such as ``"10s"``, seconds, or a timedelta) in milliseconds.

    Raises ``InvalidSchedule`` if the text is not a duration, ``InvalidMonitor`` if the number is not positive.
    """
    if isinstance(every, str):
        return parse_duration(every)
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    every_ms = round(seconds * 1000)
    if every_ms <= 0:
        raise InvalidMonitor("incident_interval_ms", f"{every!r} is not a positive duration")
    return every_ms


def incident_end(until: datetime | timedelta) -> datetime:
    """Return the instant ``until``; a timedelta counts from now and is rounded up to a whole second.

    Raises ``InvalidMonitor`` if it has passed.
    """
    now = aware(timezone.now())
    end = now + until if isinstance(until, timedelta) else aware(until)
    if end <= now:
        raise InvalidMonitor("incident_until", f"{end.isoformat()} is in the past; give a time in the future")
    return _whole_second(end) if isinstance(until, timedelta) else end


def _whole_second(instant: datetime) -> datetime:
    return instant if not instant.microsecond else instant.replace(microsecond=0) + timedelta(seconds=1)


def start_incident(monitor: Monitor, every: str | float | timedelta, until: datetime | timedelta) -> None:
    """Speed up the stored row and refresh ``monitor``; raises ``InvalidMonitor`` if it cannot be sped up."""
    if not _stored(monitor).speed_up(every, until):
        own = (
            "it has no interval or cron schedule"
            if monitor.interval_ms is None
            else f"its interval is {format_duration(monitor.interval_ms)}"
        )
        raise InvalidMonitor("incident_interval_ms", f"{monitor} cannot fire every {every}: {own}, or it was deleted")
    monitor.refresh_from_db(fields=["incident_interval_ms", "incident_until"])


def end_incident(monitor: Monitor) -> None:
    """End the incident in the stored row and in ``monitor``."""
    _stored(monitor).end_incident()
    monitor.incident_interval_ms = monitor.incident_until = None


def _stored(monitor: Monitor) -> MonitorQuerySet:
    return type(monitor)._default_manager.using(monitor._state.db).filter(pk=monitor.pk)
