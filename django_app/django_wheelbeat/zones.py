"""The time zone that a monitor gets when nobody names one."""

from __future__ import annotations

from celery import current_app
from django.conf import settings

from celery_wheelbeat.sources.celery_zones import zone_name


def default_timezone() -> str:
    """Return ``CELERY_TIMEZONE`` where the project sets it, else the zone of its Celery app, else ``TIME_ZONE``.

    A zone that has no IANA name, like a ``datetime.timezone``, cannot be stored: it is passed over.
    """
    chosen = getattr(settings, "CELERY_TIMEZONE", None) or current_app.conf.timezone
    return zone_name(chosen or None) or str(settings.TIME_ZONE)
