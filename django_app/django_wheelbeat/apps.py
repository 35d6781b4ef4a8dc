"""App configuration: registers the monitor database and the claim store, and installs triggers after ``migrate``."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class WheelbeatConfig(AppConfig):
    """``INSTALLED_APPS += ["django_wheelbeat"]``."""

    name = "django_wheelbeat"
    label = "wheelbeat"
    verbose_name = _("Monitors")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register checks, monitor database, claim store, hooks and trigger installation. Runs no query."""
        from celery_wheelbeat import sources  # noqa: PLC0415 - models have to be loaded first
        from celery_wheelbeat.later import drop_in  # noqa: PLC0415 - same
        from celery_wheelbeat.later import opening as later  # noqa: PLC0415 - same
        from celery_wheelbeat.worker import stores  # noqa: PLC0415 - same
        from celery_wheelbeat.worker.hooks.autoinstall import install_where_wanted  # noqa: PLC0415 - same
        from django_wheelbeat import checks  # noqa: F401, PLC0415 - same; checks register themselves
        from django_wheelbeat.database import claim_store as claims  # noqa: PLC0415 - same; checks register themselves
        from django_wheelbeat.database import opening as database  # noqa: PLC0415 - same

        later.register(database.application_connection)
        sources.register(database.monitor_database)
        stores.register("django-db", claims.claim_store)
        install_where_wanted(by_default=True)
        drop_in.install_into_every_app()
        post_migrate.connect(_install_triggers, sender=self)


def _install_triggers(using: str, **_kwargs: Any) -> None:
    from django_wheelbeat.database import opening as database  # noqa: PLC0415 - models have to be loaded first

    database.install_triggers(using)
