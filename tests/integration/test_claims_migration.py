"""Tables of claims that workers made before Django came are taken over by the migration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.site.databases import set_up_django, site_database

from celery_wheelbeat.worker.stores.choice import open_store

if TYPE_CHECKING:
    from pathlib import Path


def test_an_app_may_add_django_later(tmp_path: Path) -> None:
    set_up_django()
    url = f"sqlite:///{tmp_path / 'claims.sqlite3'}"
    store = open_store(url)
    store.prepare()
    with site_database(url) as connection:
        tables = connection.introspection.table_names()
    assert {"wheelbeat_claim", "wheelbeat_lease", "wheelbeat_monitor"} <= set(tables)
