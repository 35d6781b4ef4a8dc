"""Whatever an SQL client writes into the table of one-off runs affects only that row."""

from __future__ import annotations

import base64
import json
import logging
import random
import sqlite3
import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import MySQLdb
import psycopg
import pytest
import redis
from support.lanes.fast_lane import make_app
from support.lanes.later import LaterBench

from celery_wheelbeat.later.connections.redis import RedisKeys
from celery_wheelbeat.later.ring import due_id, part_of
from celery_wheelbeat.later.tables import create_tables, drop_tables
from celery_wheelbeat.settings.urls import mysql_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.redis, pytest.mark.postgres]

ROWS = 400
COLUMNS = ("second", "id", "at_ms", "task", "args", "kwargs", "options")
TASKS = ["", " ", "t" * 255, "a\nb", "lanes.nobody knows", "ünïcode", "lanes.check\u202e", "\x7f"]
ARGS = [
    "",
    "null",
    "{}",
    "[1",
    "[NaN]",
    "[1e999]",
    "1], {}, [",
    '["\\ud800"]',
    "[" * 5_000,
    '[{"__type__": "x"}]',
    "[1]x",
]
KWARGS = ["", "[]", "{", '{"a": Infinity}', "{}, 1", '{"__type__": "uuid", "__value__": 5}', "0", '{"x": 1}']
OPTIONS = [
    "", "null", "[]", "{", '{"queue": "unacked"}', '{"queue": 5}', '{"queue": ["a"]}', '{"priority": "9"}',
    '{"priority": 300}', '{"headers": {"id": "x"}}', '{"headers": {"wheelbeat_nonce": 1}}', '{"headers": 5}',
    '{"nonsense": 1}', '{"expires": 5}', '{"expires": "yesterday"}', '{"expires": "2020-01-01T00:00:00+00:00"}',
    '{"task_id": "mine"}', '{"link": 7}', '{"countdown": 1e9}', '{"producer": 1}', '{"routing_key": "a\\nb"}',
    '{"queue": "%s"}' % ("q" * 40_000), '{"serializer": "pickle"}', '{"queue": "secret"}',
]  # fmt: skip
IDS = ["00000000-0000-0000-0000-000000000000", str(uuid.uuid5(uuid.NAMESPACE_URL, "a")), str(due_id(0)), str(due_id(1))]
AT_MS = [0, -1, -(2**63), 2**63 - 1, 253_402_300_800_000]
ONLY_SQLITE: dict[str, list[Any]] = {
    "at_ms": ["soon", 1.5, b"\xff"],
    "id": ["", "x", "7" * 36, b"\xff\xfe", 5, str(due_id(7)).upper()],
    "task": [b"\xed\xa0\x80", 5, b"\xff"],
    "args": [b"[\xff]", 5, b"\xed\xa0\x80"],
    "kwargs": [b"{\xff}", 1.5],
    "options": [b"\xff", 5],
    "second": ["never", 1.5, -5, b"\xff"],
}
CHOICES: dict[str, list[Any]] = {
    "id": IDS, "at_ms": AT_MS, "task": TASKS, "args": [*ARGS, "[%s]" % ("1," * 200_000 + "1")],
    "kwargs": KWARGS, "options": OPTIONS,
}  # fmt: skip


class Table:
    """The table of one-off runs as an SQL client writes it."""

    def __init__(self, url: str, connect: Callable[[], Any]) -> None:
        self.url = url
        self.is_sqlite = url.startswith("sqlite")
        self.insert = "INSERT IGNORE" if url.startswith("mysql") else "INSERT"
        """On MariaDB, ids are unique in a second."""
        self.connect = connect

    def write(self, rows: list[dict[str, Any]]) -> None:
        names = COLUMNS if self.is_sqlite else ("part", *COLUMNS)
        holes = ", ".join((":{}" if self.is_sqlite else "%({})s").format(name) for name in names)
        with closing(self.connect()) as connection:
            for row in rows:
                now_s = int(time.time())
                given = row if self.is_sqlite else {"part": part_of(row["second"], now_s), **row}
                statement = f"{self.insert} INTO wheelbeat_later ({', '.join(names)}) VALUES ({holes})"
                connection.cursor().execute(statement, given)
            connection.commit()


@pytest.fixture(params=["postgresql", pytest.param("mysql", marks=pytest.mark.mysql), "sqlite"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    if request.param == "sqlite":
        path = tmp_path / "later.sqlite3"
        made = Table(f"sqlite:///{path}", lambda: sqlite3.connect(path, timeout=10))
    elif request.param == "mysql":
        url = request.getfixturevalue("mysql_url")
        parameters = mysql_parameters("url", url)
        made = Table(url, lambda: MySQLdb.connect(**parameters))
    else:
        url = request.getfixturevalue("postgres_url")
        made = Table(url, lambda: psycopg.connect(url))
    with closing(made.connect()) as connection:
        create_tables(connection)
        connection.commit()
    yield made
    with closing(made.connect()) as connection:
        drop_tables(connection)
        connection.commit()


def sound_row(number: int, second: int, *, task: str = "lanes.anything") -> dict[str, Any]:
    row = (second, str(due_id(second * 1000)), second * 1000, task, json.dumps([number]), "{}", "{}")
    return dict(zip(COLUMNS, row, strict=True))


def hostile_row(rng: random.Random, second: int, *, sqlite: bool) -> dict[str, Any]:
    row = sound_row(-1, second)
    for name in rng.sample(list(CHOICES), rng.choice([1, 1, 2, 3])):
        row[name] = rng.choice(CHOICES[name])
    if sqlite and rng.random() < 0.5:
        name = rng.choice(list(ONLY_SQLITE))
        row[name] = rng.choice(ONLY_SQLITE[name])
    return row


def arrived(client: redis.Redis) -> list[Any]:
    """Return the first argument of every message in every queue, if it is a number."""
    found: list[Any] = []
    for key in client.scan_iter(_type="list"):
        messages = [json.loads(message) for message in client.lrange(key, 0, -1)]
        bodies = [_body(one["body"]) for one in messages if one["content-type"] == "application/json"]
        found += [args[0] for args, _, _ in bodies if args]
    return [number for number in found if isinstance(number, int)]


def _body(text: str) -> Any:
    return json.loads(base64.b64decode(text))


def test_a_row_that_cannot_be_sent_affects_only_itself(
    table: Table, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(f"hostile {table.is_sqlite}")
    second = int(time.time()) + 3
    rows = [hostile_row(rng, second + n % 2, sqlite=table.is_sqlite) for n in range(ROWS)]
    rows += [sound_row(n, second + n % 3) for n in range(ROWS)]
    rng.shuffle(rows)
    twice = sound_row(-2, second)
    with (
        redis.Redis.from_url(redis_url) as client,
        caplog.at_level(logging.ERROR, "celery.beat"),
        LaterBench(make_app(redis_url, task_default_queue="later"), table.url) as bench,
    ):
        client.flushdb()
        table.write([*rows, twice, twice, {**twice, "task": "", "id": str(uuid.uuid4())}])
        wanted = set(range(ROWS))
        bench.settle(lambda: wanted <= set(arrived(client)), "the sending of every sound row")
        bench.settle(lambda: not len(bench.later) and not bench.lanes.pending, "the end of every run")
        numbers = arrived(client)
    assert sorted(n for n in numbers if n >= 0) == sorted(wanted), "each of them once"
    assert numbers.count(-2) == 1
    assert bench.ledger.difference(0) == 0
    assert bench.ledger.skipped["error"] > ROWS // 2
    lines = [record.message for record in caplog.records if "cannot be sent" in record.message]
    assert len(lines) == 1, "logged once a minute"


def test_what_the_settings_do_not_allow_is_not_read_either(table: Table, redis_url: str) -> None:
    limits = {"allowed_tasks": ("lanes.*",), "allowed_queues": ("later", "fast"), "max_payload_bytes": 1_024}
    second = int(time.time()) + 2
    refused = [
        {**sound_row(1, second), "task": "other.task"},
        {**sound_row(2, second), "options": '{"queue": "secret"}'},
        {**sound_row(3, second), "options": '{"routing_key": "secret"}'},
        {**sound_row(4, second), "args": json.dumps(["x" * 1_100])},
        {**sound_row(5, second), "args": json.dumps(["x" * 400_000])},
    ]
    with (
        redis.Redis.from_url(redis_url) as client,
        LaterBench(make_app(redis_url, task_default_queue="later"), table.url, **limits) as bench,
    ):
        client.flushdb()
        table.write([*refused, {**sound_row(6, second), "options": '{"queue": "fast"}'}])
        bench.settle(lambda: bench.ledger.sent == 1, "the sending of the allowed row")
        assert arrived(client) == [6]
    assert bench.ledger.skipped["error"] == len(refused)


def test_a_second_that_holds_more_than_there_is_room_for_is_read_in_pieces(
    table: Table, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_wheelbeat.later.feed.READ_BYTES", 300_000)
    monkeypatch.setattr("celery_wheelbeat.later.feed.AHEAD_BYTES", 900_000)
    second = int(time.time()) + 2
    most = 0

    def all_sent() -> bool:
        nonlocal most
        most = max(most, len(bench.later))
        return bench.ledger.sent == 3_000

    with (
        redis.Redis.from_url(redis_url) as client,
        LaterBench(make_app(redis_url, task_default_queue="later"), table.url) as bench,
    ):
        client.flushdb()
        table.write([sound_row(n, second) for n in range(3_000)])
        bench.settle(all_sent, "the sending of everything")
        assert sorted(arrived(client)) == list(range(3_000))
    assert 0 < most < 2_000
    assert bench.ledger.difference(0) == 0


def test_what_a_client_of_redis_writes_affects_only_itself(redis_url: str) -> None:
    rng, keys, second = random.Random("redis"), RedisKeys("tests"), int(time.time()) + 3
    texts = [b"", b"\xff", b"[]", b"null", b"{}", b"[1,2,3,4,5,6,7]", b'[1,null,"",[],{},""]', b"[" * 5_000]
    for _ in range(ROWS):
        row = hostile_row(rng, second, sqlite=False)
        texts.append(
            json.dumps([row["at_ms"], None, *(row[n] for n in ("task", "args", "kwargs", "options"))]).encode()
        )
    with (
        redis.Redis.from_url(redis_url) as client,
        LaterBench(
            make_app(redis_url, task_default_queue="later"), None, later_url=redis_url, namespace="tests"
        ) as bench,
    ):
        client.flushdb()
        for number in range(ROWS):
            row = sound_row(number, second + number % 3)
            text = json.dumps([row["at_ms"], None, *(row[n] for n in ("task", "args", "kwargs", "options"))])
            client.hset(keys.second(row["second"]), row["id"], text)
        for number, text in enumerate(texts):
            client.hset(keys.second(second), str(uuid.uuid4()) if number % 2 else f"{number}\xff", text)
        for number in range(3):
            client.hset(keys.second(second + number), "v", "changed")
        client.set(keys.second(second + 3), "of another type")
        client.set(keys.cancelled(second), "of another type")
        client.zadd(keys.seconds, {"no second": second})
        wanted = set(range(ROWS))
        bench.settle(lambda: wanted <= set(arrived(client)), "the sending of every sound row")
        bench.settle(lambda: not len(bench.later) and not bench.lanes.pending, "the end of every run")
        assert sorted(n for n in arrived(client) if n >= 0) == sorted(wanted)
    assert bench.ledger.difference(0) == 0
    assert bench.ledger.skipped["error"] > ROWS // 2
