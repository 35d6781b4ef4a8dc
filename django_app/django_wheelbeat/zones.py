"""The time zone that a monitor gets when nobody names one."""

from __future__ import annotations

from django.conf import settings


def default_timezone() -> str:
    """Return ``CELERY_TIMEZONE`` where the project sets it, else ``TIME_ZONE``."""
    return str(getattr(settings, "CELERY_TIMEZONE", None) or settings.TIME_ZONE)
