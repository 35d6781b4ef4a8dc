"""A Django site on a database of its own, for tests of the admin: one process, any vendor, rolled back per test."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def set_up_django() -> None:
    """Load Django with the settings of the tests; calling it again does nothing."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_settings")
    import django

    django.setup()


@contextmanager
def site_database(url: str) -> Iterator[Any]:
    """Let ``default`` be the database at ``url``, migrated; give the connection. The former default comes back."""
    from django.core.management import call_command
    from django.db import connections
    from django_settings import database_of

    former = connections.settings["default"]
    connections["default"].close()
    connections.settings["default"] = connections.configure_settings({"default": database_of(url)})["default"]
    del connections["default"]
    try:
        call_command("migrate", verbosity=0, interactive=False)
        yield connections["default"]
    finally:
        connections["default"].close()
        connections.settings["default"] = former
        del connections["default"]


@contextmanager
def rolled_back() -> Iterator[None]:
    """Undo everything that the block writes to the default database."""
    from django.db import transaction

    with transaction.atomic():
        yield
        transaction.set_rollback(True)
