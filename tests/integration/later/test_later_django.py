"""One-off runs through the connection of Django: every call is a transaction, or joins the one that is open."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from celery import Celery
from support.site.databases import as_default, set_up_django, site_database

from celery_wheelbeat import later
from celery_wheelbeat.later import opening
from celery_wheelbeat.later.writers.sqlite import SqliteWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

set_up_django()
REMIND = Celery("proj", set_as_current=False).signature("proj.remind")


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Any]:
    with site_database(f"sqlite:///{tmp_path}/site.sqlite3") as opened, as_default(opened):
        yield opened


def in_s(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


@pytest.mark.usefixtures("connection")
def test_a_move_that_fails_in_autocommit_mode_leaves_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = later.apply_at(REMIND, in_s(60), key="k")

    def fails(*_: Any) -> None:
        raise OSError("the connection is lost")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteWriter, "insert", fails)
        with pytest.raises(OSError, match="the connection is lost"):
            later.move(in_s(90), key="k")
    found = later.pending(key="k")
    assert found is not None
    assert found.id == run_id


def test_a_call_joins_the_transaction_that_is_open(connection: Any) -> None:
    from django.db import transaction
    from django.test.utils import CaptureQueriesContext

    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        later.apply_at(REMIND, in_s(60), key="k")
        transaction.set_rollback(True)
    assert not [query["sql"] for query in queries if "SAVEPOINT" in query["sql"]]
    assert later.pending(key="k") is None


@pytest.mark.parametrize("by", ["key", "id"])
def test_no_other_writer_comes_between_the_read_and_the_write_of_a_call(
    connection: Any, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite refuses at once to let a transaction write that has read while another one writes, as a beat may."""
    kept = later.apply_at(REMIND, in_s(60), key="k")
    name = f"of_{by}"
    find = getattr(SqliteWriter, name)

    with closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=0)) as other:

        def found(writer: SqliteWriter, of: str, *, lock: bool) -> Any:
            row = find(writer, of, lock=lock)
            with pytest.raises(sqlite3.OperationalError, match="database is locked"):
                other.execute("DELETE FROM wheelbeat_later WHERE second = 0")
            return row

        monkeypatch.setattr(SqliteWriter, name, found)
        cancelled = later.cancel(key="k") if by == "key" else later.cancel(id=kept)
    assert cancelled == later.Cancelled.CANCELLED


def test_a_store_that_fails_leaves_the_open_transaction_usable(connection: Any) -> None:
    """A task with an eta goes to Celery then; what the caller has written before is committed."""
    from django.db import transaction

    from django_wheelbeat.models import Monitor

    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.wheelbeat_later_from = 1
    sent: list[str] = []
    app.amqp.send_task_message = lambda _producer, _name, message, **_options: sent.append(message.headers["id"])
    later.install(app)
    with transaction.atomic():
        Monitor.objects.create(name="before", task="proj.note", interval_ms=60_000)
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE wheelbeat_later RENAME TO elsewhere")
        result = app.send_task("proj.note", countdown=60)
        Monitor.objects.create(name="after", task="proj.note", interval_ms=60_000)
    assert sent == [result.id]
    assert Monitor.objects.count() == 2


def test_a_url_of_another_database_is_found_by_the_checks(
    connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_wheelbeat import checks
    from django_wheelbeat.monitors import settings

    def ids(url: str | None, **conf: Any) -> list[str | None]:
        app = Celery("proj", set_as_current=False)
        app.conf.update(conf, wheelbeat_database_url=url)
        monkeypatch.setattr(settings, "current_app", app)
        return [message.id for message in checks.check_one_database(databases=["default"])]

    assert ids(None) == []
    assert ids(f"sqlite:///{tmp_path}/site.sqlite3") == []
    assert ids(f"sqlite:///{tmp_path}/other.sqlite3") == ["wheelbeat.E003"]
    assert ids(f"sqlite:///{tmp_path}/no/folder.sqlite3") == ["wheelbeat.W002"]
    assert ids(f"sqlite:///{tmp_path}/other.sqlite3", wheelbeat_tick="never") == [], "the beat reports the setting"
    opening.close_all()


@pytest.mark.usefixtures("connection")
def test_coroutines_have_calls_of_their_own() -> None:
    async def calls() -> Any:
        first = await later.aapply_at(REMIND, in_s(60), key="k")
        assert (await later.apending(key="k")).id == first
        moved = await later.amove(in_s(90), key="k")
        return moved, await later.acancel(id=moved), await later.acount(in_s(0), in_s(120)), await later.anow(REMIND)

    moved, cancelled, count, now = async_to_sync(calls)()
    assert cancelled is later.Cancelled.CANCELLED
    assert count == 0
    assert later.anow.__name__ == "anow"
    assert moved != now
