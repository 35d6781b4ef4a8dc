"""Converts a ``Monitor`` to the ``MonitorRow`` that the engine checks and compiles, without a query."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from django.utils import timezone

from celery_wheelbeat.jobs.rows import MonitorRow

if TYPE_CHECKING:
    from django_wheelbeat.models import Monitor

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

UNSAVED_ID = 0
"""Used as primary key of a monitor that has none yet."""


def to_ms(instant: datetime | None) -> int | None:
    """Milliseconds since the Unix epoch; None for anything else, such as a default that the database fills in."""
    return (aware(instant) - EPOCH) // _MILLISECOND if isinstance(instant, datetime) else None


def aware(instant: datetime) -> datetime:
    """Return ``instant`` with a zone; naive values (``USE_TZ = False``) are in ``TIME_ZONE``."""
    return timezone.make_aware(instant, timezone.get_default_timezone()) if timezone.is_naive(instant) else instant


def to_datetime(instant_ms: int) -> datetime:
    """Return the aware UTC instant; raises ``OverflowError`` beyond the year 9999."""
    return EPOCH + timedelta(milliseconds=instant_ms)


def row_of(monitor: Monitor) -> MonitorRow:
    """Return the columns of ``monitor`` as a row; deferred texts become None instead of being fetched."""
    loaded = monitor.__dict__.get
    return MonitorRow(
        id=UNSAVED_ID if monitor.pk is None else monitor.pk,
        name=monitor.name,
        task=monitor.task,
        args=loaded("args"),
        kwargs=loaded("kwargs"),
        interval_ms=monitor.interval_ms,
        cron=monitor.cron or None,
        timezone=monitor.timezone,
        day_rule=monitor.day_rule,
        once_at_ms=to_ms(monitor.once_at),
        solar_event=monitor.solar_event or None,
        solar_latitude=monitor.solar_latitude,
        solar_longitude=monitor.solar_longitude,
        jitter_s=monitor.jitter_s,
        start_at_ms=to_ms(monitor.start_at),
        end_at_ms=to_ms(monitor.end_at),
        one_off=monitor.one_off,
        queue=loaded("queue") or None,
        exchange=loaded("exchange") or None,
        routing_key=loaded("routing_key") or None,
        priority=loaded("priority"),
        headers=loaded("headers"),
        expires_s=loaded("expires_s"),
        expires_next=monitor.expires_next,
        options=loaded("options"),
        misfire=monitor.misfire,
        overlap=monitor.overlap,
        enabled=monitor.enabled,
        incident_interval_ms=monitor.incident_interval_ms,
        incident_until_ms=to_ms(monitor.incident_until),
        effective_from_ms=to_ms(loaded("effective_from")) or 0,  # set by the database; a new row has none yet
        finished_at_ms=to_ms(loaded("finished_at")),
    )
