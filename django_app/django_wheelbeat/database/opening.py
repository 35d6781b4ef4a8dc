"""The monitor database of this project: the one that the router names, over connections of the beat's own.

A beat reads on its I/O thread, so it never uses a Django connection. It asks Django for the parameters at every
connect, so that passwords may change at run time.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from django.db import connections, router, transaction

from celery_wheelbeat.sources.databases.open import open_database
from django_wheelbeat.database import triggers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_wheelbeat.sources import MonitorDatabase


def monitor_database(app: Any) -> MonitorDatabase | None:  # noqa: ARG001 - the signature of a registered factory
    """Return source and store of the database that holds the monitors; None if its vendor is not supported.

    If the router sends reads to a replica, the change log is read there; the beat's writes go to the primary.
    """
    from django_wheelbeat.models import Monitor  # noqa: PLC0415 - models are not loaded when the app is configured

    reading, writing = router.db_for_read(Monitor), router.db_for_write(Monitor)
    if not triggers.supported(connections[reading].vendor):
        return None
    database = _open(reading)
    return database if reading == writing else database._replace(store=_open(writing).store)


def monitor_alias() -> str:
    """Return the alias of the database to which the router writes monitors."""
    from django_wheelbeat.models import Monitor  # noqa: PLC0415 - same

    return str(router.db_for_write(Monitor))


def _open(alias: str) -> MonitorDatabase:
    def parameters() -> Mapping[str, Any]:
        given = dict(connections[alias].get_connection_params())
        role = connections[alias].settings_dict["OPTIONS"].get("assume_role")
        if role:  # Django sets it with a statement after connecting
            given["options"] = f"{given.get('options', '')} -c role={role}".strip()
        return given

    return open_database(connections[alias].vendor, parameters)


def install_triggers(using: str) -> list[str]:
    """Install missing triggers if database ``using`` holds this app's tables; return their names."""
    from django_wheelbeat.models import Monitor  # noqa: PLC0415 - same

    connection = connections[using]
    if not triggers.supported(connection.vendor) or not router.allow_migrate_model(using, Monitor):
        return []
    if Monitor._meta.db_table not in connection.introspection.table_names():
        return []
    return triggers.install(connection)


@contextmanager
def application_connection(alias: str | None, *, savepoint: bool = False) -> Iterator[Any]:
    """Yield this thread's Django connection ``alias``; None: that of the database to which monitors are written.

    Without an open transaction the block is one: to move a run means to delete and to insert. ``savepoint``: in an open
    transaction, the block has a savepoint, which costs two round trips.
    """
    using = monitor_alias() if alias is None else alias
    connection = connections[using]
    joins = connection.in_atomic_block and not savepoint
    with nullcontext() if joins else transaction.atomic(using=using):
        yield connection
