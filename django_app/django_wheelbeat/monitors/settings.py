"""The ``wheelbeat_*`` settings as this web process sees them: the same table as the beat's."""

from __future__ import annotations

import logging

from celery import current_app

from celery_wheelbeat.errors import InvalidSetting
from celery_wheelbeat.settings import Settings

logger = logging.getLogger(__name__)


def beat_settings() -> Settings:
    """Read them from the current Celery app; a bad one is the beat's error to raise, here the defaults stand in."""
    try:
        return Settings.from_conf(current_app.conf)
    except InvalidSetting as problem:
        logger.warning("settings of celery-wheelbeat are invalid, forms use the defaults: %s", problem)
        return Settings()
