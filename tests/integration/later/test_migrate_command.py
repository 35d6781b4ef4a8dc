"""``celery -A proj wheelbeat migrate``: the same tables as Django's migrations make, from the same statements."""

from __future__ import annotations

import re
import sqlite3
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from celery import Celery
from click.testing import CliRunner
from services import OWN_NAME, mysql_database_beside, postgres_database_beside
from support.site.databases import as_default, set_up_django, site_database

from celery_wheelbeat import later
from celery_wheelbeat.commands.migrate import migrate
from celery_wheelbeat.settings.urls import mysql_parameters
from celery_wheelbeat.worker.stores.drivers import sql_store

if TYPE_CHECKING:
    from pathlib import Path

set_up_django()

POSTGRES_CATALOGUE = {
    "columns": """
        SELECT relname, attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated,
               pg_get_expr(adbin, adrelid)
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE relname LIKE 'wheelbeat%' AND relkind IN ('r', 'p', 'i', 'S') AND attnum > 0 AND NOT attisdropped
    """,
    "indexes": "SELECT indexdef FROM pg_indexes WHERE tablename LIKE 'wheelbeat%'",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE conrelid::regclass::text LIKE 'wheelbeat%'
    """,
    "functions": """
        SELECT pg_get_functiondef(oid), proacl::text FROM pg_proc
        WHERE proname LIKE 'wheelbeat%' AND proname NOT LIKE '%audit%'
    """,
    "triggers": """
        SELECT tgname, pg_get_triggerdef(oid), tgenabled FROM pg_trigger
        WHERE tgrelid::regclass::text LIKE 'wheelbeat%' AND tgname NOT LIKE '%audit%'
    """,
    "installation": "SELECT schema_version, pruned_xid, pruned_id FROM wheelbeat_installation",
}
_NOISE = re.compile(r"[()]|::[a-z]+( varying)?(\[\])?")
"""PostgreSQL prints an expression that it has printed before with other parentheses and casts."""
SQLITE_CATALOGUE = {
    "all": """
        SELECT type, name, sql FROM sqlite_master
        WHERE tbl_name LIKE 'wheelbeat%' AND NOT (type = 'trigger' AND name LIKE 'wheelbeat_audit%')
    """,
    "installation": "SELECT schema_version, pruned_xid, pruned_id FROM wheelbeat_installation",
}


MARIADB_CATALOGUE = {
    "columns": """
        SELECT table_name, column_name, column_type, is_nullable, column_default, extra, collation_name
        FROM information_schema.columns WHERE table_schema = database() AND table_name LIKE 'wheelbeat%'
    """,
    "indexes": """
        SELECT table_name, index_name, non_unique, seq_in_index, column_name FROM information_schema.statistics
        WHERE table_schema = database() AND table_name LIKE 'wheelbeat%'
    """,
    "constraints": """
        SELECT table_name, constraint_name, check_clause FROM information_schema.check_constraints
        WHERE constraint_schema = database() AND table_name LIKE 'wheelbeat%'
    """,
    "parts": """
        SELECT table_name, partition_name, partition_description FROM information_schema.partitions
        WHERE table_schema = database() AND table_name LIKE 'wheelbeat%'
    """,
    "triggers": """
        SELECT trigger_name, action_timing, event_manipulation, action_order, action_statement
        FROM information_schema.triggers WHERE trigger_schema = database() AND trigger_name NOT LIKE '%audit%'
    """,
    "installation": "SELECT schema_version, pruned_xid, pruned_id FROM wheelbeat_installation",
}


def run(url: str | None, code: int = 0) -> str:
    app = Celery("proj", set_as_current=False)
    app.conf.wheelbeat_database_url = url
    done = CliRunner().invoke(migrate, obj=SimpleNamespace(app=app))
    assert done.exit_code == code, done.output
    return done.output


def catalogue(connection: Any, queries: dict[str, str]) -> dict[str, list[Any]]:
    with closing(connection):
        cursor = connection.cursor()
        found = {}
        for what, query in queries.items():
            cursor.execute(query)
            found[what] = cursor.fetchall()
    return {what: sorted(_comparable(repr(row)) for row in rows) for what, rows in found.items()}


def _comparable(text: str) -> str:
    return _NOISE.sub("", text).replace('"expires_next" = 0', 'NOT "expires_next"')  # as Django 6.1 writes it


MADE = (
    "wheelbeat_audit, wheelbeat_beat, wheelbeat_changelog, wheelbeat_claim, wheelbeat_installation, wheelbeat_later, "
    "wheelbeat_lease, wheelbeat_member, wheelbeat_monitor, wheelbeat_origin, wheelbeat_quarantine."
)


@pytest.mark.postgres
def test_postgresql_gets_what_the_migrations_make(postgres_url: str) -> None:
    with (
        postgres_database_beside(postgres_url, f"{OWN_NAME}_by_django") as by_django,
        postgres_database_beside(postgres_url, f"{OWN_NAME}_by_command") as by_command,
    ):
        assert run(by_command) == f"Made {MADE}\n"
        assert run(by_command) == "Nothing to do: every table exists.\n"
        with site_database(by_django):
            wanted = catalogue(psycopg.connect(by_django), POSTGRES_CATALOGUE)
        assert catalogue(psycopg.connect(by_command), POSTGRES_CATALOGUE) == wanted
        assert min(map(len, wanted.values())) > 0
        assert "belong to Django" in run(by_django, code=1)


@pytest.mark.mysql
def test_mariadb_gets_what_the_migrations_make(mysql_url: str) -> None:
    import MySQLdb

    with (
        mysql_database_beside(mysql_url, f"{OWN_NAME}_by_django") as by_django,
        mysql_database_beside(mysql_url, f"{OWN_NAME}_by_command") as by_command,
    ):
        assert run(by_command) == f"Made {MADE}\n"
        assert run(by_command) == "Nothing to do: every table exists.\n"
        with site_database(by_django):
            wanted = catalogue(MySQLdb.connect(**mysql_parameters("url", by_django)), MARIADB_CATALOGUE)
        assert catalogue(MySQLdb.connect(**mysql_parameters("url", by_command)), MARIADB_CATALOGUE) == wanted
        assert min(map(len, wanted.values())) > 0
        assert "belong to Django" in run(by_django, code=1)


def test_sqlite_gets_what_the_migrations_make(tmp_path: Path) -> None:
    by_django, by_command = f"sqlite:///{tmp_path}/django.sqlite3", f"sqlite:///{tmp_path}/command.sqlite3"
    assert run(by_command) == f"Made wheelbeat_actor, {MADE}\n"
    assert run(by_command) == "Nothing to do: every table exists.\n"
    with site_database(by_django):
        wanted = catalogue(sqlite3.connect(tmp_path / "django.sqlite3"), SQLITE_CATALOGUE)
    assert catalogue(sqlite3.connect(tmp_path / "command.sqlite3"), SQLITE_CATALOGUE) == wanted
    assert "belong to Django" in run(by_django, code=1)


@pytest.mark.postgres
@pytest.mark.parametrize("vendor", ["postgresql", "sqlite"])
def test_django_can_be_added_later(vendor: str, tmp_path: Path, postgres_url: str) -> None:
    from django_wheelbeat.database import triggers

    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/added.sqlite3"
        if vendor == "postgresql":
            url = stack.enter_context(postgres_database_beside(postgres_url, f"{OWN_NAME}_added"))
        run(url)
        connection = stack.enter_context(site_database(url, {"app_label": "wheelbeat", "fake": True}, {}))
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO wheelbeat_monitor (name, task, interval_ms) VALUES ('a', 'proj.note', 60000)")
            cursor.execute("SELECT count(*) FROM wheelbeat_audit")
            assert cursor.fetchone() == (1,)
        with as_default(connection):
            assert triggers.missing(connection) == []


def test_tables_that_workers_have_made_stay(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/both.sqlite3"
    store = sql_store(url)
    store.prepare()
    store.close()
    assert "wheelbeat_claim" not in run(url)
    with closing(sqlite3.connect(tmp_path / "both.sqlite3")) as connection:
        later.now(Celery("proj", set_as_current=False).signature("proj.note"), connection=connection)
        connection.execute("INSERT INTO wheelbeat_monitor (name, task, interval_ms) VALUES ('a', 'proj.note', 60000)")
        connection.commit()
        assert connection.execute("SELECT operation FROM wheelbeat_changelog").fetchall() == [("I",)]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "half.sqlite3")) as connection:
        connection.execute("CREATE TABLE wheelbeat_origin (other text)")
    url = f"sqlite:///{tmp_path}/half.sqlite3"
    assert 'table "wheelbeat_origin" already exists' in run(url, code=1)
    with closing(sqlite3.connect(tmp_path / "half.sqlite3")) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'wheelbeat%'").fetchall()
    assert tables == [("wheelbeat_origin",)]


def test_what_it_needs_is_named() -> None:
    assert "wheelbeat_database_url: not set; with django_wheelbeat, run manage.py migrate" in run(None, code=1)
    assert "expected PostgreSQL, MariaDB or SQLite" in run("oracle://root@127.0.0.1/x", code=1)
