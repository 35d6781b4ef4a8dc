"""The ``wheelbeat_*`` settings in a web process, parsed as the beat parses them."""

from __future__ import annotations

import logging

from celery import current_app

from celery_wheelbeat.errors import InvalidSetting
from celery_wheelbeat.settings import Settings

logger = logging.getLogger(__name__)


def beat_settings() -> Settings:
    """Return the settings of the current Celery app, or the defaults if one is invalid (the beat raises for it)."""
    try:
        return Settings.from_conf(current_app.conf)
    except InvalidSetting as problem:
        logger.warning("settings of celery-wheelbeat are invalid, forms use the defaults: %s", problem)
        return Settings()
