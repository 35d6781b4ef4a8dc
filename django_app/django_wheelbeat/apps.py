"""App configuration: registers the database of monitors with the scheduler."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class WheelbeatConfig(AppConfig):
    """``INSTALLED_APPS += ["django_wheelbeat"]``."""

    name = "django_wheelbeat"
    label = "wheelbeat"
    verbose_name = _("Monitors")
    default_auto_field = "django.db.models.BigAutoField"
