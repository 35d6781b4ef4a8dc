"""Rolls in every kind of store, each behind a proxy where it has a server."""

from __future__ import annotations

import http.client
import json
import shutil
import sqlite3
from base64 import b64encode
from collections import defaultdict
from contextlib import ExitStack, closing
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import amqp
import psycopg
import pytest
import redis
from services import OWN_NAME, PrivateEtcd, PrivatePgbouncer, TcpProxy, mysql_database_beside, postgres_database_beside
from support.membership.memory_roll import MemoryRoll, MemoryStore

from celery_wheelbeat.membership.rolls.amqp_roll import AmqpRoll
from celery_wheelbeat.membership.rolls.etcd_roll import EtcdRoll
from celery_wheelbeat.membership.rolls.folder_roll import FolderRoll
from celery_wheelbeat.membership.rolls.redis_roll import RedisRoll, connector
from celery_wheelbeat.membership.rolls.sql_roll import SqlRoll
from celery_wheelbeat.membership.rolls.tables import statement_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from celery_wheelbeat.membership import Roll

WAIT_S = 1.0
NAMESPACE = "site"
KINDS = [
    pytest.param("postgresql", marks=pytest.mark.postgres),
    pytest.param("pooled", marks=pytest.mark.postgres),
    pytest.param("mysql", marks=pytest.mark.mysql),
    "sqlite",
    pytest.param("redis", marks=pytest.mark.redis),
    pytest.param("amqp", marks=pytest.mark.amqp),
    pytest.param("etcd", marks=pytest.mark.etcd),
    "folder",
    "memory",
]
SERVED = [kind for kind in KINDS if kind not in ("sqlite", "folder", "memory")]
"""Kinds that are reached over a network."""


class Place:
    """One store: opens rolls in it, empties it, and says how many connections and lines it has."""

    def __init__(
        self,
        kind: str,
        make: Callable[[str, str], Roll],
        forget_everything: Callable[[], None],
        connections: Callable[[], int] = lambda: 0,
        proxy: TcpProxy | None = None,
    ) -> None:
        self.kind = kind
        self.forget_everything = forget_everything
        self.connections = connections
        """Number of the rolls' connections on the server."""
        self.proxy = proxy
        self.is_stored = kind != "amqp"
        """Whether the lines are in the store, not in the memory of those who heard them."""
        self._make = make
        self._opened: list[Roll] = []

    def roll(self, beat_id: str, namespace: str = NAMESPACE) -> Roll:
        roll = self._make(namespace, beat_id)
        if isinstance(roll, AmqpRoll):
            roll.listen()  # earlier lines are not received
        self._opened.append(roll)
        return roll

    def close(self) -> None:
        for roll in self._opened:
            roll.close()


def _sql(vendor: str, parameters: Mapping[str, Any]) -> Callable[[str, str], SqlRoll]:
    return lambda namespace, beat_id: SqlRoll(vendor, lambda: parameters, namespace, beat_id, WAIT_S)


@pytest.fixture(scope="module")
def roll_postgres_url(postgres_url: str) -> Iterator[str]:
    """A PostgreSQL database with the table."""
    with postgres_database_beside(postgres_url, f"{OWN_NAME}_rolls") as url:
        with psycopg.connect(url) as connection:
            connection.execute(statement_of("postgresql", "create_table"))
        yield url


@pytest.fixture(scope="module")
def pooler(roll_postgres_url: str) -> Iterator[PrivatePgbouncer]:
    """PgBouncer in transaction mode before that database."""
    with PrivatePgbouncer(roll_postgres_url, default_pool_size="4") as pooler:
        yield pooler


@pytest.fixture(scope="module")
def roll_mysql_url(mysql_url: str) -> Iterator[str]:
    """A MariaDB database with the table."""
    with mysql_database_beside(mysql_url, f"{OWN_NAME}_rolls") as url:
        with closing(_mysql(url)) as connection:
            connection.cursor().execute(statement_of("mysql", "create_table"))
        yield url


def _mysql_parameters(url: str, port: int | None = None) -> dict[str, Any]:
    parts = urlsplit(url)
    given = {"host": "127.0.0.1", "port": port or parts.port or 3306, "user": parts.username or "root"}
    return {**given, "password": parts.password or "", "database": parts.path[1:], "charset": "utf8mb4"}


def _mysql(url: str) -> Any:
    import MySQLdb

    return MySQLdb.connect(**_mysql_parameters(url), autocommit=True)


def _answer(connection: Any, query: str) -> int:
    with closing(connection), closing(connection.cursor()) as cursor:
        cursor.execute(query)
        return int(cursor.fetchone()[0]) if cursor.description else 0


def _postgres_place(kind: str, url: str, through: str, stack: ExitStack) -> Place:
    proxy = stack.enter_context(TcpProxy(urlsplit(through).port or 5432, urlsplit(through).hostname or "127.0.0.1"))
    parts = urlsplit(through)
    given = f"host=127.0.0.1 port={proxy.port} dbname={parts.path[1:]} user={parts.username or 'postgres'}"
    given += f" password={parts.password}" if parts.password else ""
    if kind == "pooled":
        given += " application_name=pooled"  # the pooler keeps connections of that name
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'wheelbeat' AND datname = current_database()"
    )
    place = Place(
        kind,
        _sql("postgresql", {"conninfo": given}),
        lambda: _answer(psycopg.connect(url, autocommit=True), "DELETE FROM wheelbeat_member") and None,
        (lambda: 0) if kind == "pooled" else lambda: _answer(psycopg.connect(url), count),
        proxy,
    )
    place.forget_everything()
    return place


def _mysql_place(url: str, stack: ExitStack) -> Place:
    proxy = stack.enter_context(TcpProxy(urlsplit(url).port or 3306))
    count = "SELECT count(*) - 1 FROM information_schema.processlist WHERE db = database()"
    place = Place(
        "mysql",
        _sql("mysql", _mysql_parameters(url, proxy.port)),
        lambda: _answer(_mysql(url), "DELETE FROM wheelbeat_member") and None,
        lambda: _answer(_mysql(url), count),
        proxy,
    )
    place.forget_everything()
    return place


def _sqlite_place(file: Path) -> Place:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(statement_of("sqlite", "create_table"))

    def forget_everything() -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("DELETE FROM wheelbeat_member")

    return Place("sqlite", _sql("sqlite", {"database": str(file)}), forget_everything)


def _redis_place(url: str, stack: ExitStack) -> Place:
    proxy = stack.enter_context(TcpProxy(urlsplit(url).port or 6379))
    client = stack.enter_context(redis.Redis.from_url(url))
    client.flushdb()
    where: Mapping[str, Any] = {"host": "127.0.0.1", "port": proxy.port, "db": int(urlsplit(url).path[1:] or 0)}
    pool = redis.ConnectionPool(**where, client_name=OWN_NAME)  # other tests may have left connections
    return Place(
        "redis",
        lambda namespace, beat_id: RedisRoll(connector(pool, WAIT_S), namespace, beat_id),
        client.flushdb,
        lambda: [one["name"] for one in client.client_list()].count(OWN_NAME),
        proxy,
    )


def amqp_connection(url: str, port: int | None = None) -> amqp.Connection:
    """Open a connection to RabbitMQ, through a proxy if ``port`` is given."""
    parts = urlsplit(url)
    connection = amqp.Connection(
        host=f"127.0.0.1:{port or parts.port or 5672}",
        userid=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        virtual_host=unquote(parts.path[1:]) or "/",
        connect_timeout=WAIT_S,
        read_timeout=WAIT_S,
        write_timeout=WAIT_S,
    )
    connection.connect()
    return connection


def _amqp_place(url: str, stack: ExitStack) -> Place:
    proxy = stack.enter_context(TcpProxy(urlsplit(url).port or 5672))
    orders = defaultdict(count(1).__next__)

    def make(namespace: str, beat_id: str) -> AmqpRoll:
        bounds = {"started_ms": orders[beat_id], "wait_s": WAIT_S, "listen_s": 0.0}
        return AmqpRoll(lambda: amqp_connection(url, proxy.port), namespace, beat_id, **bounds)

    def forget_everything() -> None:
        with amqp_connection(url) as connection:
            connection.channel().exchange_delete(f"wheelbeat.{NAMESPACE}")

    return Place("amqp", make, forget_everything, proxy=proxy)


@pytest.fixture(scope="module")
def etcd_server() -> Iterator[PrivateEtcd]:
    """An etcd of one node."""
    with PrivateEtcd() as server:
        yield server


def coded(text: str) -> str:
    """Return a key as etcd's gateway takes it."""
    return b64encode(text.encode()).decode()


def etcd_ask(port: int, path: str, request: Mapping[str, Any]) -> Any:
    """Ask an etcd's gateway."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("POST", path, json.dumps(request))
        answer = connection.getresponse()
        assert answer.status == http.HTTPStatus.OK, answer.read()
        return json.load(answer)


def _etcd_place(server: PrivateEtcd, stack: ExitStack) -> Place:
    proxy = stack.enter_context(TcpProxy(server.port))

    def forget_everything() -> None:
        etcd_ask(server.port, "/v3/kv/deleterange", {"key": coded("\0"), "range_end": coded("\0")})

    forget_everything()
    url = f"etcd://127.0.0.1:{proxy.port}"
    return Place("etcd", lambda *names: EtcdRoll(url, *names, WAIT_S), forget_everything, proxy=proxy)


def _folder_place(folder: Path) -> Place:
    return Place(
        "folder",
        lambda namespace, beat_id: FolderRoll(folder, namespace, beat_id),
        lambda: shutil.rmtree(folder, ignore_errors=True),
    )


def made_place(kind: str, request: pytest.FixtureRequest, tmp_path: Path, stack: ExitStack) -> Place:
    """Make an empty place of ``kind``."""
    match kind:
        case "postgresql" | "pooled":
            url = request.getfixturevalue("roll_postgres_url")
            through = request.getfixturevalue("pooler").url if kind == "pooled" else url
            place = _postgres_place(kind, url, through, stack)
        case "mysql":
            place = _mysql_place(request.getfixturevalue("roll_mysql_url"), stack)
        case "sqlite":
            place = _sqlite_place(tmp_path / "roll.sqlite3")
        case "redis":
            place = _redis_place(request.getfixturevalue("redis_url"), stack)
        case "amqp":
            place = _amqp_place(request.getfixturevalue("amqp_url"), stack)
        case "etcd":
            place = _etcd_place(request.getfixturevalue("etcd_server"), stack)
        case "folder":
            place = _folder_place(tmp_path / "roll.d")
        case _:
            store = MemoryStore()
            place = Place(kind, lambda *names: MemoryRoll(store, *names), store.rows.clear)
    return place


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each kind of store in turn, empty."""
    with ExitStack() as stack:
        place = made_place(request.param, request, tmp_path, stack)
        yield place
        place.close()


@pytest.fixture(params=SERVED)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each kind that has a server, empty, behind a proxy."""
    with ExitStack() as stack:
        place = made_place(request.param, request, tmp_path, stack)
        yield place
        place.close()
