"""The namespace of run ids. Every computation of a run id takes it from here."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_wheelbeat.settings import Settings

logger = logging.getLogger("celery.beat")

COMMON_NAMES = (None, "celery", "tasks", "app", "proj", "config")
"""App names that do not identify an installation."""


def namespace_of(app: Any, settings: Settings, installation: str | None) -> str:
    """Return the setting, else the installation's UUID, else the app's name."""
    if settings.namespace or installation:
        return settings.namespace or str(installation)
    if app.main in COMMON_NAMES:
        logger.warning(
            "beat: Run ids are derived from the app name %r; set wheelbeat_namespace to a unique name",
            app.main,
        )
    return str(app.main or "celery")
