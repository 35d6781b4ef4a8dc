"""One conformance suite for every roll: what a beat says is heard by the others, whatever store carries it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import amqp
import psycopg
import pytest
import redis
from services import PrivateEtcd, wait_until

from celery_wheelbeat.errors import InvalidSetting, RollDown
from celery_wheelbeat.membership.line import LINE_BYTES, BeatLine
from celery_wheelbeat.membership.rolls.amqp_roll import AmqpRoll
from celery_wheelbeat.membership.rolls.etcd_roll import EtcdRoll
from celery_wheelbeat.membership.rolls.folder_roll import FolderRoll
from celery_wheelbeat.membership.rolls.redis_roll import RedisRoll, connector
from celery_wheelbeat.membership.rolls.sql_roll import SqlRoll

from .conftest import amqp_connection, coded, etcd_ask

if TYPE_CHECKING:
    from pathlib import Path

    from celery_wheelbeat.membership import Peer, Roll

    from .conftest import Place

PATIENCE_S = 30.0
"""A call that waits for an answer for half a second (MariaDB: one) has returned long before, on a busy machine too."""
LONG = "x" * LINE_BYTES


def peers(roll: Roll, text: str = "mine") -> dict[str, Peer]:
    return {peer.beat_id: peer for peer in roll.beat(text).peers}


def refused_s(roll: Roll) -> float:
    """Return how long a call took that must fail."""
    began_s = time.monotonic()
    with pytest.raises(RollDown):
        roll.beat("mine")
    return time.monotonic() - began_s


def ask(connection: redis.Connection, *words: str) -> object:
    connection.send_command(*words)
    return connection.read_response()


def test_a_line_is_read_by_the_others_as_it_was_written(place: Place) -> None:
    """Its own line is not in the list; texts with signs of every store's own language arrive unchanged."""
    texts = ["{}", "ä'\"\\ %s :x {y}\n日本", BeatLine("a").to_text(), LONG]
    one, other = place.roll("a"), place.roll("b")
    for text in texts:
        assert "a" not in peers(one, text)
        found = peers(other)
        assert {name: peer.text for name, peer in found.items()} == {"a": text}


def test_counter_and_age_grow_as_they_should(place: Place) -> None:
    one, other = place.roll("a"), place.roll("b")
    one.beat("1")
    first = peers(other)["a"]
    again = peers(other)["a"]
    assert again.counter == first.counter
    if place.kind != "etcd":
        assert 0 <= first.age_s <= again.age_s < PATIENCE_S
    one.beat("1")
    assert peers(other)["a"].counter > first.counter


def test_the_clock_of_the_store_is_reported(place: Place) -> None:
    roll = place.roll("a")
    before = roll.beat("x").now_ms
    if place.kind in ("amqp", "etcd"):
        assert before is None
        return
    assert before <= roll.beat("x").now_ms
    assert abs(before - time.time() * 1000) < 60_000


def test_two_namespaces_do_not_see_each_other(place: Place) -> None:
    one, other, third = place.roll("a", "one"), place.roll("b", "two"), place.roll("c", "one")
    one.beat("x")
    assert other.beat("x").peers == []
    other.forget(["a"])
    assert peers(third).keys() == {"a"}, "nor forget each other's lines"


def test_seniority_is_given_once_and_does_not_change(place: Place) -> None:
    rolls = {name: place.roll(name) for name in ("b", "a", "c")}
    orders = {name: roll.beat("x").order for name, roll in rolls.items()}
    assert 0 < orders["b"] < orders["a"] < orders["c"]
    for _ in range(3):
        assert {name: roll.beat("x").order for name, roll in rolls.items()} == orders
    assert {name: peer.order for name, peer in peers(rolls["b"]).items()} == {"a": orders["a"], "c": orders["c"]}
    assert place.roll("b").beat("x").order == orders["b"], "a new connection changes nothing"


def test_a_store_that_forgot_everything_is_written_again(place: Place) -> None:
    one, other = place.roll("a"), place.roll("b")
    one.beat("x")
    other.beat("y")
    place.forget_everything()
    if place.is_stored:
        assert one.beat("x").peers == []
    else:  # a line that does not come back is one failed look
        for roll in (one, other):
            with suppress(RollDown):
                roll.beat("y")
        one.beat("x")
    assert peers(other)["a"].text == "x"
    assert peers(one)["b"].text == "mine"


def test_a_last_line_stays_until_it_is_forgotten(place: Place) -> None:
    one, other = place.roll("a"), place.roll("b")
    one.beat("x")
    one.leave("good-bye")
    one.close()
    assert peers(other)["a"].text == "good-bye"
    third = place.roll("c")
    third.beat("stays")
    other.forget([])
    other.forget(["a", "nobody"])
    assert peers(other).keys() == {"c"}, "only what is named is forgotten"
    one.beat("x")
    for roll in (other, third):
        roll.beat("still here")
    assert peers(one).keys() == {"b", "c"}
    assert peers(other).keys() == {"a", "c"}, "who was forgotten by mistake comes back"


def test_fifty_writers_at_once_lose_nothing(place: Place) -> None:
    rolls, reader = [place.roll(f"beat-{number}") for number in range(50)], place.roll("reader")
    together = threading.Barrier(10)

    def write(mine: list[Roll]) -> None:
        together.wait()
        for roll in mine:
            deadline_s = time.monotonic() + 30
            while True:
                try:
                    roll.beat("x")
                    break
                except RollDown:  # a full pool or a locked file: the next heartbeat writes
                    assert time.monotonic() < deadline_s

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(write, [rolls[number::10] for number in range(10)]))
    found = peers(reader)
    assert found.keys() == {f"beat-{number}" for number in range(50)}
    if place.kind != "folder":
        assert len({peer.order for peer in found.values()}) == 50


def test_a_roll_that_is_closed_opens_again_and_leaves_no_connection(place: Place) -> None:
    roll = place.roll("a")
    roll.close()
    roll.beat("x")
    roll.close()
    roll.beat("x")
    roll.close()
    wait_until(lambda: place.connections() == 0, "the connections to end")


@pytest.mark.parametrize("how", ["stall", "black_hole", "mute"])
def test_a_store_that_hangs_is_given_up_and_asked_again(served: Place, how: str) -> None:
    """Both in the middle of a conversation and while it connects."""
    roll = served.roll("a")
    roll.beat("x")
    getattr(served.proxy, how)()
    assert refused_s(roll) < PATIENCE_S
    assert refused_s(roll) < PATIENCE_S
    served.proxy.pass_through()
    assert roll.beat("x").peers == []


def test_a_store_that_is_stopped_is_down_at_once_and_asked_again(served: Place) -> None:
    roll = served.roll("a")
    roll.beat("x")
    served.proxy.cut(refuse=True)
    assert refused_s(roll) < PATIENCE_S
    assert refused_s(roll) < PATIENCE_S
    served.proxy.pass_through()
    other = served.roll("b")
    roll.beat("x")
    other.beat("y")
    assert peers(roll).keys() == {"b"}


def test_a_table_that_is_missing_is_a_roll_that_is_down(tmp_path: Path) -> None:
    roll = SqlRoll("sqlite", lambda: {"database": str(tmp_path / "empty.sqlite3")}, "site", "a", 1.0)
    with pytest.raises(RollDown, match="roll in sqlite: OperationalError: no such table: wheelbeat_member"):
        roll.beat("x")


def test_a_driver_that_is_missing_is_a_roll_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "MySQLdb", None)
    with pytest.raises(RollDown, match=r"roll in mysql: .*MySQLdb"):
        SqlRoll("mysql", dict, "site", "a", 1.0).beat("x")


def test_a_folder_that_cannot_be_made_is_a_roll_that_is_down(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RollDown, match=r"roll in folder .*file/roll: NotADirectoryError"):
        FolderRoll(tmp_path / "file" / "roll", "site", "a").beat("x")


def test_foreign_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    foreign = {
        "README": "",
        "1.line": "{}",
        "x-1.line": "{}",
        "7-b.line": "[" * 100,
        "8-c.line": '{"namespace": "site"}',
    }
    for name, text in foreign.items():
        (tmp_path / name).write_text(text)
    roll = FolderRoll(tmp_path, "site", "a")
    assert roll.beat("x").peers == []
    assert roll.beat("x").order == 9
    assert {path.name for path in tmp_path.iterdir()} == {*foreign, "9-a.line"}


@pytest.mark.postgres
def test_a_row_that_somebody_has_locked_is_given_up(roll_postgres_url: str) -> None:
    roll = SqlRoll("postgresql", lambda: {"conninfo": roll_postgres_url}, "locks", "a", 1.0)
    with closing(roll), psycopg.connect(roll_postgres_url) as connection:
        roll.beat("x")
        connection.execute("SELECT * FROM wheelbeat_member WHERE beat_id = 'a' FOR UPDATE")
        assert refused_s(roll) < PATIENCE_S
        connection.rollback()
        roll.beat("x")


@pytest.mark.postgres
def test_updates_write_no_index_and_wait_for_no_disk(roll_postgres_url: str) -> None:
    """All but a few updates are HOT: they stay in their page. The commit is asynchronous."""
    with psycopg.connect(roll_postgres_url, autocommit=True) as connection:
        connection.execute("DELETE FROM wheelbeat_member")
        connection.execute("SELECT pg_stat_reset_single_table_counters('wheelbeat_member'::regclass)")
        rolls = [SqlRoll("postgresql", lambda: {"conninfo": roll_postgres_url}, "hot", str(n), 1.0) for n in range(3)]
        text = BeatLine("x" * 36, own=frozenset(range(0, 256, 2))).to_text()
        for _ in range(100):
            for roll in rolls:
                roll.beat(text)
        for roll in rolls:
            roll.close()
        query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'wheelbeat_member'"
        wait_until(lambda: connection.execute(query).fetchone()[0] >= 300, "the statistics")
        updates, in_their_page = connection.execute(query).fetchone()
        assert in_their_page >= 0.9 * updates


@pytest.mark.postgres
def test_the_row_is_found_by_its_key(roll_postgres_url: str) -> None:
    with psycopg.connect(roll_postgres_url) as connection:
        connection.execute(
            "INSERT INTO wheelbeat_member (beat_id, namespace, beats, seen_at, line) "
            "SELECT 'plan' || n, 'plan', 0, now(), '' FROM generate_series(1, 5000) AS n"
        )
        connection.execute("ANALYZE wheelbeat_member")
        plan = connection.execute("EXPLAIN UPDATE wheelbeat_member SET beats = 1 WHERE beat_id = 'plan7'").fetchall()
        assert "Index Scan using wheelbeat_member_pkey" in str(plan)
        connection.rollback()


@pytest.mark.amqp
def test_a_beat_that_comes_listens_before_it_answers(amqp_url: str) -> None:
    """Nothing is stored, so it hears the others only with their next heartbeats."""
    given = {"started_ms": 1, "wait_s": 1.0}
    one = AmqpRoll(lambda: amqp_connection(amqp_url), "site", "a", **given, listen_s=0.0)
    new = AmqpRoll(lambda: amqp_connection(amqp_url), "site", "b", **given, listen_s=0.6)
    one.beat("x")
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(peers, new)
        while not found.done():
            one.beat("x")
        assert found.result().keys() == {"a"}
    one.close()
    new.close()


@pytest.mark.amqp
def test_nothing_is_left_on_rabbitmq_and_other_messages_are_ignored(amqp_url: str) -> None:
    given = {"started_ms": 1, "wait_s": 1.0, "listen_s": 0.0}
    roll = AmqpRoll(lambda: amqp_connection(amqp_url), "gone", "a", **given)
    roll.beat("x")
    with amqp_connection(amqp_url) as connection:
        channel = connection.channel()
        for headers in ({}, {"beat": 1, "order": 1, "counter": 1}, {"beat": "b", "order": "1", "counter": None}):
            channel.basic_publish(amqp.Message("x", application_headers=headers), "wheelbeat.gone")
        assert roll.beat("x").peers == []
        roll.close()

        def is_gone() -> bool:
            try:
                connection.channel().exchange_declare("wheelbeat.gone", "fanout", passive=True)
            except amqp.NotFound:
                return True
            return False

        wait_until(is_gone, "the exchange to be deleted")


@pytest.mark.etcd
def test_after_a_failure_the_next_etcd_is_asked(etcd_server: PrivateEtcd) -> None:
    roll = EtcdRoll(f"etcd://127.0.0.1:1,127.0.0.1:{etcd_server.port}", "hosts", "a", 1.0)
    with closing(roll):
        refused_s(roll)
        assert roll.beat("x").peers == []


@pytest.mark.etcd
def test_a_user_of_etcd_is_authenticated() -> None:
    """A user may be limited to the prefix of the roll."""
    with PrivateEtcd() as server:
        port = server.port
        permission = {"permType": "READWRITE", "key": coded("/wheelbeat/"), "range_end": coded("/wheelbeat0")}
        for path, asked in {
            "user/add": {"name": "root", "password": "secret"},
            "role/add": {"name": "root"},
            "user/grant": {"user": "root", "role": "root"},
        }.items():
            etcd_ask(port, f"/v3/auth/{path}", asked)
        etcd_ask(port, "/v3/auth/user/add", {"name": "beat", "password": "p@ss"})
        etcd_ask(port, "/v3/auth/role/add", {"name": "rolls"})
        etcd_ask(port, "/v3/auth/role/grant", {"name": "rolls", "perm": permission})
        etcd_ask(port, "/v3/auth/user/grant", {"user": "beat", "role": "rolls"})
        etcd_ask(port, "/v3/auth/enable", {})
        with closing(EtcdRoll(f"etcd://beat:p%40ss@127.0.0.1:{port}", "site", "a", 1.0)) as roll:
            assert roll.beat("x").order > 0
        with closing(EtcdRoll(f"etcd://beat:wrong@127.0.0.1:{port}", "site", "a", 1.0)) as roll:
            refused_s(roll)


@pytest.mark.parametrize("url", ["etcd://", "redis://x", "x"])
def test_a_url_that_names_no_etcd_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting, match="expected etcd://host:2379,host:2379 or etcds://"):
        EtcdRoll(url, "site", "a", 1.0)


@pytest.mark.redis
def test_the_fast_lanes_connection_of_a_beat_that_is_gone_is_ended(redis_url: str) -> None:
    roll = RedisRoll(connector(redis.ConnectionPool.from_url(redis_url), 1.0), "site", "a")
    with closing(roll), redis.Redis.from_url(redis_url) as client:
        dead = redis.Connection(**client.connection_pool.connection_kwargs, client_name="wheelbeat-b")
        other = redis.Connection(**client.connection_pool.connection_kwargs, client_name="wheelbeat-bb")
        for connection in (dead, other):
            connection.connect()
        assert roll.fence("b")
        with pytest.raises(redis.ConnectionError):
            ask(dead, "SET", "sent", "1")
        assert ask(other, "PING") == b"PONG"
        assert client.get("sent") is None
        assert roll.fence("nobody")
        other.disconnect()


@pytest.mark.redis
def test_without_the_right_to_end_connections_redis_cannot_fence(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.execute_command("ACL", "SETUSER", "roll", "on", "nopass", "~*", "+@all", "-client|kill")
        dead = redis.Connection(**client.connection_pool.connection_kwargs, client_name="wheelbeat-b")
        dead.connect()
        try:
            given = {**client.connection_pool.connection_kwargs, "username": "roll", "password": "x"}
            with closing(RedisRoll(connector(redis.ConnectionPool(**given), 1.0), "site", "a")) as roll:
                roll.beat("x")
                assert not roll.fence("b")
                roll.beat("x")
        finally:
            dead.disconnect()
            client.acl_deluser("roll")


@pytest.mark.redis
def test_the_hash_expires_and_garbage_in_it_is_handed_to_the_reader(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        with closing(
            RedisRoll(connector(redis.ConnectionPool.from_url(redis_url), 1.0), "site", "a", prefix="app:")
        ) as roll:
            roll.beat("x")
            assert client.keys() == [b"app:wheelbeat:{site}:roll"]
            assert 0 < client.pttl("app:wheelbeat:{site}:roll") <= 86_400_000
            client.hset("app:wheelbeat:{site}:roll", b"\xff", b"not of a beat")
            (garbage,) = roll.beat("x").peers
            assert (garbage.order, garbage.counter, garbage.age_s, garbage.text) == (0, 0, None, "not of a beat")


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["postgresql", "redis"])
def test_others_than_beats_do_not_wait_for_the_roll(kind: str, roll_postgres_url: str, redis_url: str) -> None:
    """A roll is used by one thread; two rolls of one process do not share a connection."""
    if kind == "redis":
        pool = redis.ConnectionPool.from_url(redis_url, max_connections=1)
        rolls: list[Roll] = [RedisRoll(connector(pool, 1.0), "site", name) for name in "ab"]
    else:
        rolls = [SqlRoll("postgresql", lambda: {"conninfo": roll_postgres_url}, "site", name, 1.0) for name in "ab"]
    for roll in (*rolls, *rolls):
        roll.beat("x")
    for roll in rolls:
        roll.close()
