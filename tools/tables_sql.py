"""Write ``sources/databases/sql/tables_*.sql`` from the migrations: ``python tools/tables_sql.py URL``.

``URL``: an empty database on PostgreSQL, MariaDB or SQLite. The statements are those of the database's own catalogue
after ``migrate``, without the tables of one-off runs and of beats, which have files of their own, and without the
audit's triggers, which the Django app installs by its setting. Needs ``pg_dump`` for PostgreSQL.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "celery_wheelbeat" / "sources" / "databases" / "sql"
HEAD = "-- Written by tools/tables_sql.py from the migrations of django_wheelbeat; not edited by hand.\n"
GRANT = "\n-- name: grant_is_sendable\nGRANT EXECUTE ON FUNCTION {schema}.wheelbeat_is_sendable(text, text) TO PUBLIC\n"
"""Missing in a dump, which leaves out what the defaults of its own server grant."""
_OBJECT = re.compile(r"^--\n-- Name: (.+?); Type: ([A-Z ]+); Schema: \S+; Owner: -\n--\n", re.MULTILINE)


def migrate(url: str) -> None:
    """Run the migrations of ``django_wheelbeat`` on an empty database."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT), str(ROOT / "django_app")]
    os.environ.update(WHEELBEAT_TEST_DATABASE=url, DJANGO_SETTINGS_MODULE="support.site.settings")
    import django  # noqa: PLC0415 - the path comes first
    from celery import Celery  # noqa: PLC0415 - same
    from django.core.management import call_command  # noqa: PLC0415 - same

    Celery("tables", set_as_current=True).conf.wheelbeat_audit = "off"
    django.setup()
    call_command("migrate", "wheelbeat", verbosity=0)


def postgresql(url: str) -> str:
    """Return the named statements of a migrated database on PostgreSQL; ``{schema}`` is the schema of the tables."""
    without = ["--exclude-table=wheelbeat_later*", "--exclude-table=wheelbeat_member"]
    dump = ["pg_dump", "--schema-only", "--no-owner", "--table=wheelbeat_*", *without]
    tables = subprocess.run([*dump, url], check=True, capture_output=True, text=True).stdout
    functions = subprocess.run([*dump[:3], url], check=True, capture_output=True, text=True).stdout
    return "".join([*_blocks(functions, {"FUNCTION"}), GRANT, *_blocks(tables, None)])


def _blocks(dump: str, kinds: set[str] | None) -> list[str]:
    pieces = _OBJECT.split(dump)[1:]
    blocks = []
    for name, kind, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        if kinds is not None and (kind not in kinds or not name.startswith("wheelbeat_")):
            continue
        # a setting or comment of the whole dump may follow the last object, or lie between two
        kept = re.sub(r"^(SET |SELECT pg_catalog\.|--|\\).*\n", "", text, flags=re.MULTILINE).strip()
        body = kept.replace("public.", "{schema}.").replace("'\x7f'", r"E'\x7f'")
        label = "_".join(re.sub(r"\(.*\)", "", f"{kind.lower()} {name}").split())
        body = re.sub(r"\n\n+", "\n", body)
        blocks.append(f"\n-- name: {label}\n{body}\n")
    return blocks


def sqlite(url: str) -> str:
    """Return the named statements of a migrated database on SQLite."""
    with sqlite3.connect(urlsplit(url).path[1:]) as connection:
        rows = connection.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name LIKE 'wheelbeat%' "
            "AND tbl_name NOT LIKE 'wheelbeat_later%' AND tbl_name <> 'wheelbeat_member' "
            "ORDER BY type = 'trigger', type = 'index', rowid"
        )
        return "".join(f"\n-- name: {kind}_{name}\n{text}\n" for kind, name, text in rows)


def mysql(url: str) -> str:
    """Return the named statements of a migrated database on MariaDB; what exists stays, for DDL has no transactions."""
    import MySQLdb  # noqa: PLC0415 - only for this vendor

    from celery_wheelbeat.settings.urls import mysql_parameters  # noqa: PLC0415 - the path comes first

    cursor = MySQLdb.connect(**mysql_parameters("URL", url)).cursor()
    cursor.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = database() "
        "AND table_name LIKE 'wheelbeat%' AND table_name NOT LIKE 'wheelbeat_later%' "
        "AND table_name <> 'wheelbeat_member' ORDER BY table_name"
    )
    blocks = []
    for (name,) in cursor.fetchall():
        cursor.execute(f"SHOW CREATE TABLE {name}")
        text = re.sub(r" AUTO_INCREMENT=\d+", "", cursor.fetchone()[1])
        blocks.append((f"table_{name}", text.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1)))
    cursor.execute(
        "SELECT trigger_name, action_timing, event_manipulation, event_object_table, action_statement "
        "FROM information_schema.triggers WHERE trigger_schema = database() AND trigger_name NOT LIKE '%audit%' "
        "ORDER BY action_timing, event_manipulation, action_order"
    )
    for name, timing, event, table, body in cursor.fetchall():
        text = f"CREATE TRIGGER IF NOT EXISTS {name} {timing} {event} ON {table} FOR EACH ROW\n{body}"
        blocks.append((f"trigger_{name}", text))
    return "".join(f"\n-- name: {name}\n{text}\n" for name, text in blocks)


def main() -> None:
    """Migrate the database and write its file."""
    (url,) = sys.argv[1:]
    vendor = urlsplit(url).scheme
    migrate(url)
    text = {"postgresql": postgresql, "mysql": mysql, "sqlite": sqlite}[vendor](url)
    (TARGET / f"tables_{vendor}.sql").write_text(HEAD + text, encoding="utf-8")


if __name__ == "__main__":
    main()
