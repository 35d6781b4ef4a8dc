"""Which calls with an eta are stored as one-off runs, and what is stored of them."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import threading
import uuid
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, chord, group
from celery.beat import Scheduler
from kombu import Connection, Producer

from celery_wheelbeat import later, worker
from celery_wheelbeat.dispatch.messages.hooks import hooks
from celery_wheelbeat.errors import InvalidRequest
from celery_wheelbeat.jobs.rows import Limits
from celery_wheelbeat.later import drop_in, opening
from celery_wheelbeat.later.checks import sending_of
from celery_wheelbeat.later.connections.kept import KEPT, KeptConnections
from celery_wheelbeat.later.drop_in import wraps
from celery_wheelbeat.later.drop_in.routing import REASONS, due_ms
from celery_wheelbeat.later.ring import due_ms_of
from celery_wheelbeat.later.tables import create_tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW_MS = 1_700_000_000_000


def add(*numbers: int) -> int:
    """Stand for a task of the application."""
    return sum(numbers)


class Site:
    """An app with a store, whose messages are recorded instead of sent."""

    def __init__(self, path: Path, **conf: Any) -> None:
        self.path = path
        self.app = Celery("proj", broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.update(wheelbeat_database_url=f"sqlite:///{path}", wheelbeat_later_from=10, **conf)
        self.sent: list[dict[str, Any]] = []
        self.app.amqp.send_task_message = self.record
        later.install(self.app)
        self.add = self.app.task(name="proj.add")(add)

    def record(self, _producer: Any, name: str, message: Any, **_options: Any) -> None:
        self.sent.append({"name": name, **message.headers})

    def stored(self) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute("SELECT id, at_ms, key, task, args, kwargs, options FROM wheelbeat_later")
            names = [column[0] for column in rows.description]
            found = [dict(zip(names, row, strict=True)) for row in rows]
        return [{**row, **{name: json.loads(row[name]) for name in ("args", "options")}} for row in found]

    def counts(self) -> dict[str, int]:
        return dict(drop_in.counts(self.app))


@pytest.fixture(autouse=True)
def _without_django(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other tests of the process may have loaded Django."""
    monkeypatch.setattr(opening, "_lend", None)
    yield
    opening.close_all()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return made(tmp_path / "later.sqlite3")


def made(path: Path, **conf: Any) -> Site:
    with closing(sqlite3.connect(path)) as connection:
        create_tables(connection)
    return Site(path, **conf)


def test_the_distance_decides(site: Site) -> None:
    for countdown in (None, 0, -5, 1, 9.9):
        site.add.apply_async((1, 2), countdown=countdown)
    site.add.apply_async((1, 2), eta=datetime.now(UTC) - timedelta(days=1))
    assert len(site.sent) == 6
    assert site.counts() == {}
    result = site.add.apply_async((1, 2), countdown=11)
    (row,) = site.stored()
    assert (row["id"], row["task"], row["args"]) == (result.id, "proj.add", [1, 2])
    assert row["options"] == {"ignore_result": False}
    assert due_ms_of(result.id) == row["at_ms"]
    assert len(site.sent) == 6
    assert site.counts() == {"stored": 1}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"countdown": 1.0001}, NOW_MS + 1_001),
        ({"countdown": 5, "eta": "2000-01-01"}, NOW_MS + 5_000),
        ({"eta": datetime(2023, 11, 14, 22, 13, 20, 500)}, NOW_MS + 1),  # noqa: DTZ001 - Celery reads naive ones as UTC
        ({"eta": datetime(2023, 11, 14, 23, 13, 20, tzinfo=timezone(timedelta(hours=1)))}, NOW_MS),
        ({"eta": "2023-11-14T22:13:20Z"}, NOW_MS),
        ({"eta": "soon"}, None),
        ({"eta": 5}, None),
        ({"countdown": "5"}, None),
        ({"countdown": 1e400}, None),
    ],
)
def test_the_due_time_is_the_one_that_celery_reads(options: dict[str, Any], expected: int | None) -> None:
    assert due_ms(options, NOW_MS) == expected


def test_options_and_ids_are_kept(site: Site) -> None:
    site.add.apply_async(
        (1,),
        countdown=60,
        task_id="chosen",
        queue="slow",
        priority=3,
        headers={"tenant": 7},
        expires=120,
        retries=2,
        link=site.add.s(1),
        shadow="seen",
        retry=False,
        ignore_result=True,
    )
    (row,) = site.stored()
    options = row["options"]
    assert row["key"] == "task:chosen"
    assert datetime.fromisoformat(options.pop("expires")) > datetime.now(UTC)
    assert options.pop("link")["task"] == "proj.add"
    assert options == {
        "task_id": "chosen", "queue": "slow", "priority": 3, "headers": {"tenant": 7}, "retries": 2, "shadow": "seen",
        "ignore_result": True,
    }  # fmt: skip


def test_what_cannot_be_stored_goes_to_celery_with_its_reason(site: Site) -> None:
    long = site.add.s("x" * 20_000)
    with Connection("memory://other") as other:
        calls: dict[str, list[dict[str, Any]]] = {
            "connection": [{"connection": other}, {"producer": Producer(other)}, {"producer": Producer(other.clone())}],
            "router": [{"router": site.app.amqp.router}],
            "serializer": [{"serializer": "pickle"}],
            "stamps": [{"stamped_headers": ["a"], "a": 1}],
            "overlap": [{"headers": {"wheelbeat_overlap": "skip"}}],
            "run_of_a_monitor": [{"task_id": str(uuid.uuid5(uuid.NAMESPACE_URL, "a"))}],
            "options": [
                {"unknown": 1},
                {"task_id": "i" * 300},
                {"queue": "unacked"},
                {"link": long},
            ],
        }
        for reason, options in calls.items():
            assert reason in REASONS
            for one in options:
                site.add.apply_async((1,), countdown=60, **one)
        site.add.apply_async((object(),), countdown=60)
        site.add.apply_async(("x" * 300_000,), countdown=60)
        site.app.send_task("celery.chord_unlock", (1,), countdown=60)
    wanted = {reason: len(options) for reason, options in calls.items()}
    assert site.counts() == {**wanted, "options": wanted["options"] + 2, "chord_unlock": 1}
    assert len(site.sent) == sum(site.counts().values())
    assert site.stored() == []


def test_members_of_groups_and_chords_are_stored_although_they_share_a_producer(site: Site) -> None:
    group(site.add.s(n).set(countdown=60) for n in range(2)).apply_async()
    chord([site.add.s(n).set(countdown=60) for n in range(2)], site.add.s()).apply_async()
    rows = site.stored()
    assert len(rows) == 4
    assert [row["options"]["group_index"] for row in rows] == [0, 1, 0, 1]
    assert [row["options"].get("chord", {}).get("task") for row in rows] == [None, None, "proj.add", "proj.add"]


def test_results_of_rpc_go_back_to_the_process_and_are_not_stored(tmp_path: Path) -> None:
    site = made(tmp_path / "rpc.sqlite3", result_backend="rpc://")
    site.add.apply_async((1,), countdown=60, ignore_result=True)
    assert site.counts() == {"stored": 1}
    site.add.apply_async((1,), countdown=60)
    assert site.counts() == {"stored": 1, "result_backend": 1}


def test_an_eager_task_runs_at_once(site: Site) -> None:
    site.app.conf.task_always_eager = True
    assert site.add.apply_async((1, 2), countdown=60).get() == 3
    assert site.stored() == []


def test_it_is_off_by_default_and_installed_once(tmp_path: Path) -> None:
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.amqp.send_task_message = lambda *_args, **_options: None
    worker.install(app)
    wrap = Celery.send_task
    later.install(app)
    worker.install(app)
    assert Celery.send_task is wrap
    app.send_task("proj.add", countdown=60)
    assert drop_in.counts(app) == {}


def test_another_app_of_the_process_is_not_affected(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wraps._Reach, "every_app", False)
    other = Celery("other", broker="memory://", set_as_current=False)
    other.conf.update(site.app.conf.changes)
    sent: list[Any] = []
    other.amqp.send_task_message = lambda *args, **_options: sent.append(args)
    other.send_task("proj.add", countdown=60)
    assert len(sent) == 1
    assert drop_in.drop_in_of(other) is None


def test_an_app_can_be_pickled(site: Site) -> None:
    site.add.apply_async((1,), countdown=60)
    assert b"proj" in pickle.dumps(site.app)


def test_the_wrap_does_not_keep_a_beat_from_the_fast_lane(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(site.app, lazy=True)
    del site.app.amqp.send_task_message
    assert hooks(site.app, scheduler, "proj.add") == []
    monkeypatch.setattr(Celery, "send_task", lambda *_args, **_options: None)
    (hook,) = hooks(site.app, scheduler, "proj.add")
    assert hook.what.startswith("Celery.send_task is replaced")


def test_a_store_without_a_table_is_away_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path / "empty.sqlite3")
    ids = [site.add.apply_async((n,), countdown=60).id for n in range(5)]
    assert [message["id"] for message in site.sent] == ids
    assert all(message["eta"] for message in site.sent)
    assert site.counts() == {"store_away": 5}
    lines = [record.getMessage() for record in caplog.records if record.name == "celery_wheelbeat.later"]
    assert len(lines) == 1
    assert "1 tasks with an eta were sent by Celery itself" in lines[0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"retries": -1}, "'retries' is -1, expected a whole number"),
        ({"retries": True}, "'retries' is True"),
        ({"group_index": "1"}, "'group_index' is '1'"),
        ({"chain": {}}, "'chain' is {}, expected signatures"),
        ({"chord": []}, "'chord' is \\[\\], expected a signature"),
        ({"chain": [{"task": "a\nb", "options": {}}]}, "contains the signature of 'a\\\\nb'"),
        ({"chord": {"task": "t", "options": {"queue": "unacked"}}}, "reserved"),
        ({"chain": [{"task": "other.t", "options": {}}]}, "matches no pattern of wheelbeat_allowed_tasks"),
        ({"argsrepr": 5}, "'argsrepr' is 5, expected a text"),
    ],
)
def test_canvas_options_of_a_row_follow_the_rules_of_callbacks(options: dict[str, Any], reason: str) -> None:
    sending = sending_of("proj.add", json.dumps(options), Limits(allowed_tasks=("proj.*", "t")))
    with pytest.raises(InvalidRequest, match=reason):
        raise InvalidRequest("; ".join(sending.problems))


def test_monitors_have_no_canvas_options() -> None:
    from celery_wheelbeat.jobs.json_fields import no_markers
    from celery_wheelbeat.jobs.send_options import compose

    columns = dict.fromkeys(("queue", "exchange", "routing_key", "priority", "headers", "expires_s"))
    for name in ("chain", "chord", "retries", "group_index"):
        assert compose(no_markers, **columns, options=json.dumps({name: 1})).problems


class Line:
    """A connection that counts its uses."""

    def __init__(self) -> None:
        self.committed = 0
        self.closed = False
        self.answers = True

    def cursor(self) -> Line:
        if not self.answers:
            raise OSError("gone")
        return self

    def execute(self, _statement: str) -> None: ...

    def fetchall(self) -> list[Any]:
        return []

    def rollback(self) -> None: ...

    def commit(self) -> None:
        self.committed += 1

    def close(self) -> None:
        self.closed = True


def test_a_connection_serves_one_call_at_a_time_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptConnections(Line)
    with kept.lent() as first, kept.lent() as second:
        assert first is not second
    with kept.lent() as third:
        assert third in (first, second)
    with pytest.raises(OSError, match="of the caller"), kept.lent() as broken:
        raise OSError("of the caller")
    assert broken.closed
    monkeypatch.setattr("celery_wheelbeat.later.connections.kept.TRUSTED_S", -1.0)
    with kept.lent() as idle:
        idle.answers = False
    with kept.lent() as new:
        assert new is not idle
    assert idle.closed


def test_threads_do_not_keep_more_than_a_few() -> None:
    kept, barrier, lines = KeptConnections(Line), threading.Barrier(2 * KEPT), []

    def call() -> None:
        with kept.lent() as line:
            lines.append(line)
            barrier.wait(10)

    threads = [threading.Thread(target=call) for _ in range(2 * KEPT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(line) for line in lines}) == 2 * KEPT
    assert sum(line.closed for line in lines) == KEPT


def test_a_forked_process_has_connections_of_its_own() -> None:
    kept = KeptConnections(Line)
    with kept.lent() as parents:
        pass
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with kept.lent() as own:
            os.write(writing, b"own" if own is not parents and not parents.closed else b"shared")
        os._exit(0)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        os.close(writing)
        assert pipe.read() == b"own"


@contextmanager
def django_is(path: Path) -> Iterator[None]:
    """Let Django's connection be one to ``path``."""

    @contextmanager
    def lend(_alias: str | None, *, savepoint: bool) -> Iterator[Any]:
        with closing(sqlite3.connect(path)) as connection:
            yield connection
            connection.commit()

    former = opening._lend
    opening.register(lend)
    try:
        yield
    finally:
        opening.register(former)
        opening.close_all()


def test_a_call_through_a_connection_that_the_beat_does_not_read_is_refused(site: Site, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "django.sqlite3")) as connection:
        create_tables(connection)
    with django_is(tmp_path / "django.sqlite3"):
        with pytest.raises(InvalidRequest, match="wheelbeat_database_url names another database than Django's"):
            later.now(site.add.s(1))
        site.add.apply_async((1,), countdown=60)
        assert site.counts() == {"store_away": 1}
    with django_is(site.path):
        later.now(site.add.s(1))
        site.add.apply_async((1,), countdown=60)
        assert len(site.stored()) == 2


def test_without_the_setting_a_mistake_in_another_one_keeps_no_task_from_being_sent() -> None:
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.update(wheelbeat_tick="never", wheelbeat_nonsense=1)
    sent: list[Any] = []
    app.amqp.send_task_message = lambda *args, **_options: sent.append(args)
    later.install(app)
    app.send_task("proj.add", countdown=60)
    assert len(sent) == 1
    assert drop_in.drop_in_of(app).from_s is None


def test_a_result_backend_that_fails_keeps_no_task_from_being_revoked(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_args: Any, **_options: Any) -> None:
        raise ConnectionError("no backend")

    ids = [site.add.apply_async((n,), countdown=60).id for n in range(2)]
    monkeypatch.setattr(site.app.backend, "mark_as_revoked", fails)
    broadcast: list[Any] = []
    monkeypatch.setattr(site.app.control, "broadcast", lambda *args, **_options: broadcast.append(args))
    site.app.control.revoke(ids)
    assert len(broadcast) == 1
    with closing(sqlite3.connect(site.path)) as connection:
        assert set(connection.execute("SELECT task FROM wheelbeat_later")) == {("",)}
    lines = [record.getMessage() for record in caplog.records if record.name == "celery_wheelbeat.later"]
    assert (
        len([line for line in lines if "is cancelled, its result is not stored: ConnectionError: no backend" in line])
        == 2
    )
