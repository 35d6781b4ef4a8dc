"""A schedule in words, for lists and previews. Never raises; an invalid schedule is described as unreadable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from celery_wheelbeat.jobs.validation import cron_of
from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.durations import format_duration
from django_wheelbeat.monitors.row_errors import computed
from django_wheelbeat.monitors.times import in_zone

if TYPE_CHECKING:
    from celery_wheelbeat.jobs.rows import MonitorRow


def schedule_in_words(row: MonitorRow) -> str:
    """Return when ``row`` fires, ignoring jitter and incident; rows written by SQL may have no schedule, or two."""
    return computed(row, lambda: _words_of(row), _("unreadable schedule"))


def _words_of(row: MonitorRow) -> str:
    kinds = [_interval(row), _cron(row), _once(row), _solar(row)]
    texts = [words for words in kinds if words]
    return _(" and ").join(texts) if texts else _("no schedule")


def _interval(row: MonitorRow) -> str:
    if row.interval_ms is None:
        return ""
    if row.interval_ms <= 0:
        return _("unreadable interval")
    return _("every %(span)s") % {"span": format_duration(row.interval_ms)}


def _cron(row: MonitorRow) -> str:
    if not row.cron:
        return ""
    cron = cron_of(row.cron, row.timezone, row.day_rule)
    if not isinstance(cron, Cron):
        return _("unreadable cron “%(cron)s”") % {"cron": row.cron}
    return f"{cron.describe()} ({row.timezone})"


def _once(row: MonitorRow) -> str:
    if row.once_at_ms is None:
        return ""
    return _("once at %(instant)s") % {"instant": in_zone(row.once_at_ms, row.timezone)}


def _solar(row: MonitorRow) -> str:
    if not row.solar_event:
        return ""
    event = row.solar_event.replace("_", " ")
    return _("at %(event)s, latitude %(latitude)s, longitude %(longitude)s") % {
        "event": event,
        "latitude": row.solar_latitude,
        "longitude": row.solar_longitude,
    }
