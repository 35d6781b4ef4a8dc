"""One conformance suite for every store of one-off runs, through every kind of connection of an application."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import MySQLdb
import psycopg
import pytest
import redis
import sqlalchemy
import sqlalchemy.orm
from celery import Celery
from support.pauses import pause

from celery_wheelbeat import later
from celery_wheelbeat.errors import InvalidRequest, KeyInUse, SourceError
from celery_wheelbeat.later.connections.redis import RedisKeys, RedisSession
from celery_wheelbeat.later.feed import POLL_S
from celery_wheelbeat.later.open_seconds import Resume
from celery_wheelbeat.later.readers import NO_NEW_SECOND
from celery_wheelbeat.later.readers.mariadb import MariadbReader
from celery_wheelbeat.later.readers.postgres import PostgresReader
from celery_wheelbeat.later.readers.redis import RedisReader
from celery_wheelbeat.later.readers.sqlite import SqliteReader
from celery_wheelbeat.later.ring import BEYOND, PARTS, due_id, due_ms_of, part_of, parts_of, table_of
from celery_wheelbeat.later.tables import create_tables, drop_tables
from celery_wheelbeat.later.writers import Cancelled, Wanted, writer_of
from celery_wheelbeat.settings.urls import mysql_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_wheelbeat.later.readers import LaterReader

APP = Celery("proj", set_as_current=False)


@APP.task(name="proj.remind")
def remind(*_args: Any, **_kwargs: Any) -> None:
    """Stand for a task of the application."""


@dataclass
class Site:
    """A database with the tables of one-off runs."""

    vendor: str
    connect: Callable[[], Any]
    """Opens a connection of the driver; it is in a transaction from its first statement on."""
    url: str
    """For SQLAlchemy."""
    empty: Callable[[Any], object] = lambda connection: connection.cursor().execute("DELETE FROM wheelbeat_later")
    readers: list[LaterReader] = field(default_factory=list)

    def reader(self, resume: Resume | None = None) -> LaterReader:
        """Return a reader as a beat has it."""
        if self.vendor == "redis":
            self.readers.append(RedisReader(lambda: redis.Redis.from_url(self.url), KEYS, resume))
            return self.readers[-1]
        kind = {"sqlite": SqliteReader, "postgresql": PostgresReader, "mysql": MariadbReader}[self.vendor]
        self.readers.append(kind(lambda: _autocommit(self.connect()), resume))
        return self.readers[-1]


def _autocommit(connection: Any) -> Any:
    if isinstance(connection, sqlite3.Connection):
        connection.isolation_level = None
    elif type(connection).__module__.startswith("MySQLdb"):
        connection.autocommit(True)
    else:
        connection.autocommit = True
    return connection


DATABASES = [
    pytest.param("postgresql", marks=pytest.mark.postgres),
    pytest.param("mysql", marks=pytest.mark.mysql),
    "sqlite",
]
VENDORS = [*DATABASES, pytest.param("redis", marks=pytest.mark.redis)]
KEYS = RedisKeys("tests")
in_a_database = pytest.mark.parametrize("tables", DATABASES, indirect=True)
"""What Redis does not promise: it knows no transaction of the application."""


@pytest.fixture(scope="module", params=VENDORS)
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Every kind of store in turn, with tables."""
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("later") / "later.sqlite3"
        made = Site("sqlite", lambda: sqlite3.connect(path, timeout=10), f"sqlite:///{path}")
    elif request.param == "redis":
        url = request.getfixturevalue("redis_url")
        with redis.Redis.from_url(url) as client:
            yield Site("redis", lambda: RedisSession(client, KEYS), url, lambda _: client.flushdb())
        return
    elif request.param == "mysql":
        url = request.getfixturevalue("mysql_url")
        given = mysql_parameters("url", url)
        made = Site("mysql", lambda: MySQLdb.connect(**given), url.replace("mysql://", "mysql+mysqldb://"))
    else:
        url = request.getfixturevalue("postgres_url")
        made = Site(
            "postgresql",
            lambda: psycopg.connect(url, options="-c lock_timeout=60s"),
            url.replace("postgresql://", "postgresql+psycopg://"),
        )
    with closing(made.connect()) as connection:
        create_tables(connection)
        create_tables(connection)  # a second time changes nothing
        connection.commit()
    yield made
    with closing(made.connect()) as connection:
        drop_tables(connection)
        connection.commit()


@pytest.fixture
def site(tables: Site) -> Iterator[Site]:
    """The same, empty."""
    with closing(tables.connect()) as connection:
        tables.empty(connection)
        connection.commit()
    yield tables
    while tables.readers:
        tables.readers.pop().close()


def in_s(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def read_ids(reader: LaterReader, ahead_s: int = 60) -> list[str]:
    return [row.id for row in reader.poll(ahead_s).rows if row.task]


def test_a_run_is_read_once_in_its_second_with_what_was_given(site: Site) -> None:
    reader, at = site.reader(), in_s(30)
    signature = remind.s(1, "ä", who={"a": [1.5, None]}).set(queue="slow", priority=3, headers={"tenant": 7})
    with closing(site.connect()) as connection:
        run_id = later.apply_at(signature, at, connection=connection)
        connection.commit()
    assert reader.poll(20).rows == []
    (row,) = reader.poll(40).rows
    assert row.id == run_id
    assert row.second == row.at_ms // 1000 == due_ms_of(run_id) // 1000
    assert timedelta(0) <= datetime.fromtimestamp(row.at_ms / 1000, UTC) - at < timedelta(milliseconds=2)
    assert (row.task, row.args, row.kwargs) == ("proj.remind", '[1, "\\u00e4"]', '{"who": {"a": [1.5, null]}}')
    assert row.options == '{"headers": {"tenant": 7}, "priority": 3, "queue": "slow"}'
    assert reader.poll(50).rows == []


@in_a_database
def test_nothing_is_sent_of_a_transaction_that_rolls_back(site: Site) -> None:
    reader = site.reader()
    with closing(site.connect()) as connection:
        later.now(remind.s(1), connection=connection)
        later.apply_at(remind.s(2), in_s(5), connection=connection)
        connection.rollback()
        kept = later.now(remind.s(3), connection=connection)
        connection.commit()
    assert read_ids(reader) == [kept]


@pytest.mark.parametrize("tables", DATABASES[:2], indirect=True)
def test_a_transaction_that_commits_late_is_read_late_and_only_its_rows(site: Site) -> None:
    reader = site.reader()
    with closing(site.connect()) as slow, closing(site.connect()) as fast:
        late = later.apply_at(remind.s("late"), in_s(1), connection=slow)
        soon = later.apply_at(remind.s("soon"), in_s(1), connection=fast)
        fast.commit()
        assert read_ids(reader) == [soon]
        assert read_ids(reader) == []
        slow.commit()
        assert read_ids(reader) == [late]
        assert read_ids(reader) == []


@pytest.mark.parametrize("tables", DATABASES[:2], indirect=True)
def test_a_second_stays_open_while_a_transaction_is_that_may_have_written_into_it(site: Site) -> None:
    """Polls without a pause keep MariaDB from renewing its list of transactions, which then lacks the writer."""
    reader = site.reader()
    reader.poll(0)
    with closing(site.connect()) as slow:
        late = later.now(remind.s("late"), connection=slow)
        first = reader.poll(0)
        while (read := reader.poll(0)).now_s < first.now_s + 5:
            assert read.rows == []
        assert read.state.closed_s <= due_ms_of(late) // 1000
        slow.commit()
    assert read_ids(reader) == [late]
    while (read := reader.poll(0)).state.closed_s <= due_ms_of(late) // 1000 + 1:
        assert read.rows == []
        pause(POLL_S, "of a beat, between two polls")


def test_a_due_time_that_has_passed_lies_in_the_next_second(site: Site) -> None:
    reader = site.reader()
    reader.poll(0)
    with closing(site.connect()) as connection:
        run_id = later.apply_at(remind.s(), in_s(-86_400), connection=connection)
        connection.commit()
    (row,) = reader.poll(3).rows
    assert row.id == run_id
    assert row.at_ms < row.second * 1000


def test_a_first_start_reads_what_came_due_before_it(site: Site) -> None:
    with closing(site.connect()) as connection:
        run_id = later.now(remind.s(), connection=connection)
        later.apply_at(remind.s(), in_s(900), connection=connection)
        connection.commit()
    assert read_ids(site.reader()) == [run_id]


def test_a_cancelled_run_leaves_a_tombstone_that_every_reader_sees(site: Site) -> None:
    reader = site.reader()
    with closing(site.connect()) as connection:
        read_before = later.apply_at(remind.s(1), in_s(30), connection=connection)
        not_read = later.apply_at(remind.s(2), in_s(300), connection=connection)
        connection.commit()
        assert read_ids(reader) == [read_before]
        for run_id in (read_before, not_read):
            assert later.cancel(id=run_id, connection=connection) is Cancelled.CANCELLED
            assert later.cancel(id=run_id, connection=connection) is Cancelled.UNKNOWN
            assert later.pending(id=run_id, connection=connection) is None
        connection.commit()
    (tombstone,) = reader.poll(60).rows
    assert (tombstone.id, tombstone.task) == (read_before, "")
    (other,) = reader.poll(400).rows
    assert (other.id, other.task) == (not_read, "")


@in_a_database
def test_a_cancel_that_rolls_back_cancels_nothing(site: Site) -> None:
    with closing(site.connect()) as connection:
        run_id = later.apply_at(remind.s(), in_s(30), key="k", connection=connection)
        connection.commit()
        assert later.cancel(key="k", connection=connection) is Cancelled.CANCELLED
        connection.rollback()
        assert later.pending(key="k", connection=connection).id == run_id
        connection.rollback()
    assert read_ids(site.reader()) == [run_id]


def test_what_is_due_within_two_seconds_cannot_be_cancelled_or_moved(site: Site) -> None:
    with closing(site.connect()) as connection:
        soon = later.apply_at(remind.s(), in_s(1.9), key="soon", connection=connection)
        assert later.cancel(id=soon, connection=connection) is Cancelled.TOO_LATE
        assert later.cancel(key="soon", connection=connection) is Cancelled.TOO_LATE
        assert later.move(in_s(60), key="soon", connection=connection) is None
        assert later.pending(key="soon", connection=connection) is None
        assert later.cancel(id=str(due_id(1)), connection=connection) is Cancelled.UNKNOWN
        assert later.cancel(id="not-an-id", connection=connection) is Cancelled.UNKNOWN
        assert later.cancel(key="nobody", connection=connection) is Cancelled.UNKNOWN


def test_a_moved_run_has_a_new_second_a_new_id_and_everything_else(site: Site) -> None:
    at = in_s(86_400)
    with closing(site.connect()) as connection:
        first = later.apply_at(remind.s(1).set(queue="q"), in_s(30), key="k", connection=connection)
        moved = later.move(at, key="k", connection=connection)
        connection.commit()
        found = later.pending(key="k", connection=connection)
        connection.commit()
    assert found is not None
    assert moved == found.id != first
    assert found[2:] == ("k", "proj.remind", "[1]", "{}", '{"queue": "q"}')
    assert timedelta(0) <= found.at - at < timedelta(milliseconds=2)
    assert read_ids(site.reader()) == []


@pytest.mark.parametrize(("on_conflict", "stays"), [("keep", 1), ("replace", 2), ("earliest", 2), ("error", 1)])
def test_of_two_runs_with_one_key_one_is_to_come(site: Site, on_conflict: Any, stays: int) -> None:
    with closing(site.connect()) as connection:
        ids = [later.apply_at(remind.s(1), in_s(60), key="k", connection=connection)]
        if on_conflict == "error":
            with pytest.raises(KeyInUse, match=f"key 'k': proj.remind is to run at .*{ids[0]}"):
                later.apply_at(remind.s(2), in_s(30), key="k", on_conflict="error", connection=connection)
        else:
            ids.append(later.apply_at(remind.s(2), in_s(30), key="k", on_conflict=on_conflict, connection=connection))
        connection.commit()
    (row,) = [row for row in site.reader().poll(120).rows if row.task]
    assert row.args == f"[{stays}]"
    assert row.id == ids[-1]


def test_earliest_keeps_what_comes_first(site: Site) -> None:
    with closing(site.connect()) as connection:
        first = later.apply_at(remind.s(1), in_s(30), key="k", connection=connection)
        assert later.apply_at(remind.s(2), in_s(60), key="k", on_conflict="earliest", connection=connection) == first


@pytest.mark.postgres
def test_writers_of_one_key_at_the_same_time_leave_one_run(site: Site) -> None:
    def write(number: int) -> str:
        with closing(site.connect()) as connection:
            if site.vendor == "sqlite":
                connection.execute("BEGIN IMMEDIATE")
            run_id = later.apply_at(remind.s(number), in_s(60), key="k", connection=connection)
            connection.commit()
            return run_id

    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(write, range(40)))
    assert len(ids) == 1
    assert read_ids(site.reader(), 120) == list(ids)


def test_many_runs_in_one_call(site: Site) -> None:
    rows = [([number], {"n": number}, in_s(number % 600 + 1)) for number in range(500)]
    with closing(site.connect()) as connection:
        ids = later.apply_many(remind, rows, connection=connection)
        connection.commit()
        assert later.count(in_s(-5), in_s(1_000), connection=connection) == 500
        assert later.count(in_s(100), in_s(200), connection=connection) in range(95, 106)
        connection.commit()
    reader = site.reader()
    found = {row.id: (row.args, row.kwargs) for ahead in (300, 700) for row in reader.poll(ahead).rows}
    assert found == {run_id: (f"[{n}]", f'{{"n": {n}}}') for n, run_id in enumerate(ids)}


def test_near_far_and_beyond_are_found_again(site: Site) -> None:
    with closing(site.connect()) as connection:
        for days in (0.001, 29.9, 30.1, 400, 719, 721, 3_000):
            run_id = later.apply_at(remind.s(days), in_s(days * 86_400), key=str(days), connection=connection)
            assert later.pending(id=run_id, connection=connection).args == f"[{days}]"
            assert later.cancel(id=run_id, connection=connection) is Cancelled.CANCELLED
            assert later.pending(key=str(days), connection=connection) is None


def test_a_beat_goes_on_where_the_last_one_stopped(site: Site) -> None:
    first = site.reader()
    with closing(site.connect()) as connection:
        settled = later.apply_at(remind.s(1), in_s(2), connection=connection)
        waiting = later.apply_at(remind.s(2), in_s(20), connection=connection)
        connection.commit()
        read = first.poll(60)
        rows = {row.id: row.second for row in read.rows}
        assert rows.keys() == {settled, waiting}
        resume = read.state.before([rows[waiting]])
        late = later.apply_at(remind.s(3), in_s(3), connection=connection)
        connection.commit()
    again = Resume.read(resume._asdict())
    assert again == resume
    # MariaDB and Redis have no snapshots to go by: open seconds are read again, and workers drop the copies.
    again_ids = {waiting, late, settled} if site.vendor in ("mysql", "redis") else {waiting, late}
    assert sorted(read_ids(site.reader(again))) == sorted(again_ids)


def test_a_beat_that_stopped_with_no_second_open_reads_nothing_settled_again(site: Site) -> None:
    with closing(site.connect()) as connection:
        later.apply_at(remind.s("settled"), in_s(2), connection=connection)
        waiting = later.apply_at(remind.s("waiting"), in_s(20), connection=connection)
        connection.commit()
    first = site.reader()
    state = first.poll(60).state
    second = due_ms_of(waiting) // 1000
    # The run waited for the broker until its second was closed.
    resume = state._replace(closed_s=state.done_s).before([second])
    assert resume.closed_s == resume.done_s == second - 1
    assert read_ids(site.reader(resume)) == [waiting]


def test_a_day_is_dropped_when_nothing_later_lies_in_its_part(site: Site) -> None:
    reader = site.reader()
    assert reader.drop(0) is False
    with closing(site.connect()) as connection:
        day = due_ms_of(later.apply_at(remind.s(), in_s(5), connection=connection)) // 86_400_000
        connection.commit()
        assert reader.drop(day - 32) is False, "the same part of the ring"
        assert reader.drop(day) is True
        assert later.count(in_s(-86_400), in_s(86_400), connection=connection) == 0
        connection.commit()


def test_what_cannot_be_sent_is_refused_at_the_call(site: Site) -> None:
    refused: list[tuple[Any, datetime, dict[str, Any], str]] = [
        (remind.s(object()), in_s(5), {}, "args: JSON cannot carry it"),
        (remind.s(float("nan")), in_s(5), {}, "args: not valid JSON: NaN"),
        (remind.s("x" * 300_000), in_s(5), {}, "at most 262,144 are possible"),
        (remind.s().set(queue="unacked"), in_s(5), {}, "reserved"),
        (remind.s().set(headers={"wheelbeat_nonce": 1}), in_s(5), {}, "wheelbeat_nonce' is reserved"),
        (remind.s().set(countdown=5), in_s(5), {}, "countdown: belongs to the due time"),
        (remind.s().set(nonsense=5), in_s(5), {}, "not an option of apply_async"),
        (remind.s() | remind.s(), in_s(5), {}, "expected the signature of one task"),
        (remind.s(), datetime(2030, 1, 1), {}, "expected an aware datetime"),  # noqa: DTZ001 - the naive one is meant
        (remind.s(), datetime(9999, 12, 31, tzinfo=UTC), {}, "expected an instant"),
        (remind.s(), in_s(5), {"key": ""}, "expected a text of 1 to 250"),
        (remind.s(), in_s(5), {"key": "k" * 251}, "expected a text of 1 to 250"),
        (remind.s(), in_s(5), {"key": "a\0b"}, "expected a text of 1 to 250"),
        (remind.s(), in_s(5), {"spread": -1}, "spread"),
        (remind.s(), in_s(5), {"on_conflict": "first"}, "expected one of keep"),
    ]
    with closing(site.connect()) as connection:
        for signature, at, options, reason in refused:
            with pytest.raises(InvalidRequest, match=reason):
                later.apply_at(signature, at, connection=connection, **options)
        for unclear in ({}, {"id": "a", "key": "b"}):
            with pytest.raises(InvalidRequest, match="either id= or key="):
                later.cancel(connection=connection, **unclear)
        assert later.count(in_s(-100), in_s(100), connection=connection) == 0
    with pytest.raises(
        InvalidRequest, match="expected a connection of psycopg, sqlite3, MySQLdb, Django or SQLAlchemy"
    ):
        later.now(remind.s(), connection=object())


def test_a_relative_expiry_becomes_an_instant(site: Site) -> None:
    with closing(site.connect()) as connection:
        for expires in (60, timedelta(seconds=60), in_s(60), in_s(60).isoformat()):
            later.now(remind.s().set(expires=expires), connection=connection)
        connection.commit()
    for row in site.reader().poll(60).rows:
        stored = datetime.fromisoformat(row.options.removeprefix('{"expires": "').removesuffix('"}'))
        assert abs(stored - in_s(60)) < timedelta(seconds=30)


def test_a_spread_moves_a_run_later_and_a_key_always_by_the_same(site: Site) -> None:
    at = in_s(100)
    with closing(site.connect()) as connection:
        ids = [later.apply_at(remind.s(), at, spread=60, connection=connection) for _ in range(50)]
        keyed = {
            due_ms_of(later.apply_at(remind.s(), at, key="k", on_conflict="replace", spread=60, connection=connection))
            for _ in range(3)
        }
    assert len(keyed) == 1
    moved_s = [due_ms_of(run_id) / 1000 - at.timestamp() for run_id in ids]
    assert 0 <= min(moved_s) < 30 < max(moved_s) < 60.1


@in_a_database
def test_a_connection_of_sqlalchemy_begins_and_commits_as_ever(site: Site) -> None:
    engine = sqlalchemy.create_engine(site.url)
    try:
        with engine.connect() as connection:
            later.now(remind.s(0), connection=connection)  # the block ends without a commit
        with engine.begin() as connection:
            kept = [later.apply_at(remind.s(1), in_s(5), key="k", connection=connection)]
        with sqlalchemy.orm.Session(engine) as session:
            kept += later.apply_many(remind, [([n], {}, in_s(6)) for n in range(60)], connection=session)
            session.commit()
    finally:
        engine.dispose()
    assert sorted(read_ids(site.reader())) == sorted(kept)


def test_ring_and_ids() -> None:
    assert {table_of(part) for part in range(PARTS)} >= {"wheelbeat_later_d00", "wheelbeat_later_m25"}
    assert table_of(BEYOND) == "wheelbeat_later_beyond"
    for second in range(0, 4_000_000_000, 7_654_321):
        for ahead_s in (-10, 0, 1, 86_400, 2_591_999, 2_592_000, 62_207_999, 62_208_000, 10**9):
            assert part_of(second, second - ahead_s) in parts_of(second)
    for at_ms in (0, 1, 1_700_000_000_123, 2**48 - 1):
        found = due_id(at_ms)
        assert (found.version, found.variant, due_ms_of(str(found))) == (7, "specified in RFC 4122", at_ms)
    for other in ("", "x", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", str(due_id(5)).upper()):
        assert due_ms_of(other) is None


def test_a_poll_that_opens_no_second_reads_what_is_new_in_open_ones(site: Site) -> None:
    reader = site.reader()
    with closing(site.connect()) as connection:
        read = later.apply_at(remind.s("read"), in_s(20), connection=connection)
        further = later.apply_at(remind.s("further"), in_s(90), connection=connection)
        connection.commit()
        assert read_ids(reader) == [read]
        assert reader.poll(NO_NEW_SECOND).rows == []
        assert later.cancel(id=read, connection=connection) is Cancelled.CANCELLED
        late = later.apply_at(remind.s("late"), in_s(25), connection=connection)
        connection.commit()
    found = {row.id: row.task for row in reader.poll(NO_NEW_SECOND).rows}
    assert found == {read: "", late: "proj.remind"}
    assert reader.poll(NO_NEW_SECOND).rows == []
    assert read_ids(reader, 120) == [further]


@pytest.mark.postgres
def test_a_poll_goes_on_after_its_connection_was_lost_in_a_pause(postgres_url: str) -> None:
    opened: list[Any] = []

    def connect() -> Any:
        opened.append(psycopg.connect(postgres_url, autocommit=True))
        return opened[-1]

    with closing(psycopg.connect(postgres_url)) as connection:
        create_tables(connection)
        ids = later.apply_many(remind, [([n], {}, in_s(20)) for n in range(700)], connection=connection)
        connection.commit()
        reader = PostgresReader(connect, None)
        found = []
        for _ in range(2):
            read = reader.poll(60, 1)
            assert read.more
            found += [row.id for row in read.rows]
        opened[-1].close()
        with pytest.raises(SourceError):
            reader.pause()
        while read.more:
            read = reader.poll(60, 1)
            found += [row.id for row in read.rows]
        assert sorted(found) == sorted(ids)
        reader.close()
        drop_tables(connection)
        connection.commit()


@pytest.mark.redis
def test_an_error_of_redis_makes_no_run_come_twice_and_hides_no_cancel(redis_url: str) -> None:
    places = [redis_url, "redis://127.0.0.1:1", redis_url]
    reader = RedisReader(lambda: redis.Redis.from_url(places.pop(0), retry=None), KEYS, None)
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        session = RedisSession(client, KEYS)
        ids = [later.apply_at(remind.s(n), in_s(20), connection=session) for n in range(2)]
        assert sorted(read_ids(reader)) == sorted(ids)
        reader.close()
        with pytest.raises(SourceError):
            reader.poll(60)
        later.cancel(id=ids[0], connection=session)
        assert [(row.id, row.task) for row in reader.poll(60).rows] == [(ids[0], "")]
        assert reader.poll(60).rows == []
    reader.close()


@pytest.mark.redis
def test_a_call_passes_over_what_another_client_of_redis_wrote(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        session = RedisSession(client, KEYS)
        run_id = later.apply_at(remind.s(), in_s(20), connection=session)
        second = due_ms_of(run_id) // 1000
        other = str(due_id(second * 1000))
        texts = [b"", b"\xff", b"[]", b"null", b'["soon",null,"t","[]","{}","{}"]', b"[" * 5_000]
        texts += [b'[1e300,null,"t","[]","{}","{}"]', b'[100000000000000000,null,"t","[]","{}","{}"]']
        texts += [b'[1,null,7,"[]","{}","{}"]', b'[1,["k"],"t","[]","{}","{}"]']
        for number, text in enumerate(texts):
            client.hset(KEYS.second(second), f"{number}\xff", text)
            client.hset(KEYS.second(second), other, text)
            assert later.cancel(id=other, connection=session) is Cancelled.UNKNOWN
            client.set(KEYS.key("k"), text)
            assert later.pending(key="k", connection=session) is None
        client.zadd(KEYS.seconds, {"no second": second})
        found = writer_of(session).listed(Wanted(second - 5, second + 5, 100))
        assert [row.run.id for row in found] == [run_id]
        assert later.count(in_s(0), in_s(60), connection=session) >= 1
