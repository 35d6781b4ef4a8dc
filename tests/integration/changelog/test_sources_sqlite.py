"""SQLite as people use it: locks, journals, read-only places, files that are replaced."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from support.beat.loading import LoadingBeat
from support.changelog.places import Place, Reader, many, monitor

from celery_wheelbeat.errors import CursorLost, SourceError
from celery_wheelbeat.sources.databases import sqlite
from celery_wheelbeat.sources.databases.open import open_database
from django_wheelbeat.models import Change, Monitor

if TYPE_CHECKING:
    from celery_wheelbeat.sources import MonitorDatabase

ROW = {"namespace": "n", "host": "h", "pid": 1, "version": "1", "started_ms": 0, "marks": "{}", "status": "{}"}


@pytest.fixture
def place(sqlite: Place) -> Place:
    return sqlite


@pytest.fixture
def copy(place: Place, tmp_path: Path) -> Path:
    """A copy of the site's file that a test may damage."""
    return Path(shutil.copy(place.connection.settings_dict["NAME"], tmp_path / "copy.sqlite3"))


def open_file(file: Path) -> MonitorDatabase:
    return open_database("sqlite", lambda: {"database": str(file)})


def write(file: Path, statement: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute(statement)
    connection.close()


INSERT = "INSERT INTO wheelbeat_monitor (name, task, interval_ms) VALUES ('a', 't', 1)"


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_a_lock_held_elsewhere_delays_and_loses_nothing(
    copy: Path, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    write(copy, f"PRAGMA journal_mode = {journal}")
    database = open_file(copy)
    cursor = database.source.snapshot().cursor
    web = sqlite3.connect(copy, isolation_level=None)
    web.execute("BEGIN EXCLUSIVE")
    web.execute(INSERT)
    if journal == "DELETE":
        with pytest.raises(SourceError, match="locked"):
            database.source.poll(cursor)
    else:
        assert database.source.poll(cursor).ids.tolist() == []
    with pytest.raises(SourceError, match="locked"):
        database.store.report("beat", ROW)
    web.execute("COMMIT")
    assert len(database.source.poll(cursor).ids) == 1
    database.store.report("beat", ROW)
    web.close()
    database.source.close()


def test_a_read_only_file_can_be_followed(copy: Path) -> None:
    database = open_database("sqlite", lambda: {"database": f"file:{copy}?mode=ro", "uri": True})
    cursor = database.source.snapshot().cursor
    write(copy, INSERT)
    assert len(database.source.poll(cursor).ids) == 1
    with pytest.raises(SourceError, match="readonly"):
        database.store.report("beat", ROW)
    assert len(database.source.poll(cursor).ids) == 1
    database.source.close()


def test_a_replaced_file_loses_the_cursor(copy: Path, tmp_path: Path) -> None:
    source = open_file(copy).source
    cursor = source.snapshot().cursor
    other = Path(shutil.copy(copy, tmp_path / "other.sqlite3"))
    write(other, INSERT)
    other.replace(copy)
    with pytest.raises(CursorLost) as lost:
        source.poll(cursor)
    assert lost.value.reason == "replaced"
    assert source.poll(source.snapshot().cursor).ids.tolist() == []
    assert [row.name for row in source.block(-1, 9, source.snapshot().cursor).rows] == ["a"]
    source.close()


@pytest.mark.parametrize("later", [[], ["DELETE FROM wheelbeat_monitor", INSERT]], ids=["shorter", "other"])
def test_a_backup_written_over_the_file_loses_the_cursor(copy: Path, tmp_path: Path, later: list[str]) -> None:
    """The same inode with another history: fewer changes, or more of them but others."""
    write(copy, INSERT)
    backup = Path(shutil.copy(copy, tmp_path / "backup.sqlite3"))
    for statement in later:
        write(backup, statement)
    write(copy, INSERT.replace("'a'", "'b'"))
    source = open_file(copy).source
    cursor = source.snapshot().cursor
    source.close()
    copy.write_bytes(backup.read_bytes())
    with pytest.raises(CursorLost) as lost:
        source.poll(cursor)
    assert lost.value.reason == "replaced"


def test_a_text_that_is_not_utf8_is_one_bad_row(copy: Path) -> None:
    source = open_file(copy).source
    cursor = source.snapshot().cursor
    write(copy, INSERT.replace("'t'", "CAST(x'ff' AS TEXT)"))
    write(copy, INSERT.replace("'a'", "'b'"))
    rows = source.fetch(source.poll(cursor).ids)
    assert [row.task for row in rows] == ["\ufffd", "t"]
    source.close()


@pytest.mark.parametrize("value", ["now", "garbage", "", "12:00", "2030-13-45 99:99:99", 5, 2.5])
@pytest.mark.parametrize("column", ["once_at", "start_at", "end_at", "incident_until", "finished_at", "effective_from"])
def test_an_instant_that_is_none_is_named_and_stops_no_other(place: Place, column: str, value: Any) -> None:
    """SQLite takes any value, and reads some of them as the present moment or as a Julian day."""
    monitor("good")
    others = {"once_at": "NULL, NULL", "incident_until": "60000, 10000"}.get(column, "60000, NULL")
    place.execute(
        f"INSERT INTO wheelbeat_monitor (name, task, interval_ms, incident_interval_ms, {column})"
        f" VALUES ('bad', 't', {others}, %s)",
        value,
    )
    ((bad,),) = place.execute("SELECT id FROM wheelbeat_monitor WHERE name = 'bad'")
    beat = LoadingBeat(place)
    beat.load()
    beat.close()
    assert beat.definitions.quarantine.ids() == [bad]
    ((_, reason),) = beat.definitions.quarantine.take_unwritten().added.values()
    assert column in reason
    assert beat.loaded_rows == [1]


def test_pruning_keeps_the_newest_row(place: Place) -> None:
    reader, late = Reader(place), Reader(place)
    Monitor.objects.bulk_create(many(5))
    assert len(reader.news()) == 5
    call_command("wheelbeat_prune", days=0, verbosity=0)
    assert Change.objects.count() == 1
    assert reader.news() == {}
    with pytest.raises(CursorLost) as lost:
        late.news()
    assert lost.value.reason == "pruned"
    one = monitor("x")
    assert reader.news().keys() == {one.pk}
    reader.close()
    late.close()


def test_deleting_the_whole_log_by_hand_does_not_start_the_ids_again(place: Place) -> None:
    reader = Reader(place)
    monitor("a")
    assert len(reader.news()) == 1
    Change.objects.all().delete()
    one = monitor("b")
    assert reader.news().keys() == {one.pk}
    reader.close()
