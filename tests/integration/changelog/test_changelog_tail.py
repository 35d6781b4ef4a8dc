"""The I/O thread on real databases: edits in force within two seconds, the reconcile, outages, failover."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pytest
from django.db import OperationalError
from services import PrivatePostgres
from services.server import wait_until
from support.changelog.places import Place, many, monitor
from support.site.databases import as_default, site_database

from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.definitions import Finished
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.sources.changelog.reader import ChangeLogReader
from celery_wheelbeat.sources.changelog.translator import Translator
from celery_wheelbeat.sources.files.installation_file import InstallationFile
from celery_wheelbeat.sources.messages import Changed, Loaded, Opened, Remembered
from django_wheelbeat.database.opening import install_triggers
from django_wheelbeat.models import Beat, Monitor, Quarantine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT_S = 120.0
IN_FORCE_S = 2.0
STATUS = {"namespace": "n", "host": "h", "pid": 1, "version": "1", "started_ms": 0, "marks": "{}", "status": "{}"}


class Engine:
    """What an engine would hold, and the tail that tells it."""

    def __init__(
        self, place: Place, reconcile_period_s: float = 3_600.0, memory: InstallationFile | None = None
    ) -> None:
        definitions = Translator(partial(compile_rows, crons=CronTable()))
        self.tail = ChangeLogReader(
            place.open(), definitions, SystemClock(), lambda: None, reconcile_period_s=reconcile_period_s, memory=memory
        )
        self.remembered: str | None = None
        self.held: dict[int, int] = {}
        self.opened: Opened | None = None
        self.loaded = False

    def __enter__(self) -> Self:
        self.tail.start()
        self.wait(lambda: self.loaded, "the load")
        return self

    def __exit__(self, *_: object) -> None:
        self.tail.close(WAIT_S)

    def take(self) -> None:
        for news in self.tail.take():
            match news:
                case Remembered(namespace):
                    self.remembered = namespace
                case Opened():
                    self.opened = news
                case Loaded(batch, _, last):
                    self.held |= dict(zip(batch.ids.tolist(), batch.interval_ms.tolist(), strict=True))
                    self.loaded = last
                case Changed(changes, _):
                    upserts = changes.upserts
                    self.held |= dict(zip(upserts.ids.tolist(), upserts.interval_ms.tolist(), strict=True))
                    for job_id in changes.deleted_ids.tolist():
                        self.held.pop(job_id, None)

    def wait(self, condition: Any, what: str) -> None:
        def true() -> bool:
            self.take()
            return condition()

        wait_until(true, what, WAIT_S)

    def wait_for_table(self) -> None:
        expected = dict(Monitor.objects.filter(cron="").values_list("pk", "interval_ms"))
        self.wait(lambda: self.held == expected, f"the {len(expected)} monitors of the table")


@pytest.mark.promise("an-edit-is-in-force-within-two-seconds")
def test_edits_are_in_force_and_everything_is_written_back(place: Place) -> None:
    Monitor.objects.bulk_create(many(50))
    broken = monitor("broken", interval_ms=None, cron="x")
    with Engine(place) as engine:
        assert engine.opened.namespace == str(place.execute("SELECT uuid FROM wheelbeat_installation")[0][0])
        engine.wait_for_table()
        Monitor.objects.filter(name__startswith="m1").update(interval_ms=1_000)
        engine.wait_for_table()
        Monitor.objects.filter(name__startswith="m2").delete()
        one = monitor("one", one_off=True)
        engine.wait_for_table()
        now_ms = int(time.time() * 1000) + 5_000
        engine.tail.finish({one.pk: Finished(now_ms, now_ms)})
        engine.tail.report(STATUS)
        wait_until(lambda: Monitor.objects.get(pk=one.pk).finished_at is not None, "finished_at")
        wait_until(Beat.objects.exists, "the status row")
        wait_until(Quarantine.objects.exists, "the quarantined monitor")
        assert Quarantine.objects.get().job_key == f"monitor:{broken.pk}"
        engine.wait(lambda: engine.tail.status()["lag_s"] < IN_FORCE_S, "a poll that is not long ago")
        status = engine.tail.status()
        assert status["connected"]
        assert (status["failures"], status["drift_found"], status["resyncs"]) == (0, 0, {})
        engine.tail.report({**STATUS, "status": '{"last": true}'})
    assert Beat.objects.get().status == '{"last": true}'


def test_what_a_database_cannot_store_is_written_down_all_the_same(place: Place) -> None:
    """Names of entries and reasons may hold anything; a write that fails would be made again for ever."""
    database = place.open()
    store = database.store
    key = "entry:" + "é" * 400
    store.quarantine({key: ("h", "NUL \0, surrogate \ud800" + "!" * 10_000)}, [])
    recorded = Quarantine.objects.get()
    assert key.startswith(recorded.job_key)
    assert recorded.reason.startswith("NUL \\0, surrogate \\ud800!!!")
    store.quarantine({}, [key])
    assert not Quarantine.objects.exists()
    database.source.close()


def test_the_next_start_finds_the_marks_and_the_quarantine(place: Place) -> None:
    with Engine(place) as engine:
        namespace = engine.opened.namespace
        row = {**STATUS, "namespace": namespace, "marks": '{"broker": {"mark_ms": 17}}'}
        engine.tail.report(row)
        engine.tail.quarantine({"entry:a": ("", "never fires")}, [])
    with Engine(place) as engine:
        ((document,),) = engine.opened.marks.values()
        assert {**document, "age_s": 0} == {"mark_ms": 17, "age_s": 0}
        assert 0 <= document["age_s"] < WAIT_S
        assert engine.opened.quarantined == ["entry:a"]


def test_the_installation_is_remembered_beside_the_schedule_file(place: Place, tmp_path: Path) -> None:
    with Engine(place, memory=InstallationFile(tmp_path / "schedule")) as engine:
        assert engine.remembered is None
    with Engine(place, memory=InstallationFile(tmp_path / "schedule")) as again:
        assert again.remembered == engine.opened.namespace


def test_the_reconcile_finds_what_no_trigger_saw(place: Place) -> None:
    """Disabled triggers; on MariaDB also TRUNCATE, on SQLite also REPLACE."""
    Monitor.objects.bulk_create(many(30))
    with Engine(place, reconcile_period_s=0.3) as engine:
        engine.wait_for_table()
        changed = _behind_the_triggers(place)
        engine.wait_for_table()
        engine.wait(lambda: engine.tail.status()["reconciled_untriggered"] == changed, "the count")
        assert engine.tail.status()["drift_found"] == 0


def _behind_the_triggers(place: Place) -> int:
    """Change monitors so that no row of the change log tells; returns how many."""
    if place.vendor == "mysql":
        place.execute("TRUNCATE wheelbeat_monitor")
        return 30
    if place.vendor == "sqlite":
        replaced = Monitor.objects.get(name="m3")
        place.execute("INSERT OR REPLACE INTO wheelbeat_monitor (name, task, interval_ms, effective_from) "
                      "VALUES ('m3', 't', 5000, '2026-01-01 00:00:00.000000')")  # fmt: skip
        assert not Monitor.objects.filter(pk=replaced.pk).exists()
        return 1
    place.execute("ALTER TABLE wheelbeat_monitor DISABLE TRIGGER USER")
    Monitor.objects.filter(name__startswith="m1").update(interval_ms=5_000)
    Monitor.objects.filter(name="m2").delete()
    install_triggers("default")
    return 12


@pytest.mark.postgres
def test_a_huge_transaction_arrives_in_slices(postgres: Place) -> None:
    """So that applying it never takes long at a time."""
    postgres.execute(
        "INSERT INTO wheelbeat_monitor (name, task, interval_ms) "
        "SELECT 'm' || n, 't', 9000 FROM generate_series(1, 10000) n"
    )
    with Engine(postgres) as engine:
        engine.wait_for_table()
        sizes: list[int] = []
        take = engine.tail.take

        def noted() -> Any:
            news = take()
            sizes.extend(len(one.changes.upserts) for one in news if isinstance(one, Changed))
            return news

        engine.tail.take = noted
        Monitor.objects.update(interval_ms=7_000)
        engine.wait_for_table()
        assert max(sizes) <= 2_000
        assert sum(sizes) == 10_000


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    """A PostgreSQL that may be stopped."""
    with PrivatePostgres() as server:
        yield server


@pytest.mark.postgres
def test_a_database_that_stops_delays_edits_and_loses_none(server: PrivatePostgres) -> None:
    with site_database(server.url) as connection, as_default(connection):
        one, done = monitor("one"), monitor("done", one_off=True)
        with Engine(Place(connection)) as engine:
            stamp_s = engine.tail.stamp_s()
            server.stop()
            engine.wait(lambda: not engine.tail.status()["connected"], "the outage")
            engine.tail.finish({done.pk: Finished(2**41, 2**41)})
            engine.tail.report(STATUS)
            assert engine.held == {one.pk: 60_000, done.pk: 60_000}
            server.start()
            connection.close()
            wait_until(lambda: _edited(one, connection), "the database to take writes")
            engine.wait_for_table()
            wait_until(lambda: Monitor.objects.get(pk=done.pk).finished_at, "what was done in the meantime")
            status = engine.tail.status()
            assert status["failures"] > 0
            assert status["resyncs"] == {}
            assert engine.tail.stamp_s() > stamp_s


def _edited(one: Monitor, connection: Any) -> bool:
    try:
        return Monitor.objects.filter(pk=one.pk).update(interval_ms=5_000) == 1
    except OperationalError:
        connection.close()
        return False


@pytest.mark.postgres
def test_a_promoted_standby_that_reuses_transaction_ids_is_noticed() -> None:
    """Asynchronous failover: the last commits are lost, and their transaction ids are given out again."""
    with PrivatePostgres() as primary, site_database(primary.url) as connection, as_default(connection):
        kept = monitor("kept")
        standby = primary.standby()
        with standby:
            standby.stop()
            for n in range(5):
                monitor(f"lost {n}")
            place = Place(connection)
            with Engine(place) as engine:
                engine.wait_for_table()
                assert len(engine.held) == 6
                primary.kill()
                standby.start()
                standby.promote()
                connection.close()
                connection.settings_dict["PORT"] = str(standby.port)
                edited = Monitor.objects.filter(pk=kept.pk).update(interval_ms=5_000)
                assert edited == 1
                fresh = monitor("fresh")
                engine.wait_for_table()
                assert engine.held == {kept.pk: 5_000, fresh.pk: 60_000}
                assert engine.tail.status()["resyncs"] == {"failover": 1}
                assert engine.tail.status()["drift_found"] == 0
