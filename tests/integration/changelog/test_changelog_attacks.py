"""A whole beat while its database does the worst: what it holds is the table, and every run is sent once, on its grid.

PostgreSQL, on a server of its own. The clock is simulated, the database is not.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections, transaction
from support.beat.stepped import SteppedBeat
from support.changelog.places import Place, Reader, monitor
from support.site.databases import as_default, site_database

from celery_wheelbeat.jobs.identity import LATER_IDS_FROM
from celery_wheelbeat.sources.changelog import table_pass as walk
from celery_wheelbeat.sources.changelog.bulk_load import BLOCK_ROWS
from celery_wheelbeat.sources.changelog.follower import SLICE_ROWS
from django_wheelbeat.database import triggers
from django_wheelbeat.database.retention import prune_changelog
from django_wheelbeat.models import Monitor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services import PrivatePostgres

pytestmark = pytest.mark.postgres

EVERY_MS = 5_000
LATE_EDITS = 300
MANY = 30_000


@pytest.fixture
def place(quiet: Place) -> Iterator[Place]:
    quiet.execute("DELETE FROM wheelbeat_changelog")
    yield quiet
    triggers.install(quiet.connection)


@pytest.fixture
def beat(place: Place) -> Iterator[SteppedBeat]:
    """A beat that has not read anything yet."""
    beat = begin(place)
    yield beat
    beat.close()


def begin(place: Place, **settings: Any) -> SteppedBeat:
    return SteppedBeat(place.open(), start_ms=int(time.time()) * 1_000 + 10_000, **settings)


def fill(place: Place, count: int, every_ms: int = EVERY_MS) -> list[int]:
    """Insert monitors on the bare grid, version 1; returns their ids."""
    rows = place.execute(
        "INSERT INTO wheelbeat_monitor (name, task, args, interval_ms, jitter_s) "
        "SELECT 'm' || n, 'proj.check', '[1]', %s, 0 FROM generate_series(1, %s) n RETURNING id",
        every_ms,
        count,
    )
    return sorted(row[0] for row in rows)


def grid(after_ms: int, until_ms: int, every_ms: int = EVERY_MS) -> list[int]:
    """Fire times in (after, until]."""
    return list(range(after_ms // every_ms * every_ms + every_ms, until_ms + 1, every_ms))


def held_is_the_table(beat: SteppedBeat, place: Place) -> bool:
    rows = place.execute("SELECT id, args, kwargs FROM wheelbeat_monitor WHERE enabled")
    known = {*(row[0] for row in rows), *beat.fires()}
    return beat.jobs(known) == {job_id: f"[{args}, {kwargs}]" for job_id, args, kwargs in rows}


@contextmanager
def unseen() -> Iterator[None]:
    """Make edits in one transaction that leaves nothing in the log: only reading the whole table finds them."""
    with transaction.atomic():
        yield
        with connections["default"].cursor() as cursor:
            cursor.execute("TRUNCATE wheelbeat_changelog")


def test_every_run_is_exact_while_the_table_is_read_again(
    place: Place, beat: SteppedBeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "BLOCK_ROWS", 200)
    ids = fill(place, 2_000)
    kept, edited, deleted = ids[:1_000], ids[1_000:1_500], ids[1_500:]
    beat.until(lambda: beat.current, "the load")
    begun_ms = beat.engine.cursor_ms
    beat.run(7)
    for n in range(3):
        with unseen():
            Monitor.objects.filter(pk__in=edited[n::3]).update(args="[2]")
            Monitor.objects.filter(pk__in=deleted[n::3]).delete()
            fresh = monitor(f"fresh {n}", args="[1]", interval_ms=EVERY_MS, jitter_s=0)
        call_command("wheelbeat_resync", verbosity=0)
        beat.until(lambda n=n: beat.status["resyncs"].get("replaced", 0) > n, "the cursor is lost")
        beat.step()
        assert beat.status["reading"] == "resync"
        Monitor.objects.filter(pk__in=edited[:50]).update(args=f"[{n + 3}]")  # while the table is being read
        beat.until(lambda: beat.current and held_is_the_table(beat, place), "the changes that the log lacks")
        assert list(beat.jobs([fresh.pk])) == [fresh.pk]
    changed_ms = beat.engine.cursor_ms
    beat.run(11)
    beat.until(lambda: not beat.publisher.health().in_flight, "confirmations")
    ended_ms = beat.engine.cursor_ms
    fires = beat.fires()
    for job_id in [*kept, *edited]:
        assert [fire for fire in fires[job_id] if fire > begun_ms] == grid(begun_ms, ended_ms), job_id
    assert {beat.sent(job_id, 2)[-1] for job_id in edited[50:60]} == {grid(begun_ms, ended_ms)[-1]}
    assert not any(fire > changed_ms for job_id in deleted for fire in fires.get(job_id, ()))
    assert beat.difference == 0
    assert beat.status["drift_found"] == 0


def test_ids_may_be_as_large_as_the_column_takes(place: Place, beat: SteppedBeat) -> None:
    """Ids made elsewhere are large; two ids that are equal as floats are two monitors."""
    ids = (2**53, 2**53 + 1, LATER_IDS_FROM - 2, LATER_IDS_FROM - 1)
    monitor("beyond", id=LATER_IDS_FROM, interval_ms=EVERY_MS, jitter_s=0)
    for job_id in ids:
        monitor(f"m{job_id}", id=job_id, args="[1]", interval_ms=EVERY_MS, jitter_s=0)
    beat.until(lambda: beat.current, "the load")
    beat.broker.up = False
    beat.run(7)
    Monitor.objects.filter(pk__in=ids[1::2]).delete()
    beat.until(lambda: not beat.jobs(ids[1::2]), "the deletes")
    assert beat.account["removed"] == 2
    beat.broker.up = True
    beat.run(2)
    assert beat.fires().keys() == {ids[0], ids[2]}
    assert beat.difference == 0


def test_connections_that_die_at_every_statement_of_a_resync(
    place: Place, beat: SteppedBeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed by the server; each time the resync begins again or goes on, and ends with the table."""
    monkeypatch.setattr(walk, "BLOCK_ROWS", 100)
    ids = fill(place, 250)
    beat.until(lambda: beat.current, "the load")
    session = beat.database.source._session
    execute = session.rows
    statements, dies_at, resyncs = 0, 0, 0
    while statements == dies_at:  # until a resync ends before its turn to die comes
        with unseen():
            Monitor.objects.filter(pk__in=ids[dies_at % 7 :: 7]).update(args=f"[{dies_at + 2}]")
        dies_at, statements = dies_at + 1, 0

        def dying(name: str, *arguments: Any, dies_at: int = dies_at, **options: Any) -> Any:
            nonlocal statements
            if beat.status["reading"] == "resync" and statements < dies_at:
                statements += 1
                if statements == dies_at and session._connection is not None:
                    place.execute("SELECT pg_terminate_backend(%s, 5000)", session._connection.info.backend_pid)
            return execute(name, *arguments, **options)

        session.rows = dying
        beat.until(lambda lost=resyncs: beat.status["resyncs"].get("replaced", 0) > lost, "the cursor is lost")
        beat.until(lambda: beat.current and held_is_the_table(beat, place), f"a resync that died at {dies_at}")
        resyncs = beat.status["resyncs"]["replaced"]
        session.rows = execute
    assert dies_at > 9  # three blocks with begin, head, changes, block, commit
    assert beat.status["failures"] > 9
    assert beat.difference == 0


def test_many_edits_in_one_transaction_are_taken_in_slices(place: Place, beat: SteppedBeat) -> None:
    """No turn of the scheduling thread applies more than one, and none is held up: every run is sent in time."""
    slow = fill(place, MANY, 3_600_000)
    fast = monitor("fast", args="[1]", interval_ms=1_000, jitter_s=0)
    beat.until(lambda: beat.current, "the load")
    begun_ms = beat.engine.cursor_ms
    beat.sources.slices.clear()
    beat.sources.taken.clear()
    polls = beat.status["polls"]
    Monitor.objects.filter(interval_ms=3_600_000).update(args="[2]")
    turns = 0
    while not (beat.current and beat.status["changes"] >= MANY):
        beat.step(20)
        turns += 1
        assert turns <= 200
    assert sum(beat.sources.slices) == MANY
    assert max(beat.sources.slices) <= (BLOCK_ROWS if place.connection.vendor == "postgresql" else SLICE_ROWS)
    assert max(beat.sources.taken) == 1
    assert beat.status["polls"] - polls < 10
    assert set(beat.jobs(slow[::1_000]).values()) == {"[[2], {}]"}
    ended_ms = beat.engine.cursor_ms
    beat.step()
    assert [fire for fire in beat.sent(fast.pk) if begun_ms < fire <= ended_ms] == grid(begun_ms, ended_ms, 1_000)
    assert beat.difference == 0


def polls_beside_open_transactions(place: Place, reader: Reader, server: PrivatePostgres, edits: float) -> None:
    """Edit and poll that often (or, given a float, for so many seconds) beside two writers that do not end."""
    held, edited = monitor("held"), monitor("edited")
    reader.news()
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS other")
        admin.execute("CREATE DATABASE other")
    before_s = time.monotonic()
    with (
        psycopg.connect(server.database_url("other")) as elsewhere,
        psycopg.connect(server.url) as here,
    ):
        elsewhere.execute("CREATE TABLE t AS SELECT 1")
        began_s = watched_s = time.monotonic()
        here.execute("UPDATE wheelbeat_monitor SET priority = 1 WHERE id = %s", (held.pk,))
        count = 0
        while count < edits if isinstance(edits, int) else time.monotonic() - began_s < edits:
            count += 1
            Monitor.objects.filter(pk=edited.pk).update(args=f"[{count}]")
            assert [row.args for row in reader.news().values()] == [f"[{count}]"]
            assert len(reader.cursor.in_progress) == 2  # what a poll asks for does not grow
            watched_s = time.monotonic() if count == 1 else watched_s
        least_s = time.monotonic() - watched_s
        oldest_s = reader.source.poll(reader.cursor).oldest_transaction_s
        assert least_s - 0.1 <= oldest_s <= time.monotonic() - before_s + 0.1
        elsewhere.rollback()
        here.commit()
    assert [row.priority for row in reader.news().values()] == [1]
    assert reader.news() == {}
    assert reader.cursor.in_progress == ()
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("DROP DATABASE other WITH (FORCE)")


@pytest.mark.promise("an-edit-is-in-force-within-two-seconds")
def test_transactions_that_stay_open_hold_back_nobody_elses_edits(
    place: Place, reader: Reader, quiet_server: PrivatePostgres
) -> None:
    polls_beside_open_transactions(place, reader, quiet_server, LATE_EDITS)


@pytest.mark.soak
def test_transactions_that_stay_open_for_ten_minutes(
    place: Place, reader: Reader, quiet_server: PrivatePostgres
) -> None:
    polls_beside_open_transactions(place, reader, quiet_server, 600.0)


def test_edits_past_the_log_are_found_and_counted_apart(place: Place) -> None:
    """Disabled triggers and triggers that a replica's session does not fire; once although the log has rows."""
    ids = fill(place, 30)
    place.execute("DELETE FROM wheelbeat_changelog")  # the simulated clock would count these rows as read
    beat = begin(place, reconcile_period=60.0)
    beat.until(lambda: beat.current, "the load")
    place.execute("ALTER TABLE wheelbeat_monitor DISABLE TRIGGER USER")
    Monitor.objects.filter(pk__in=ids[:4]).update(args="[2]")
    Monitor.objects.filter(pk=ids[4]).delete()
    beat.until(lambda: beat.status["reconciled_untriggered"] == 5, "edits while triggers were disabled")
    assert held_is_the_table(beat, place)

    place.execute("ALTER TABLE wheelbeat_monitor ENABLE TRIGGER USER")  # not ALWAYS
    assert triggers.missing(place.connection)
    place.execute("SET session_replication_role = replica")
    Monitor.objects.filter(pk__in=ids[5:8]).update(args="[3]")
    place.execute("SET session_replication_role = origin")
    beat.until(lambda: beat.status["reconciled_untriggered"] == 8, "edits of a replica's session")
    assert beat.status["drift_found"] == 0

    Monitor.objects.filter(pk=ids[9]).update(args="[4]")
    beat.until(lambda: beat.jobs([ids[9]]) == {ids[9]: "[[4], {}]"}, "an edit by the log")
    place.execute("ALTER TABLE wheelbeat_monitor DISABLE TRIGGER USER")
    Monitor.objects.filter(pk=ids[9]).update(args="[5]")
    assert triggers.install(place.connection)
    beat.until(lambda: beat.status["drift_found"] == 1, "a wrong monitor whose change the log had")
    assert beat.status["reconciled_untriggered"] == 8
    assert held_is_the_table(beat, place)
    assert triggers.missing(place.connection) == []
    beat.close()


def test_a_database_restored_from_a_dump_under_a_running_beat(quiet_server: PrivatePostgres) -> None:
    """The dump lacks the last edits; its log comes from a history that the new database does not have."""
    server = quiet_server
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE site")
    with site_database(server.database_url("site")) as connection, as_default(connection):
        place = Place(connection)
        ids = fill(place, 20)
        beat = begin(place)
        beat.until(lambda: beat.current, "the load")
        server.dump("site", "site.sql")
        Monitor.objects.filter(pk__in=ids[:5]).update(args="[2]")
        Monitor.objects.filter(pk=ids[6]).delete()
        lost = monitor("not in the dump", args="[1]")
        beat.until(lambda: held_is_the_table(beat, place), "edits after the dump")
        connection.close()
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute("DROP DATABASE site WITH (FORCE)")
            beat.until(lambda: not beat.status["connected"], "the database is gone")
            admin.execute("CREATE DATABASE site")
        server.restore("site", "site.sql")
        beat.until(lambda: beat.current and held_is_the_table(beat, place), "the restored table")
        assert beat.jobs([lost.pk, ids[6]]) == {ids[6]: "[[1], {}]"}
        assert beat.status["resyncs"] == {"replaced": 1}
        assert triggers.missing(connection) == []
        Monitor.objects.filter(pk=ids[0]).update(args="[9]")
        beat.until(lambda: beat.jobs(ids[:1]) == {ids[0]: "[[9], {}]"}, "an edit after the restore")
        assert beat.difference == 0
        beat.close()
        connection.close()
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("DROP DATABASE site WITH (FORCE)")


def test_a_migration_under_a_running_beat(place: Place, beat: SteppedBeat) -> None:
    """New columns concern no beat of the earlier version; a rewritten table is read again."""
    ids = fill(place, 20)
    beat.until(lambda: beat.current, "the load")
    try:
        place.execute("ALTER TABLE wheelbeat_monitor ADD COLUMN note text NOT NULL DEFAULT ''")
        place.execute("ALTER TABLE wheelbeat_changelog ADD COLUMN note text")
        call_command("migrate", verbosity=0, interactive=False)
        Monitor.objects.filter(pk__in=ids[:3]).update(args="[2]")
        beat.until(lambda: held_is_the_table(beat, place), "edits with the new columns there")
        assert beat.status["resyncs"] == {}
    finally:
        place.execute("ALTER TABLE wheelbeat_monitor DROP COLUMN note")
        place.execute("ALTER TABLE wheelbeat_changelog DROP COLUMN note")
    place.execute("VACUUM FULL wheelbeat_changelog")
    Monitor.objects.filter(pk__in=ids[3:6]).update(args="[3]")
    beat.until(lambda: beat.status["resyncs"] == {"replaced": 1}, "the log lies elsewhere now")
    beat.until(lambda: beat.current and held_is_the_table(beat, place), "the table")
    assert beat.status["failures"] == 0
    assert beat.difference == 0


def test_log_rows_of_another_server_are_no_news_and_can_be_pruned(place: Place, reader: Reader) -> None:
    """A dump brings them along; this server has not given out their transaction ids yet."""
    one = monitor()
    reader.news()
    place.execute("ALTER TABLE wheelbeat_changelog ALTER COLUMN xid DROP DEFAULT")
    place.execute("INSERT INTO wheelbeat_changelog (monitor_id, operation, xid) VALUES (%s, 'U', '999999999')", one.pk)
    place.execute("INSERT INTO wheelbeat_changelog (monitor_id, operation, xid) VALUES (NULL, 'R', '999999999')")
    place.execute("ALTER TABLE wheelbeat_changelog ALTER COLUMN xid SET DEFAULT pg_current_xact_id()")
    assert reader.news() == {}
    Monitor.objects.update(priority=3)
    assert reader.news().keys() == {one.pk}
    prune_changelog(place.connection, timedelta(0), lambda _seconds: reader.news())
    assert place.execute("SELECT count(*) FROM wheelbeat_changelog") == [(0,)]
    assert reader.news() == {}
