"""Events on PostgreSQL servers while a beat follows: a rewritten table, a standby, replicated rows."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from services import PrivatePostgres, wait_until
from support.beat.stepped import SteppedBeat
from support.changelog.places import Place, Reader, monitor
from support.site.databases import as_default, site_database

from celery_wheelbeat.sources.databases.open import from_url
from celery_wheelbeat.sources.databases.postgres_columns import PostgresColumns
from django_wheelbeat.models import Monitor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.postgres

WAITING = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'wheelbeat_monitor'::regclass AND NOT granted)"


@pytest.fixture
def beat(quiet: Place) -> Iterator[SteppedBeat]:
    """A beat that has not read anything yet."""
    beat = SteppedBeat(quiet.open(), start_ms=int(time.time()) * 1_000 + 10_000)
    yield beat
    beat.close()


class Migration:
    """Rewrites the table in a transaction that ends when somebody waits for the table."""

    def __init__(self, server: PrivatePostgres) -> None:
        self.begun = False
        self._watch = psycopg.connect(server.url, autocommit=True)
        self._own = psycopg.connect(server.url)
        self._thread = threading.Thread(target=self._commit)

    def begin(self) -> None:
        """Hold the table from here on."""
        if not self.begun:
            self.begun = True
            self._own.execute("ALTER TABLE wheelbeat_monitor ADD COLUMN note uuid DEFAULT gen_random_uuid()")
            self._thread.start()

    def _commit(self) -> None:
        wait_until(lambda: self._watch.execute(WAITING).fetchone() == (True,), "somebody who waits for the table")
        self._own.commit()

    def undo(self) -> None:
        """Take it back."""
        self._thread.join()
        self._own.close()
        self._watch.execute("ALTER TABLE wheelbeat_monitor DROP COLUMN note")
        self._watch.close()


@pytest.fixture
def migration(quiet_server: PrivatePostgres) -> Iterator[Migration]:
    migration = Migration(quiet_server)
    yield migration
    migration.undo()


def before(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Do ``action`` before each call of a method."""
    method = getattr(owner, name)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        action()
        return method(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapped)


@pytest.mark.parametrize("reading", ["columns", "edits", "resync"])
def test_a_table_that_is_rewritten_is_never_read_as_empty(
    quiet: Place, beat: SteppedBeat, migration: Migration, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    """Who waits for such a table with a snapshot in hand finds it empty: rewriting keeps no old versions of rows."""
    ids = [monitor(f"m{n}", args="[1]").pk for n in range(20)]
    source = beat.database.source
    if reading == "columns":
        before(PostgresColumns, "read", monkeypatch, migration.begin)
    else:
        beat.until(lambda: beat.current, "the load")
        beat.run(2)
        if reading == "edits":
            before(source, "fetch", monkeypatch, migration.begin)
            Monitor.objects.filter(pk__in=ids[:5]).update(args="[2]")
        else:
            before(source, "block", monkeypatch, migration.begin)
            quiet.execute("TRUNCATE wheelbeat_changelog")
    beat.until(lambda: migration.begun, "the migration")
    beat.run(2).until(lambda: beat.current, "the table")
    assert beat.jobs(ids).keys() == set(ids)
    assert (beat.status["failures"], beat.status["reconciled_untriggered"], beat.status["drift_found"]) == (0, 0, 0)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[PrivatePostgres, PrivatePostgres]]:
    """A primary and its standby."""
    with PrivatePostgres(hot_standby="on", autovacuum="off", synchronous_commit="on", wal_level="logical") as primary:
        with site_database(primary.url) as connection:
            connection.close()
        with primary.standby() as standby:
            yield primary, standby


class Follower(Reader):
    """A beat that reads the change log of a standby."""

    def __init__(self, place: Place, standby: PrivatePostgres) -> None:
        super().__init__(place)
        self.close()
        self.place = place
        self.standby = psycopg.connect(standby.url, autocommit=True)
        self.database = from_url(standby.url)
        self.source = self.database.source
        self.replayed()
        self.cursor = self.source.snapshot().cursor

    def replayed(self) -> None:
        """Wait until the standby shows what the primary has done by now."""
        (position,) = self.place.execute("SELECT pg_current_wal_lsn()::text")[0]
        shows = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: self.standby.execute(shows, (position,)).fetchone() == (True,), "the standby")

    def news(self) -> dict[int, Any]:
        self.replayed()
        return super().news()


@pytest.mark.promise("an-edit-is-never-lost")
def test_on_a_standby_a_late_commit_is_not_lost(pair: tuple[PrivatePostgres, PrivatePostgres]) -> None:
    """A standby's snapshot names no transaction that is in progress."""
    primary, standby = pair
    with site_database(primary.url) as connection, as_default(connection):
        follower = Follower(Place(connection), standby)
        late = monitor("late", args="[1]")
        assert follower.news().keys() == {late.pk}
        with psycopg.connect(primary.url) as writer:
            writer.execute("UPDATE wheelbeat_monitor SET args = '[2]' WHERE id = %s", (late.pk,))
            others = [monitor(f"other {n}").pk for n in range(5)]
            assert set(others) <= follower.news().keys()
            assert late.pk not in follower.news()
            writer.commit()
        assert follower.news()[late.pk].args == "[2]"
        assert follower.news() == {}
        follower.close()
        follower.standby.close()


def test_logical_replication_fires_no_trigger_of_a_statement(
    quiet: Place, pair: tuple[PrivatePostgres, PrivatePostgres]
) -> None:
    """The first copy of the table is logged; what is applied row by row afterwards is found by the reconcile."""
    primary, _ = pair
    with psycopg.connect(primary.url, autocommit=True) as publisher:
        publisher.execute("TRUNCATE wheelbeat_monitor")
        publisher.execute("CREATE PUBLICATION monitors FOR TABLE wheelbeat_monitor")
        insert = "INSERT INTO wheelbeat_monitor (id, name, task, args, interval_ms) VALUES (%s, %s, 't', '[1]', 5000)"
        publisher.execute(insert, (1001, "copied"))
        quiet.execute("DELETE FROM wheelbeat_changelog")
        beat = SteppedBeat(quiet.open(), start_ms=int(time.time()) * 1_000 + 10_000, reconcile_period=60.0)
        beat.until(lambda: beat.current, "the load")
        quiet.execute(f"CREATE SUBSCRIPTION monitors CONNECTION '{primary.url}' PUBLICATION monitors")
        try:
            wait_until(lambda: Monitor.objects.filter(pk=1001).exists(), "the first copy")
            beat.until(lambda: beat.jobs([1001]), "the copied monitor")
            assert beat.status["reconciled_untriggered"] == 0
            publisher.execute(insert, (1002, "applied"))
            wait_until(lambda: Monitor.objects.filter(pk=1002).exists(), "the row that is applied")
            assert quiet.execute("SELECT count(*) FROM wheelbeat_changelog WHERE monitor_id = 1002") == [(0,)]
            beat.until(lambda: beat.jobs([1002]), "the applied monitor")
            assert (beat.status["reconciled_untriggered"], beat.status["drift_found"]) == (1, 0)
        finally:
            quiet.execute("DROP SUBSCRIPTION monitors")
            publisher.execute("DROP PUBLICATION monitors")
            beat.close()


@pytest.fixture
def lazy_server() -> Iterator[PrivatePostgres]:
    """Commits reach the disk ten seconds later."""
    lazy = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "0"}
    with PrivatePostgres(autovacuum="off", **lazy) as server:
        yield server


@pytest.mark.parametrize("others", [0, 60])
def test_a_server_that_comes_back_without_its_last_commits(lazy_server: PrivatePostgres, others: int) -> None:
    """Their transaction ids are given out again, and others may have used as many before the beat asks again."""
    with site_database(lazy_server.url) as connection, as_default(connection):
        place = Place(connection)
        ids = [monitor(f"m{n}", args="[1]").pk for n in range(5)]
        beat = SteppedBeat(place.open(), start_ms=int(time.time()) * 1_000 + 10_000)
        beat.until(lambda: beat.current, "the load")
        place.execute("CHECKPOINT")
        for n in range(30):
            Monitor.objects.filter(pk=ids[0]).update(args=f"[{n}]")
        beat.until(lambda: beat.jobs(ids)[ids[0]] == "[[29], {}]", "edits")
        connection.close()
        lazy_server.kill()
        lazy_server.start()
        assert Monitor.objects.get(pk=ids[0]).args != "[29]", "nothing was lost"
        Monitor.objects.filter(pk=ids[1]).update(args="[100]")
        for _ in range(others):
            place.execute("SELECT pg_current_xact_id()")
        beat.until(lambda: beat.status["resyncs"] == {"failover": 1}, "the crash is noticed")
        beat.until(lambda: beat.current, "the table")
        rows = Monitor.objects.values_list("pk", "args")
        assert beat.jobs(ids) == {job_id: f"[{args}, {{}}]" for job_id, args in rows}
        assert beat.jobs(ids)[ids[1]] == "[[100], {}]"

        connection.close()
        lazy_server.stop()
        lazy_server.start()
        Monitor.objects.filter(pk=ids[2]).update(args="[200]")
        beat.until(lambda: beat.jobs(ids)[ids[2]] == "[[200], {}]", "an edit after an orderly restart")
        assert beat.status["resyncs"] == {"failover": 1}
        beat.close()
        connection.close()
