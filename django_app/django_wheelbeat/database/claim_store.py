"""The claim store of ``result_backend = "django-db"``: the database to which the router writes claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections, router

from celery_wheelbeat.errors import InvalidSetting
from celery_wheelbeat.worker.stores.drivers import mariadb_store, sqlite_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_wheelbeat.worker.stores import Store


def claim_store() -> Store:
    """Return the claim store in Django's database, with connections of its own. Does no I/O.

    Raises ``InvalidSetting`` if the vendor is not supported.
    """
    from django_wheelbeat.models import Claim  # noqa: PLC0415 - models are not loaded when the app is configured

    connection = connections[router.db_for_write(Claim)]

    def parameters() -> Mapping[str, Any]:
        return connection.get_connection_params()

    match connection.vendor:
        case "postgresql":
            from celery_wheelbeat.worker.stores.postgres import postgres_store  # noqa: PLC0415 - needs its driver

            return postgres_store(parameters)
        case "sqlite":
            given = parameters()
            return sqlite_store(str(given["database"]), uri=bool(given.get("uri")))
        case "mysql":
            return mariadb_store(parameters)
    raise InvalidSetting(
        f"result_backend = 'django-db' on {connection.vendor}: claims need PostgreSQL, SQLite or MariaDB; set "
        "wheelbeat_dedup_url"
    )
