"""System checks: edits that the beat would not see, and settings that break django-celery-beat.

The checks of the database run only with ``manage.py check --database default``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.db import connections, router

from celery_wheelbeat.later.opening import is_database_of
from django_wheelbeat.database import triggers

if TYPE_CHECKING:
    from collections.abc import Sequence


SCHEDULER_PATH = "celery_wheelbeat.beat.scheduler:WheelScheduler"


@checks.register(checks.Tags.compatibility)
def check_scheduler_setting(**_kwargs: Any) -> list[checks.CheckMessage]:
    """``wheelbeat.W001``: django-celery-beat's admin cannot read the short name of the scheduler."""
    beside_it = apps.is_installed("django_celery_beat") and apps.is_installed("django.contrib.admin")
    if not beside_it or getattr(settings, "CELERY_BEAT_SCHEDULER", None) != "wheelbeat":
        return []
    return [
        checks.Warning(
            "The list of periodic tasks in the admin of django-celery-beat fails with status 500: it imports the "
            "value of CELERY_BEAT_SCHEDULER, and 'wheelbeat' is the name of an entry point.",
            hint=f"Set CELERY_BEAT_SCHEDULER = {SCHEDULER_PATH!r} while both apps are installed.",
            id="wheelbeat.W001",
        )
    ]


@checks.register(checks.Tags.database)
def check_triggers(databases: Sequence[str] | None = None, **_kwargs: Any) -> list[checks.CheckMessage]:
    """``wheelbeat.E001``: a trigger of the change log is missing. ``wheelbeat.E002``: the vendor is not supported."""
    from django_wheelbeat.models import Monitor  # noqa: PLC0415 - checks are registered before models are loaded

    found: list[checks.CheckMessage] = []
    for alias in databases or ():
        connection = connections[alias]
        if not router.allow_migrate_model(alias, Monitor):
            continue
        if not triggers.supported(connection.vendor):
            found.append(
                checks.Error(
                    f"Monitors cannot be stored in a database of vendor {connection.vendor!r} ({alias}).",
                    hint="Route the app 'wheelbeat' to PostgreSQL, MariaDB or SQLite.",
                    id="wheelbeat.E002",
                )
            )
        elif Monitor._meta.db_table in connection.introspection.table_names():
            missing = triggers.missing(connection)
            if missing:
                found.append(
                    checks.Error(
                        f"Triggers of the change log are missing, disabled or of another version on database "
                        f"{alias!r}: {', '.join(missing)}. Edits of monitors do not reach the beat.",
                        hint=f"Run `manage.py wheelbeat_triggers --install --database {alias}`.",
                        id="wheelbeat.E001",
                    )
                )
    return found


@checks.register(checks.Tags.database)
def check_one_database(databases: Sequence[str] | None = None, **_kwargs: Any) -> list[checks.CheckMessage]:
    """``wheelbeat.E003``: the beat reads another database than the one into which Django writes monitors."""
    from django_wheelbeat.database.opening import monitor_alias  # noqa: PLC0415 - checks come before models
    from django_wheelbeat.monitors.settings import beat_settings  # noqa: PLC0415 - same

    alias, url = monitor_alias(), beat_settings().database_url
    if not url or alias not in (databases or ()):
        return []
    try:
        is_same = is_database_of(url, connections[alias])
    except Exception as error:  # of either driver
        what = f"Whether wheelbeat_database_url is the database {alias!r} is unknown: {error}"
        return [checks.Warning(what, id="wheelbeat.W002")]
    if is_same:
        return []
    return [
        checks.Error(
            f"wheelbeat_database_url names another database than {alias!r}. The beat reads monitors and one-off runs "
            "there, and Django writes them here.",
            hint="Remove wheelbeat_database_url: with Django the beat finds the database by itself.",
            id="wheelbeat.E003",
        )
    ]
