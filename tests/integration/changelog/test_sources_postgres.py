"""PostgreSQL: the snapshot cursor under everything that the server may do to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.test import override_settings
from services.found import OWN_NAME, with_path
from support.changelog.places import Place, Reader, fill, monitor

from celery_wheelbeat.errors import CursorLost, SourceError
from celery_wheelbeat.jobs.definitions import Finished
from celery_wheelbeat.sources.databases.open import from_url, open_database
from celery_wheelbeat.sources.databases.postgres import PostgresSource
from celery_wheelbeat.sources.databases.session import Session
from django_wheelbeat.database.opening import monitor_database
from django_wheelbeat.models import Change, Monitor

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.postgres


@pytest.fixture
def place(postgres: Place) -> Place:
    return postgres


@pytest.fixture
def role(place: Place) -> Iterator[str]:
    """An ordinary role without any right."""
    name = f"{OWN_NAME}_editor"
    place.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    place.execute(f"DROP OWNED BY {name}")
    place.execute(f"DROP ROLE {name}")


def connect_as(place: Place, role: str) -> psycopg.Connection[Any]:
    return psycopg.connect(**{**place.connection.get_connection_params(), "user": role}, autocommit=True)


def test_a_role_that_may_edit_monitors_only(place: Place, reader: Reader, role: str) -> None:
    place.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON wheelbeat_monitor TO {role}")
    with connect_as(place, role) as editor:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            editor.execute("SELECT * FROM wheelbeat_changelog")
        editor.execute("INSERT INTO wheelbeat_monitor (name, task, interval_ms) VALUES ('a', 't', 1)")
        editor.execute("UPDATE wheelbeat_monitor SET interval_ms = 2")
        assert [row.interval_ms for row in reader.news().values()] == [2]
        editor.execute("DELETE FROM wheelbeat_monitor")
    assert list(reader.news().values()) == [None]
    assert set(Change.objects.order_by("-pk").values_list("actor", flat=True)[:3]) == {role}


def test_a_role_that_may_only_pause(place: Place, reader: Reader, role: str) -> None:
    one = monitor()
    reader.news()
    place.execute(f"GRANT SELECT, UPDATE (enabled, pause_reason) ON wheelbeat_monitor TO {role}")
    with connect_as(place, role) as oncall:
        oncall.execute("UPDATE wheelbeat_monitor SET enabled = false, pause_reason = 'noise'")
        for statement in ("UPDATE wheelbeat_monitor SET task = 't'", "DELETE FROM wheelbeat_monitor"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                oncall.execute(statement)
        assert [row.enabled for row in reader.news().values()] == [False]
        oncall.execute("UPDATE wheelbeat_monitor SET enabled = true, pause_reason = ''")
    assert [(row.id, row.enabled) for row in reader.news().values()] == [(one.pk, True)]


def test_a_hostile_search_path_does_not_capture_the_triggers(place: Place, reader: Reader) -> None:
    place.execute("CREATE SCHEMA trap")
    place.execute("CREATE TABLE trap.wheelbeat_changelog (LIKE public.wheelbeat_changelog)")
    try:
        with transaction.atomic():
            place.execute("SET LOCAL search_path = trap, public")
            one = monitor()
        assert reader.news().keys() == {one.pk}
    finally:
        place.execute("DROP SCHEMA trap CASCADE")


def test_a_beat_needs_few_rights(place: Place, role: str) -> None:
    place.execute(
        f"GRANT SELECT ON wheelbeat_monitor, wheelbeat_changelog, wheelbeat_installation, wheelbeat_beat, "
        f"wheelbeat_quarantine TO {role}"
    )
    place.execute(f"GRANT INSERT, UPDATE, DELETE ON wheelbeat_beat, wheelbeat_quarantine TO {role}")
    place.execute(f"GRANT UPDATE (finished_at, effective_from) ON wheelbeat_monitor TO {role}")
    database = open_database("postgresql", lambda: {**place.connection.get_connection_params(), "user": role})
    cursor = database.source.snapshot().cursor
    one = monitor(one_off=True)
    assert database.source.poll(cursor).ids.tolist() == [one.pk]
    row = {"namespace": "n", "host": "h", "pid": 1, "version": "1", "started_ms": 0, "marks": "{}", "status": "{}"}
    database.store.report("beat", row)
    database.store.quarantine({"monitor:1": ("hash", "reason")}, [])
    database.store.finish({one.pk: Finished(2**41, 2**41)})
    assert Monitor.objects.get().finished_at is not None
    database.source.close()


def test_replication_role_does_not_silence_the_triggers(place: Place, reader: Reader) -> None:
    place.execute("SET session_replication_role = replica")
    try:
        one = monitor()
    finally:
        place.execute("SET session_replication_role = origin")
    assert reader.news().keys() == {one.pk}


def test_truncate_and_a_request_to_resync_lose_the_cursor(place: Place, reader: Reader) -> None:
    monitor()
    reader.news()
    place.execute("TRUNCATE wheelbeat_monitor")
    with pytest.raises(CursorLost) as lost:
        reader.news()
    assert lost.value.reason == "truncated"
    reader.cursor = reader.source.snapshot().cursor
    call_command("wheelbeat_resync", verbosity=0)
    with pytest.raises(CursorLost) as lost:
        reader.news()
    assert lost.value.reason == "manual"


def test_a_truncated_log_loses_the_cursor(place: Place, reader: Reader) -> None:
    monitor()
    place.execute("TRUNCATE wheelbeat_changelog")
    with pytest.raises(CursorLost) as lost:
        reader.news()
    assert lost.value.reason == "replaced"


def test_a_long_transaction_elsewhere_holds_nothing_back_and_its_age_is_reported(
    place: Place, postgres_url: str
) -> None:
    """A writer in another database of the server keeps the oldest transaction id where it is."""
    reader = Reader(place)
    name = f"{OWN_NAME}_other"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        admin.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        with psycopg.connect(with_path(postgres_url, name)) as foreign:
            foreign.execute("CREATE TABLE t AS SELECT 1")
            one = monitor()
            assert reader.news().keys() == {one.pk}
            Monitor.objects.update(priority=1)
            poll = reader.source.poll(reader.cursor)
            assert poll.ids.tolist() == [one.pk]
            assert poll.oldest_transaction_s > 0
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    reader.close()


class _Pooled(Session):
    """A pooler in transaction mode at its worst: after every transaction another backend."""

    inside = False

    def rows(self, name: str, parameters: Any = None) -> list[Any]:
        found = super().rows(name, parameters)
        self.inside = name.startswith("begin") or (self.inside and name != "commit")
        if not self.inside:
            self.close()
        return found


def test_nothing_is_kept_in_the_session(place: Place) -> None:
    database = from_url("postgresql://unused")
    session = _Pooled("postgresql", place.open().source._session._connect)
    source = PostgresSource(session)
    database.store._session = session
    cursor = source.snapshot().cursor
    pks = [monitor(f"m{n}").pk for n in range(3)]
    poll = source.poll(cursor)
    assert poll.ids.tolist() == pks
    assert [row.id for row in source.fetch(poll.ids)] == pks
    assert [row.id for row in source.block(pks[0], 10, poll.cursor).rows] == pks[1:]
    database.store.finish({pks[0]: Finished(2**41, 2**41)})
    assert source.poll(poll.cursor).ids.tolist() == [pks[0]]


def test_an_unusable_connection_is_replaced(place: Place, reader: Reader) -> None:
    one = monitor()
    with pytest.raises(SourceError, match=r"terminat|closed"):
        _kill_and_poll(place, reader)
    assert reader.news().keys() == {one.pk}


def _kill_and_poll(place: Place, reader: Reader) -> None:
    place.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'wheelbeat' AND datname = current_database()"
    )
    reader.news()


def test_infinite_instants_are_bounds_and_not_errors(place: Place, reader: Reader) -> None:
    place.execute(
        "INSERT INTO wheelbeat_monitor (name, task, interval_ms, start_at, end_at) "
        "VALUES ('a', 't', 1, '-infinity', 'infinity')"
    )
    (row,) = reader.news().values()
    assert (row.start_at_ms, row.end_at_ms) == (-(2**62), 2**62)


def test_the_hot_statements_use_their_indexes(place: Place) -> None:
    """A poll must not depend on the size of the log, nor a fetch on the size of the table."""
    fill(place.connection, 5_000)
    place.execute(
        "INSERT INTO wheelbeat_changelog (monitor_id, operation) SELECT n, 'U' FROM generate_series(1, 50000) n"
    )
    place.execute("ANALYZE wheelbeat_monitor")
    place.execute("ANALYZE wheelbeat_changelog")
    reader = Reader(place)
    statements = reader.source._session._statements
    parameters = {
        "changes": {"xmax": str(reader.cursor.xmax), "in_progress": "{7,8,9}"},
        "fetch": {"ids": [1, 2, 3]},
        "block": {"after_id": 17, "limit": 100},
        "logged": {"ids": [1, 2, 3], "within_s": 7_200.0},
    }
    indexes = {
        "logged": "wheelbeat_changelog_monitor",
        "changes": "wheelbeat_changelog_xid",
        "fetch": "wheelbeat_monitor_pkey",
        "block": "wheelbeat_monitor_pkey",
    }
    for name, index in indexes.items():
        with psycopg.connect(**place.connection.get_connection_params()) as client:
            plan = "\n".join(row[0] for row in client.execute("EXPLAIN " + statements[name], parameters[name]))
        assert index in plan, plan
        assert "Seq Scan on wheelbeat" not in plan, plan
    reader.close()


def test_triggers_are_never_compiled(place: Place) -> None:
    """A session that once edited a hundred thousand monitors would pay for it with each one it edits later."""
    functions = place.execute("SELECT proname, proconfig FROM pg_proc WHERE prosrc LIKE '%new_rows%'")
    assert "wheelbeat_log_changes" in dict(functions)
    assert all("jit=off" in settings for _, settings in functions), functions


def test_the_documented_fill_can_be_repeated_and_logs_only_differences(place: Place, reader: Reader) -> None:
    page = (Path(__file__).parents[3] / "docs/howto/fill-many-monitors.md").read_text()
    fill, delete, *_ = re.findall(r"```sql\n(.*?)```", page, flags=re.DOTALL)
    place.execute("CREATE TABLE site (id bigint PRIMARY KEY, url text, every_s int)")
    try:
        place.execute("INSERT INTO site SELECT n, 'http://' || n, 60 FROM generate_series(1, 1000) n")
        place.execute(fill)
        assert len(reader.news()) == 1_000
        place.execute(fill)
        place.execute(delete)
        assert reader.news() == {}
        place.execute("UPDATE site SET every_s = 30 WHERE id <= 10")
        place.execute("DELETE FROM site WHERE id > 990")
        place.execute(fill)
        place.execute(delete)
        news = reader.news()
        assert sorted(row.interval_ms for row in news.values() if row) == [30_000] * 10
        assert list(news.values()).count(None) == 10
        assert {row.args for row in news.values() if row} == {f'["http://{n}"]' for n in range(1, 11)}
    finally:
        place.execute("DROP TABLE site")


def test_the_role_that_django_assumes_is_ours_too(place: Place, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(place.connection.settings_dict, "OPTIONS", {"assume_role": role})
    source = monitor_database(None).source
    with pytest.raises(SourceError, match="permission denied"):
        source.snapshot()
    place.execute(f"GRANT SELECT ON wheelbeat_monitor, wheelbeat_changelog, wheelbeat_installation TO {role}")
    assert source.poll(source.snapshot().cursor).ids.tolist() == []
    source.close()


class _Replicas:
    """A router that sends reads elsewhere."""

    def db_for_read(self, model: Any, **_hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **_hints: Any) -> str:
        return "default"


def test_with_a_replica_for_reading_the_beat_writes_to_the_primary(place: Place) -> None:
    missing = {**place.connection.settings_dict, "NAME": f"{OWN_NAME}_no_such_replica"}
    connections["replica"] = type(place.connection)(missing, "replica")
    try:
        with override_settings(DATABASE_ROUTERS=[_Replicas()]):
            database = monitor_database(None)
        with pytest.raises(SourceError, match="no_such_replica"):
            database.source.snapshot()
        assert database.store.namespace() == place.execute("SELECT uuid FROM wheelbeat_installation")[0][0]
        database.store._session.close()
    finally:
        del connections["replica"]
