"""The time zone that a monitor gets when nobody names one."""

from __future__ import annotations

from celery import current_app
from django.conf import settings


def default_timezone() -> str:
    """Return ``CELERY_TIMEZONE`` where the project sets it, else the zone of its Celery app, else ``TIME_ZONE``."""
    chosen = getattr(settings, "CELERY_TIMEZONE", None) or current_app.conf.timezone
    return str(chosen or settings.TIME_ZONE)
