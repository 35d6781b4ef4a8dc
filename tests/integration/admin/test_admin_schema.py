"""Migrations: they say what the models say, and the indexes of one vendor come and go with their migration."""

from __future__ import annotations

from typing import Any

import pytest

from celery_wheelbeat.runtime.statements import read_statements


def test_the_migrations_are_those_of_the_models(db: Any) -> None:
    from django.core.management import call_command
    from django.utils import translation

    with translation.override("de"):  # migrations may be made in any language
        call_command("makemigrations", "wheelbeat", check=True, dry_run=True, verbosity=0)


@pytest.mark.postgres
def test_indexes_of_one_vendor_come_and_go(pg: Any) -> None:
    from django.core.management import call_command

    def indexes() -> set[str]:
        with pg.cursor() as cursor:
            cursor.execute("SELECT indexname FROM pg_indexes WHERE tablename = 'wheelbeat_monitor'")
            return {name for (name,) in cursor.fetchall()}

    own = set(read_statements("django_wheelbeat.database", "sql/indexes_postgresql.sql"))
    assert len(own) == 4
    assert own <= indexes()
    call_command("migrate", "wheelbeat", "0004", verbosity=0)
    assert own.isdisjoint(indexes())
    assert "wheelbeat_monitor_task" in indexes()
    call_command("migrate", "wheelbeat", verbosity=0)
    assert own <= indexes()
