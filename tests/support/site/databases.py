"""A Django site on a database of its own, for tests of the admin: one process, any vendor, rolled back per test."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def set_up_django() -> None:
    """Load Django with the settings of the tests; calling it again does nothing.

    The environment is left as it was: processes that later tests start have settings of their own, or no Django.
    """
    import django
    from django.conf import settings

    if not settings.configured:
        os.environ["DJANGO_SETTINGS_MODULE"] = "support.site.settings"
        settings._setup()
        del os.environ["DJANGO_SETTINGS_MODULE"]
    django.setup()


@contextmanager
def as_default(connection: Any) -> Iterator[None]:
    """Let ``connection`` be Django's default database; the former default comes back."""
    from django.db import connections

    former = connections["default"]
    connections["default"] = connection
    try:
        yield
    finally:
        connections["default"] = former


@contextmanager
def site_database(url: str, *steps: dict[str, Any]) -> Iterator[Any]:
    """Yield a connection to the database at ``url``, migrated; it is the default only ``as_default``.

    ``steps``: options of a ``migrate`` each; by default one, of everything.
    """
    from django.core.management import call_command
    from django.db import connections
    from django.db.utils import load_backend

    from support.site.settings import database_of

    settings = connections.configure_settings({"default": database_of(url)})["default"]
    connection = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, "default")
    with as_default(connection):
        for step in steps or ({},):
            call_command("migrate", verbosity=0, interactive=False, **step)
    try:
        yield connection
    finally:
        connection.close()
        if connection.connection is not None:  # Django keeps a database in memory open; Python 3.13 warns of that
            connection.connection.close()


@contextmanager
def rolled_back(connection: Any) -> Iterator[None]:
    """Let ``connection`` be the default database and undo everything that the block writes to it."""
    from django.db import transaction

    with as_default(connection), transaction.atomic():
        yield
        transaction.set_rollback(True)


def _unregister(models: Iterable[Any]) -> None:
    from django.contrib import admin

    for model in models:
        admin.site.unregister(model)


@contextmanager
def with_app(name: str, *, in_admin: bool = True) -> Iterator[None]:
    """Install the app ``name`` too. Its models leave the admin at the end, at once if ``in_admin`` is false."""
    from django.contrib import admin
    from django.test.utils import modify_settings

    before = set(admin.site._registry)
    try:
        with modify_settings(INSTALLED_APPS={"append": name}):
            if not in_admin:
                _unregister(set(admin.site._registry) - before)
            yield
    finally:
        _unregister(set(admin.site._registry) - before)
