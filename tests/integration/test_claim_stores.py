"""One conformance suite for every claim store: whatever keeps the claims decides as ``claims.decide`` does."""

from __future__ import annotations

import json
import os
import random
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
import redis
from celery import Celery
from pymemcache import Client
from services import (
    MASTER_NAME,
    PrivateMariadb,
    PrivateMemcached,
    PrivatePgbouncer,
    PrivatePostgres,
    PrivateRedis,
    PrivateSentinel,
    TcpProxy,
    wait_until,
)

from celery_wheelbeat.errors import ClaimStoreDown, InvalidSetting
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.worker.claims import Claim, ClaimRequest, State, Verdict, decide
from celery_wheelbeat.worker.stores import redis as redis_store
from celery_wheelbeat.worker.stores import sql
from celery_wheelbeat.worker.stores.choice import choose_store, open_store
from celery_wheelbeat.worker.stores.memcached import MemcachedStore
from celery_wheelbeat.worker.stores.redis import TIMEOUT_S, RedisStore
from celery_wheelbeat.worker.stores.sql import MARIADB, POSTGRES, Dialect, SqlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from services import Certificates

    from celery_wheelbeat.worker.stores import Store

KINDS = [
    pytest.param("redis", marks=pytest.mark.redis),
    pytest.param("postgresql", marks=pytest.mark.postgres),
    "sqlite",
    "memcached",
    pytest.param("mariadb", marks=pytest.mark.mysql),
]
LOCK_WAITS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event <> 'extend'
"""
"""Who waits for a lock of another; a table that grows makes its writers wait, too, purge or not."""
NONCES = ["aa" * 8, "bb" * 8]
EXECUTIONS = ["11" * 4, "22" * 4, "33" * 4]
DIGESTS = ["d0" * 8, "d0" * 4 + "d1" * 4, "d1" * 8]
"""Two of them begin alike."""


class Opened(NamedTuple):
    """A prepared store and where it is."""

    store: Store
    url: str


@pytest.fixture(scope="module")
def memcached_url() -> Iterator[str]:
    """URL of a private memcached."""
    with PrivateMemcached() as server:
        yield server.url


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Opened]:
    """Every kind of store in turn."""
    match request.param:
        case "sqlite":
            url = f"sqlite:///{tmp_path}/claims.sqlite3"
        case "memcached":
            url = request.getfixturevalue("memcached_url")
        case "mariadb":
            url = request.getfixturevalue("mysql_url")
        case kind:
            url = request.getfixturevalue({"redis": "redis_url", "postgresql": "postgres_url"}[kind])
    store = open_store(url)
    store.prepare()
    yield Opened(store, url)
    store.close()


@pytest.fixture
def store(opened: Opened) -> Store:
    """Every kind of store in turn, prepared."""
    return opened.store


def new_key() -> str:
    """Name a claim that nobody has asked for."""
    return uuid4().hex


def asked(
    nonce: str = NONCES[0],
    execution: str = EXECUTIONS[0],
    digest: str = DIGESTS[0],
    *,
    redelivered: bool = False,
    may_take_over: bool = True,
) -> ClaimRequest:
    """Build what an execution asks."""
    return ClaimRequest(nonce, execution, digest, redelivered, may_take_over)


def test_every_cell_of_the_state_table(store: Store) -> None:
    second_questions = [
        asked(nonce, execution, digest, redelivered=redelivered, may_take_over=may)
        for nonce, execution, digest, redelivered, may in product(
            NONCES, EXECUTIONS[:2], DIGESTS, (False, True), (False, True)
        )
    ]
    for state, question in product(State, second_questions):
        key = new_key()
        assert store.claim(key, asked(), 60) is Verdict.ELECTED
        assert store.mark(key, EXECUTIONS[0], state)
        held = store.read(key)
        assert held is not None
        assert held[:4] == (state, NONCES[0], EXECUTIONS[0], DIGESTS[0])

        verdict = store.claim(key, question, 60)

        assert verdict is decide(held, question), (state, question)
        after = store.read(key)
        assert after is not None
        if verdict.runs and verdict is not Verdict.MINE:
            assert after[:4] == (State.RUNNING, *question[:3])
        else:
            assert after == held


def test_a_claim_of_an_older_release_is_understood_and_goes_on(opened: Opened) -> None:
    store = opened.store
    for state, question in product(State, [asked(), *(asked(NONCES[1], EXECUTIONS[1], digest) for digest in DIGESTS)]):
        key = new_key()
        assert store.claim(key, asked(), 60) is Verdict.ELECTED
        assert store.mark(key, EXECUTIONS[0], state)
        as_an_older_release_writes_it(opened, key)
        held = store.read(key)
        assert held is not None
        assert held[:4] == (state, NONCES[0], EXECUTIONS[0], DIGESTS[0][:8])
        verdict = store.claim(key, question, 60)
        assert verdict is decide(held, question)
        if question.nonce != NONCES[0]:
            assert verdict is (Verdict.UNLIKE if question.digest == DIGESTS[2] else Verdict.OTHER)
        assert store.prolong(key, NONCES[0], 60)
        assert store.mark(key, EXECUTIONS[0], State.OPEN)
        assert store.read(key) == held._replace(state=State.OPEN, ended_ms=store.read(key).ended_ms)
        assert store.claim(key, asked(execution=EXECUTIONS[1]), 60) is Verdict.REOPENED
        assert store.read(key)[:4] == (State.RUNNING, NONCES[0], EXECUTIONS[1], DIGESTS[0])


def as_an_older_release_writes_it(opened: Opened, key: str) -> None:
    """Take from the claim what an older release did not write: the second half of its digest."""
    if opened.url.startswith("redis"):
        with redis.Redis.from_url(opened.url) as client:
            name = b"wb:" + bytes.fromhex(key)
            client.set(name, client.get(name)[:27], keepttl=True)
    elif opened.url.startswith("memcached"):
        with closing(Client(opened.url.removeprefix("memcached://"))) as client:
            older = client.get(f"wb:{key}").decode().replace(DIGESTS[0], DIGESTS[0][:8])
            assert client.set(f"wb:{key}", older, expire=60, noreply=False)
    else:
        opened.store._execute(
            opened.store._dialect.write("UPDATE wheelbeat_claim SET digest_rest = %s WHERE id = %s"), "", key
        )


@pytest.mark.parametrize("kind", [*KINDS[1:3], KINDS[4]])
def test_a_table_of_an_older_release_gets_its_column(kind: Any, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    fixture = {"postgresql": "postgres_url", "mariadb": "mysql_url"}.get(kind)
    store = open_store(request.getfixturevalue(fixture) if fixture else f"sqlite:///{tmp_path}/claims.sqlite3")
    store.prepare()
    store._execute("DROP TABLE wheelbeat_claim")
    of_an_older_release = sql.CREATE_CLAIMS.replace(",\n  digest_rest VARCHAR(8) DEFAULT '' NOT NULL", "")
    assert "digest_rest" not in of_an_older_release
    store._execute(of_an_older_release)
    store._execute(store._dialect.create_index)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.prepare(), range(4)))
    key = new_key()
    assert store.claim(key, asked(), 60) is Verdict.ELECTED
    assert store.claim(key, asked(NONCES[1], EXECUTIONS[1], DIGESTS[1]), 60) is Verdict.UNLIKE
    # who goes on with the older release does not name the column
    old = sql.INSERT.replace("digest_rest, ", "").replace("%s, %s, {now}", "%s, {now}")
    before, after = store._dialect.insert
    assert store._execute(store._dialect.write(before + old + after), new_key(), *asked()[:2], "d0" * 4, 60_000) == 1
    store.close()


@pytest.mark.redis
def test_a_claim_in_redis_is_where_an_older_release_looks_for_it(redis_url: str) -> None:
    key, older = new_key(), struct.Struct(">c8s4s4s6s4s")
    with closing(open_store(redis_url)) as store, redis.Redis.from_url(redis_url) as client:
        assert store.claim(key, asked(), 60) is Verdict.ELECTED
        for state in (State.RUNNING, State.DONE):
            assert store.mark(key, EXECUTIONS[0], state)
            found = older.unpack(client.get(b"wb:" + bytes.fromhex(key))[: older.size])
            tokens = [value.hex() for value in found[1:4]]
            assert (found[0].decode(), *tokens) == (state.value, NONCES[0], EXECUTIONS[0], DIGESTS[0][:8])


def test_random_histories_agree_with_the_pure_decision(store: Store) -> None:
    rng = random.Random(5)
    keys = [new_key() for _ in range(4)]
    model: dict[str, Claim] = {}
    for _ in range(400):
        key = rng.choice(keys)
        if rng.random() < 0.3:
            execution, state = rng.choice(EXECUTIONS), rng.choice(list(State))
            held = model.get(key)
            holds = held is not None and held.execution == execution
            assert store.mark(key, execution, state) is holds
            if holds:
                model[key] = held._replace(state=state)
            continue
        question = asked(
            rng.choice(NONCES),
            rng.choice(EXECUTIONS),
            rng.choice(DIGESTS),
            redelivered=rng.random() < 0.5,
            may_take_over=rng.random() < 0.5,
        )
        expected = decide(model.get(key), question)
        assert store.claim(key, question, 60) is expected
        if expected.runs and expected is not Verdict.MINE:
            model[key] = Claim(State.RUNNING, *question[:3], started_ms=0)
    for key, held in model.items():
        stored = store.read(key)
        assert stored is not None
        assert stored[:4] == held[:4]


def test_of_many_at_once_one_is_elected(store: Store) -> None:
    def ask(key: str) -> Verdict:
        return store.claim(key, asked(uuid4().hex[:16], uuid4().hex[:8]), 60)

    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            verdicts = list(pool.map(ask, [new_key()] * 8))
            assert sorted(verdict.value for verdict in verdicts) == ["elected"] + ["other"] * 7


def test_a_takeover_is_won_by_one(store: Store) -> None:
    key = new_key()
    store.claim(key, asked(), 60)

    def ask(_: int) -> Verdict:
        return store.claim(key, asked(execution=uuid4().hex[:8], redelivered=True), 60)

    with ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(ask, range(4)))
    # each redelivery takes over from the one before: the last writer holds the claim, and only that one can mark it
    assert set(verdicts) == {Verdict.TAKEN_OVER}
    held = store.read(key)
    assert held is not None
    assert store.mark(key, held.execution, State.DONE)


def test_an_expired_claim_counts_as_none(store: Store) -> None:
    key = new_key()
    assert store.claim(key, asked(), 1) is Verdict.ELECTED
    wait_until(lambda: store.read(key) is None, "expiry of the claim")
    assert store.claim(key, asked(NONCES[1], EXECUTIONS[1]), 60) is Verdict.ELECTED
    assert not store.mark(key, EXECUTIONS[0], State.DONE)


def test_a_prolonged_claim_outlives_its_time_and_only_the_elected_message_prolongs_it(store: Store) -> None:
    kept, left = new_key(), new_key()
    assert not store.prolong(kept, NONCES[0], 60)
    for key in (kept, left):
        assert store.claim(key, asked(), 4) is Verdict.ELECTED
    assert store.prolong(kept, NONCES[0], 60)
    assert not store.prolong(left, NONCES[1], 60)
    wait_until(lambda: store.read(left) is None, "expiry of the other claim")
    assert not store.prolong(left, NONCES[0], 60)
    assert store.read(kept) is not None
    assert store.claim(kept, asked(NONCES[1], EXECUTIONS[1]), 60) is Verdict.OTHER
    assert store.mark(kept, EXECUTIONS[0], State.DONE)
    assert store.claim(kept, asked(execution=EXECUTIONS[1], redelivered=True), 60) is Verdict.FINISHED


def test_start_and_end_are_kept_by_the_clock_of_the_server(store: Store) -> None:
    before_ms = time.time() * 1000
    key = new_key()
    store.claim(key, asked(), 60)
    running = store.read(key)
    assert running is not None
    assert before_ms - 1_000 <= running.started_ms <= time.time() * 1000 + 1_000
    assert running.ended_ms == 0
    store.mark(key, EXECUTIONS[0], State.DONE)
    ended = store.read(key)
    assert ended is not None
    assert ended.started_ms == running.started_ms
    assert ended.started_ms <= ended.ended_ms <= time.time() * 1000 + 1_000


def test_a_claim_that_was_prolonged_began_when_it_began(store: Store) -> None:
    key = new_key()
    assert store.claim(key, asked(), 60) is Verdict.ELECTED
    running = store.read(key)
    assert running is not None
    assert store.prolong(key, NONCES[0], 3_600)
    assert store.read(key) == running
    assert store.mark(key, EXECUTIONS[0], State.DONE)
    ended = store.read(key)
    assert ended is not None
    assert ended.started_ms == running.started_ms <= ended.ended_ms <= time.time() * 1000 + 1_000


def test_a_posted_mark_arrives_and_disturbs_no_later_answer(store: Store) -> None:
    keys = [new_key() for _ in range(5)]
    for key in keys:
        assert store.claim(key, asked(), 60) is Verdict.ELECTED
        store.post(key, EXECUTIONS[0], State.DONE)
        store.post(new_key(), EXECUTIONS[0], State.DONE)
    for key in keys:
        assert store.claim(key, asked(execution=EXECUTIONS[1], redelivered=True), 60) is Verdict.FINISHED


def test_purge_removes_what_has_expired_and_nothing_else(opened: Opened) -> None:
    store = opened.store
    if opened.url.startswith(("redis", "memcached")):
        assert store.purge(100) == 0
        return
    alive, gone = new_key(), [new_key() for _ in range(5)]
    store.claim(alive, asked(), 60)
    for key in gone:
        store.claim(key, asked(), 1)
    wait_until(lambda: all(store.read(key) is None for key in gone), "expiry of the claims")
    counts = list(iter(lambda: store.purge(2), 0))  # claims of other tests have expired, too
    assert max(counts) == 2
    assert sum(counts) >= len(gone)
    assert store.read(alive) is not None


@pytest.mark.postgres
def test_purge_and_claims_do_not_wait_for_each_other(postgres_url: str) -> None:
    store = open_store(postgres_url)
    store.prepare()
    held = new_key()
    store.claim(held, asked(), 1)
    wait_until(lambda: store.read(held) is None, "expiry of the claim")
    with psycopg.connect(postgres_url) as blocker:
        blocker.execute("SELECT 1 FROM wheelbeat_claim WHERE id = %s FOR UPDATE", (held,))
        store.purge(1_000)  # a statement that waited would end in the store's own statement time-out
        assert blocker.execute("SELECT count(*) FROM wheelbeat_claim WHERE id = %s", (held,)).fetchone() == (1,)
        assert store.claim(new_key(), asked(), 60) is Verdict.ELECTED
    store.purge(1_000)
    with psycopg.connect(postgres_url) as looker:
        assert looker.execute("SELECT count(*) FROM wheelbeat_claim WHERE id = %s", (held,)).fetchone() == (0,)
    store.close()


@pytest.mark.postgres
@pytest.mark.parametrize(("table", "until"), [("wheelbeat_claim", "expires_ms"), ("wheelbeat_lease", "until_ms")])
def test_a_purge_reads_what_has_expired_and_not_what_lives(postgres_url: str, table: str, until: str) -> None:
    alive, gone = 20_000, 50
    store = open_store(postgres_url)
    store.prepare()
    rows = {
        "wheelbeat_claim": "(id, state, nonce, execution, digest, started_ms, ended_ms, expires_ms) "
        "SELECT md5('purge' || n), 'D', '', '', '', 0, 0, ",
        "wheelbeat_lease": "(id, owner, fence, until_ms) SELECT md5('purge' || n), '', 0, ",
    }
    with psycopg.connect(postgres_url, autocommit=True) as looker:
        looker.execute(
            f"INSERT INTO {table} {rows[table]} CASE WHEN n > {alive} THEN n ELSE 1e16 END "
            f"FROM generate_series(1, {alive + gone}) n"
        )
        looker.execute(f"ANALYZE {table}")
        statement = POSTGRES.purge_of(table, until) % (0, 1_000)
        [[[explained]]] = looker.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}").fetchall()
        assert looker.execute(f"SELECT count(*) FROM {table} WHERE {until} <= {alive + gone}").fetchone() == (0,)
        assert looker.execute(f"DELETE FROM {table} WHERE {until} = 1e16").rowcount == alive

    def steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield plan
        for part in plan.get("Plans", ()):
            yield from steps(part)

    reads = {step["Node Type"] for step in steps(explained["Plan"]) if "Scan" in step["Node Type"]}
    if table == "wheelbeat_claim":  # leases are few, and have no index
        assert reads == {"Tid Scan", "Index Scan"}
        assert not any(step.get("Rows Removed by Filter") for step in steps(explained["Plan"]))
    assert "Tid Scan" in reads
    store.close()


@pytest.mark.mysql
def test_a_purge_in_mariadb_reads_what_has_expired_and_not_what_lives(mysql_url: str) -> None:
    store = open_store(mysql_url)
    store.prepare()
    with closing(maria_connection(mysql_url)) as connection, closing(connection.cursor()) as looker:
        looker.execute(
            "INSERT INTO wheelbeat_claim SELECT md5(seq), 'D', '', '', '', 0, 0, IF(seq <= 50, seq, 1e16), '' "
            "FROM seq_1_to_5000"
        )
        connection.commit()
        statement = MARIADB.purge_of("wheelbeat_claim", "expires_ms") % (0, 1_000)
        looker.execute(f"ANALYZE FORMAT=JSON {statement}")
        read = json.loads(looker.fetchone()[0])["query_block"]["table"]
        looker.execute("DELETE FROM wheelbeat_claim WHERE expires_ms = 1e16")
        connection.commit()
    assert read["key"] == "wheelbeat_claim_expires"
    assert 50 <= read["r_rows"] < 1_000
    store.close()


def maria_connection(url: str) -> Any:
    """Connect to MariaDB with transactions that last, isolated as those of the store."""
    import MySQLdb

    parts = urlsplit(url)
    connection = MySQLdb.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
        database=parts.path.lstrip("/"),
    )
    connection.query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    return connection


@pytest.mark.parametrize(
    ("server", "connect", "dialect"),
    [
        pytest.param("postgres", psycopg.connect, POSTGRES, marks=pytest.mark.postgres),
        pytest.param("mysql", maria_connection, MARIADB, marks=pytest.mark.mysql),
    ],
)
def test_claims_go_on_while_a_purge_takes_its_time(
    server: str, connect: Callable[[str], Any], dialect: Dialect, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{server}_url")
    store = open_store(url)
    store.prepare()
    gone = [new_key() for _ in range(20)]
    alive = new_key()
    store.claim(alive, asked(), 60)
    for key in gone:
        store.claim(key, asked(), 1)
    wait_until(lambda: all(store.read(key) is None for key in gone), "expiry of the claims")
    with closing(connect(url)) as slow, closing(slow.cursor()) as cursor:
        cursor.execute(dialect.purge_of("wheelbeat_claim", "expires_ms") % (0, 1_000))
        assert cursor.rowcount >= len(gone)
        # its locks are held from here on; who waited for one would end in the store's own time-out
        for key in [new_key() for _ in range(100)]:
            assert store.claim(key, asked(), 60) is Verdict.ELECTED
            assert store.claim(key, asked(NONCES[1], EXECUTIONS[1]), 60) is Verdict.OTHER
            assert store.mark(key, EXECUTIONS[0], State.DONE)
        assert store.mark(alive, EXECUTIONS[0], State.DONE)
        slow.commit()
    assert store.read(alive) is not None
    store.close()


@pytest.mark.postgres
def test_no_claim_waits_for_a_purge(postgres_url: str) -> None:
    store = open_store(postgres_url)
    store.prepare()
    with psycopg.connect(postgres_url, autocommit=True) as filler:
        filler.execute(
            "INSERT INTO wheelbeat_claim SELECT md5(n::text), 'D', '', '', '', 0, 0, n FROM generate_series(1, 20000) n"
        )
        claiming = threading.Event()
        claiming.set()

        made = [0, 0, 0]

        def claims(number: int) -> None:
            while claiming.is_set():
                key, execution = new_key(), uuid4().hex[:8]
                assert store.claim(key, asked(execution=execution), 60) is Verdict.ELECTED
                assert store.mark(key, execution, State.DONE)
                made[number] += 1

        with ThreadPoolExecutor(len(made)) as pool:
            running = [pool.submit(claims, number) for number in range(len(made))]
            waits = 0
            try:
                wait_until(lambda: all(made), "a claim of each thread")
                before = sum(made)
                while store.purge(1_000) == 1_000:
                    waits += filler.execute(LOCK_WAITS).fetchone()[0]
            finally:
                claiming.clear()
            for future in running:
                future.result()
        assert sum(made) > before
        assert waits == 0
        assert filler.execute("SELECT count(*) FROM wheelbeat_claim WHERE expires_ms <= 20000").fetchone() == (0,)
    store.close()


def test_a_lease_has_one_owner_and_a_growing_fence(store: Store) -> None:
    name = f"job:{uuid4()}"
    first = store.acquire(name, "one", 60)
    assert first.granted
    assert not store.acquire(name, "two", 60).granted
    assert store.acquire(name, "one", 60) == first
    store.release(name, "two")
    assert not store.acquire(name, "two", 60).granted
    store.release(name, "one")
    second = store.acquire(name, "two", 60)
    assert second.granted
    assert second.fence > first.fence
    assert not store.renew(name, "one", 60)


def test_a_lease_that_is_not_renewed_is_free(store: Store) -> None:
    name = f"job:{uuid4()}"
    first = store.acquire(name, "one", 3)
    assert first.granted
    assert store.renew(name, "one", 1)
    wait_until(lambda: store.acquire(name, "two", 60).granted, "end of the lease")
    assert not store.renew(name, "one", 60)
    assert store.acquire(name, "two", 60).fence > first.fence


def test_a_lease_does_not_end_by_the_clock_of_a_worker(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    name, mine_ms = f"job:{uuid4()}", SystemClock.wall_ms
    taken = opened.store.acquire(name, "one", 30)
    assert taken.granted
    for skew_ms in (-60_000, 60_000):
        monkeypatch.setattr(SystemClock, "wall_ms", lambda clock, skew_ms=skew_ms: mine_ms(clock) + skew_ms)
        with closing(open_store(opened.url)) as elsewhere:
            assert not elsewhere.acquire(name, "two", 30).granted
            assert elsewhere.renew(name, "one", 30)
            assert elsewhere.acquire(name, "one", 30) == taken
    assert not opened.store.acquire(name, "two", 30).granted
    opened.store.release(name, "one")
    assert opened.store.acquire(name, "two", 30).fence > taken.fence


def test_a_lease_may_have_any_name(store: Store) -> None:
    names = [f"run:{uuid4()}{odd}" for odd in ("x" * 10_000, "x" * 9_999 + "y", "\0", "\r\n", " ", "é", "\ud800", "")]
    for name in names:
        assert store.acquire(name, "one", 60).granted
        assert store.renew(name, "one", 60)
        assert not store.acquire(name, "two", 60).granted


@pytest.mark.redis
def test_no_lease_has_a_key_of_any_length_in_redis(redis_url: str) -> None:
    with closing(open_store(redis_url)) as store, redis.Redis.from_url(redis_url) as client:
        store.acquire(f"run:{uuid4()}" + "x" * 1_000_000, "one", 60)
        assert max(len(key) for key in client.scan_iter("wb:lease:*")) < 1_000


def test_of_many_at_once_one_gets_the_lease(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            name = f"job:{uuid4()}"
            answers = list(pool.map(lambda owner: store.acquire(name, str(owner), 60), range(8)))  # noqa: B023
            assert sum(answer.granted for answer in answers) == 1


def test_a_forked_process_opens_connections_of_its_own(store: Store) -> None:
    key = new_key()
    store.claim(key, asked(), 60)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, store.claim(key, asked(NONCES[1], EXECUTIONS[1]), 60).value.encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    assert os.read(reader, 100) == b"other"
    os.close(reader)
    assert store.mark(key, EXECUTIONS[0], State.DONE)


def test_prepare_may_be_repeated(store: Store) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.prepare(), range(4)))


@pytest.mark.parametrize(
    "server",
    [pytest.param(PrivateRedis, marks=pytest.mark.redis), pytest.param(PrivatePostgres, marks=pytest.mark.postgres)],
)
def test_a_server_that_stops_is_reported_and_found_again(server: Callable[[], Any]) -> None:
    with server() as private:
        store = open_store(private.url)
        store.prepare()
        key = new_key()
        assert store.claim(key, asked(), 60) is Verdict.ELECTED
        private.stop()
        with pytest.raises(ClaimStoreDown, match="does not answer"):
            store.claim(new_key(), asked(), 60)
        private.start()
        store.prepare()
        assert store.claim(new_key(), asked(), 60) is Verdict.ELECTED
        store.close()


@pytest.mark.redis
def test_a_redis_that_hangs_costs_a_bounded_wait_and_one_that_forgot_its_scripts_none() -> None:
    with PrivateRedis() as private:
        store = open_store(private.url)
        assert store.claim(new_key(), asked(), 60) is Verdict.ELECTED  # no script was loaded before
        private.pause()
        with pytest.raises(ClaimStoreDown):
            store.claim(new_key(), asked(), 60)
        private.resume()
        with redis.Redis.from_url(private.url) as client:
            client.script_flush()
        assert store.claim(new_key(), asked(), 60) is Verdict.ELECTED
        store.close()


@pytest.mark.parametrize(
    ("server", "words"),
    [
        pytest.param(PrivatePostgres, "timeout", marks=pytest.mark.postgres),
        pytest.param(PrivateMariadb, "Lost connection", marks=pytest.mark.mysql),
    ],
)
def test_a_database_that_hangs_costs_a_bounded_wait(server: Callable[[], Any], words: str) -> None:
    with server() as private:
        store = open_store(private.url)
        store.prepare()
        assert store.claim(new_key(), asked(), 60) is Verdict.ELECTED
        private.pause()  # its own statement time-out is frozen as well
        with pytest.raises(ClaimStoreDown, match=words):
            store.claim(new_key(), asked(), 60)
        private.resume()
        assert store.claim(new_key(), asked(), 60) is Verdict.ELECTED
        store.close()


@pytest.mark.postgres
@pytest.mark.parametrize("ignored", ["", "options"], ids=["refuses our options", "drops our options"])
def test_claims_behind_a_pooler_that_lends_another_server_connection_to_each_statement(
    postgres_url: str, ignored: str
) -> None:
    settings = {"ignore_startup_parameters": ignored} if ignored else {}
    with PrivatePgbouncer(postgres_url, **settings) as pooler, ThreadPoolExecutor(8) as threads:
        store = open_store(pooler.url)
        store.prepare()

        def live(_: int) -> list[object]:
            key, name = new_key(), uuid4().hex
            return [
                store.claim(key, asked(), 60),
                store.claim(key, asked(NONCES[1], EXECUTIONS[1]), 60),
                store.claim(key, asked(execution=EXECUTIONS[1], redelivered=True), 60),
                store.mark(key, EXECUTIONS[1], State.DONE),
                store.acquire(name, "one", 60).granted,
                store.renew(name, "one", 60),
                store.acquire(name, "two", 60).granted,
                store.purge(10) >= 0,
            ]

        expected = [Verdict.ELECTED, Verdict.OTHER, Verdict.TAKEN_OVER, True, True, True, False, True]
        assert list(threads.map(live, range(200))) == [expected] * 200
        # what makes it a proof: several server connections took turns
        servers = [row for row in pooler.ask("SHOW SERVERS") if row["database"] == pooler.url.rpartition("/")[2]]
        assert len(servers) > 1
        store.close()


@pytest.mark.postgres
def test_options_of_the_url_stay_in_force(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute("CREATE SCHEMA apart")
        apart = "&" if "?" in postgres_url else "?"
        store = open_store(f"{postgres_url}{apart}options=-csearch_path%3Dapart")
        store.prepare()
        assert store.claim(new_key(), asked(), 60) is Verdict.ELECTED
        assert owner.execute("SELECT count(*) FROM apart.wheelbeat_claim").fetchone() == (1,)
        store.close()


@pytest.mark.redis
@pytest.mark.parametrize("wire", ["plain", "tls"])
@pytest.mark.parametrize("named", ["result_backend", "wheelbeat_dedup_url"])
def test_claims_follow_the_master_that_a_sentinel_names(request: pytest.FixtureRequest, named: str, wire: str) -> None:
    tls: Certificates | None = request.getfixturevalue("tls") if wire == "tls" else None
    with PrivateRedis(tls=tls) as master, PrivateRedis(tls=tls) as replica, replica.client() as copy:
        copy.replicaof("127.0.0.1", master.port)
        wait_until(lambda: copy.info("replication")["master_link_status"] == "up", "the replica's link")
        with PrivateSentinel(master) as sentinel:
            wait_until(lambda: sentinel.replicas() == 1, "the Sentinel's knowledge of the replica")
            by_backend = named == "result_backend"
            app = Celery("claims", backend=sentinel.url if by_backend else "rpc://", set_as_current=False)
            app.conf.result_backend_transport_options = sentinel.transport_options
            app.conf.redis_backend_use_ssl = tls and tls.redis_client
            choice = choose_store(app, None if by_backend else sentinel.url)
            assert choice.where == f"{named} (sentinel)"
            store = choice.store
            assert store is not None
            key = new_key()
            assert store.claim(key, asked(), 60) is Verdict.ELECTED
            wait_until(lambda: copy.exists(b"wb:" + bytes.fromhex(key)) == 1, "the replication of the claim")
            master.kill()
            with pytest.raises(ClaimStoreDown):
                store.claim(new_key(), asked(), 60)
            wait_until(lambda: sentinel.master_port() == replica.port, "the failover")

            def answers() -> bool:
                try:
                    return store.claim(new_key(), asked(), 60) is Verdict.ELECTED
                except ClaimStoreDown:
                    return False  # the Sentinel has not looked at the new master yet

            wait_until(answers, "a claim on the new master")
            assert store.claim(key, asked(NONCES[1], EXECUTIONS[1]), 60) is Verdict.OTHER
            store.close()


@pytest.mark.redis
@pytest.mark.timeout(100)  # half of what redis-py would wait by itself
@pytest.mark.parametrize("wire", ["plain", "tls"])
def test_a_sentinel_that_keeps_silent_is_not_waited_for(request: pytest.FixtureRequest, wire: str) -> None:
    tls: Certificates | None = request.getfixturevalue("tls") if wire == "tls" else None
    with PrivateRedis(tls=tls) as master, PrivateSentinel(master) as sentinel, TcpProxy(sentinel.port) as silent:
        silent.black_hole()
        urls = f"sentinel://127.0.0.1:{silent.port}/0;{sentinel.url}"
        app = Celery("claims", backend=urls, set_as_current=False)
        app.conf.result_backend_transport_options = sentinel.transport_options
        app.conf.redis_backend_use_ssl = tls and tls.redis_client
        store = choose_store(app, None).store
        assert store is not None
        asked_by_results = app.backend.client.connection_pool.sentinel_manager.sentinels
        with closing(store):
            assert store.claim(new_key(), asked(), 60) is Verdict.ELECTED
        timeouts = [one.connection_pool.connection_kwargs["socket_timeout"] for one in asked_by_results]
        assert timeouts != [TIMEOUT_S] * 2, "the results ask as Celery has them"


@pytest.mark.redis
def test_claims_go_to_the_master_behind_a_sentinel_of_their_own() -> None:
    with PrivateRedis() as master, PrivateSentinel(master) as sentinel, redis.Redis.from_url(master.url) as client:
        client.acl_setuser("team", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"])
        urls = [sentinel.url.replace("//", "//team:secret@") for _ in range(2)]
        app = Celery("claims", backend="rpc://", set_as_current=False)
        with pytest.raises(InvalidSetting, match="set master_name in result_backend_transport_options"):
            choose_store(app, urls[0])
        app.conf.result_backend_transport_options = {"master_name": MASTER_NAME}
        choice = choose_store(app, ";".join(urls))
        assert choice.where == "wheelbeat_dedup_url (sentinel)"
        assert choice.store is not None
        with closing(choice.store) as store:
            store.prepare()
            assert store.claim(new_key(), asked(), 60) is Verdict.ELECTED
        assert client.dbsize() == 2  # the claim and the probe
        with pytest.raises(InvalidSetting, match="cannot be read") as refused:
            choose_store(app, "sentinel://:secret/s@h:26379/1")
        assert "secret" not in str(refused.value)


@pytest.mark.redis
@pytest.mark.parametrize("dedup", [False, True])
def test_a_user_of_redis_who_may_touch_only_keys_with_the_prefix_of_the_results_can_claim(dedup: bool) -> None:
    with PrivateRedis() as server, redis.Redis.from_url(server.url) as owner:
        owner.acl_setuser(
            "team", enabled=True, passwords=["+secret"], keys=["team_*"], channels=["*"], categories=["+@all"]
        )
        url = server.url.replace("//", "//team:secret@")
        app = Celery("claims", backend="rpc://" if dedup else url, set_as_current=False)
        app.conf.result_backend_transport_options = {"global_keyprefix": "team"}
        store = choose_store(app, url if dedup else None).store
        assert store is not None
        with closing(store):
            store.prepare()
            key = new_key()
            assert store.claim(key, asked(), 60) is Verdict.ELECTED
            assert store.mark(key, EXECUTIONS[0], State.OPEN)
            store.post(key, EXECUTIONS[0], State.DONE)
            held = store.read(key)
            assert held is not None
            assert held.state is State.DONE
            assert store.prolong(key, NONCES[0], 60)
            assert store.acquire("job", "owner", 60).granted
            assert store.renew("job", "owner", 60)
            store.release("job", "owner")
        found = {name.removesuffix(bytes.fromhex(key)) for name in owner.scan_iter()}
        assert found == {b"team_wb:", b"team_wb:probe", b"team_wb:lease:job"}


@pytest.mark.redis
def test_a_redis_that_does_not_know_the_set_is_asked_by_script_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def misspelt(_: int) -> tuple[bytes, bytes]:
        return b"\0" * 10, b"\r\n$2\r\nNX\r\n$3\r\nGOT\r\n$2\r\nEX\r\n$2\r\n60\r\n"

    monkeypatch.setattr(redis_store, "_if_there_is_none", misspelt)
    with PrivateRedis() as private, redis.Redis.from_url(private.url) as client:
        store = open_store(private.url)
        key = new_key()
        assert store.claim(key, asked(), 60) is Verdict.ELECTED
        client.config_resetstat()
        assert store.claim(key, asked(NONCES[1], EXECUTIONS[1]), 60) is Verdict.OTHER
        running = store.read(key)
        assert running is not None
        assert running.started_ms > 1_700_000_000_000
        assert store.mark(key, EXECUTIONS[0], State.DONE)
        assert store.claim(key, asked(execution=EXECUTIONS[1], redelivered=True), 60) is Verdict.FINISHED
        assert client.info("errorstats") == {}
        store.close()


@pytest.mark.redis
def test_a_redis_that_is_full_still_knows_a_copy() -> None:
    with PrivateRedis() as private, redis.Redis.from_url(private.url) as client:
        store = open_store(private.url)
        key = new_key()
        assert store.claim(key, asked(), 60) is Verdict.ELECTED
        client.config_set("maxmemory", "1")
        assert store.claim(key, asked(NONCES[1], EXECUTIONS[1]), 60) is Verdict.OTHER
        with pytest.raises(ClaimStoreDown, match="does not answer"):
            store.claim(new_key(), asked(), 60)
        client.config_set("maxmemory", "0")
        assert store.claim(new_key(), asked(), 60) is Verdict.ELECTED
        store.close()


@pytest.mark.redis
def test_a_claim_takes_at_most_150_bytes_of_redis() -> None:
    count = 16_384  # a power of two: the hash tables are as full as they get before they grow
    with PrivateRedis() as private, redis.Redis.from_url(private.url) as client:
        store = open_store(private.url)
        store.prepare()
        store.claim(new_key(), asked(), 60)
        before = client.info("memory")["used_memory_dataset"]
        for _ in range(count):
            key, execution = new_key(), uuid4().hex[:8]
            store.claim(key, asked(execution=execution), 60)
            store.mark(key, execution, State.DONE)
        after = client.info("memory")["used_memory_dataset"]
        store.close()
    assert (after - before) / count <= 150


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mongodb://db/claims", "expected a redis://"),
        ("sqlite://", "a database in memory is not shared"),
        ("sqlite:///:memory:", "a database in memory is not shared"),
        ("mongodb://u:secret@db/claims", "expected a redis://"),
        (":secret@db/claims", "expected a redis://"),
        ("secret", r"\(unknown\): expected a redis://"),
        ("redis://:secret@h:6379/1?db=first", "Invalid value for 'db'"),
        # passwords with characters that end the address of a server
        ("redis://:secret/s@h:6379/1", r"\(redis\) cannot be read: .*%2F"),
        ("redis://:secret[@h:6379/1", "cannot be read"),
        ("redis://:secret\u2100@h:6379/1", "cannot be read"),
        ("memcached://:secret/s@h:11211", "cannot be read"),
        ("mysql://u:secret/s@h/claims", "cannot be read"),
        ("postgresql://u:secret/s@h:5432/claims", "cannot be read"),
        ("postgresql://u:secret@[::1/claims", "cannot be read"),
        ("postgresql://u:secret%zz@h/claims", "cannot be read"),
    ],
)
def test_a_url_that_cannot_keep_claims_is_refused_and_its_password_not_shown(url: str, words: str) -> None:
    with pytest.raises(InvalidSetting, match=words) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "celery_wheelbeat.worker.stores.postgres", raising=False)
    with pytest.raises(InvalidSetting, match=r"claim store postgresql: .*psycopg.*pip install"):
        open_store("postgresql://db/claims")


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("redis://h/1", RedisStore),
        ("rediss://h/1?ssl_cert_reqs=none", RedisStore),
        ("sentinel://h:26379/1;sentinel://i:26379/1", RedisStore),
        ("db+postgresql+psycopg://u:p@h/d", SqlStore),
        ("db+sqlite:////tmp/results.sqlite3", SqlStore),
        ("db+mysql://u:p@h/d", SqlStore),
        ("cache+memcached://h:11211/", MemcachedStore),
        ("rpc://", type(None)),
        ("file:///var/results", type(None)),
        ("db+oracle://h/d", type(None)),
        ("db+sqlite://", type(None)),
        ("db+sqlite:///:memory:", type(None)),
        (None, type(None)),
    ],
)
def test_the_store_follows_the_result_backend(backend: str | None, kind: type) -> None:
    app = Celery("claims", backend=backend, set_as_current=False)
    app.conf.result_backend_transport_options = {"master_name": "main"}
    choice = choose_store(app, None)
    assert type(choice.store) is kind
    assert choice.where.startswith("result_backend (")
    assert "u:p" not in choice.where
    named = choose_store(app, "sqlite:////tmp/claims.sqlite3")
    assert isinstance(named.store, SqlStore)
    assert named.where == "wheelbeat_dedup_url (sqlite)"
