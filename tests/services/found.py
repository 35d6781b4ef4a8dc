"""The servers that a test run uses: named by environment variables, found on standard ports, or private ones.

On a server that was found only what the run made itself is touched: the database or virtual host
``wheelbeat_test_<pid>``, dropped at the end. A found Redis has nothing of the kind, so Redis is private unless
``WHEELBEAT_TEST_REDIS_URL`` names an empty database for the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import amqp
import psycopg
import redis

from .mariadb_server import PrivateMariadb
from .postgres_server import PrivatePostgres
from .rabbit_server import PrivateRabbit
from .redis_server import PrivateRedis
from .server import ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN_NAME = f"wheelbeat_test_{os.getpid()}"
"""Name of every database and virtual host that this run makes."""

POSTGRES_URLS = ("postgresql://postgres@127.0.0.1:5432/postgres", "postgresql:///postgres?host=/var/run/postgresql")
MYSQL_URL = "mysql://root@127.0.0.1:3306/mysql"
AMQP_URL = "amqp://guest:guest@127.0.0.1:5672//"


def with_path(url: str, path: str) -> str:
    """Return ``url`` with another database or virtual host."""
    parts = urlsplit(url)
    rebuilt = urlunsplit(parts._replace(path=f"/{quote(path, safe='')}"))
    return rebuilt if "://" in rebuilt else rebuilt.replace(":/", ":///", 1)


@contextmanager
def postgres_database() -> Iterator[str]:
    """Yield the URL of a new, empty PostgreSQL database."""
    given = os.environ.get("WHEELBEAT_TEST_POSTGRES_URL")
    for admin_url in (given,) if given else POSTGRES_URLS:
        try:
            psycopg.connect(admin_url, connect_timeout=10).close()
        except psycopg.OperationalError as error:
            if given:
                raise ServiceError(f"WHEELBEAT_TEST_POSTGRES_URL={given}: {error}") from error
            continue
        with postgres_database_beside(admin_url, OWN_NAME) as url:
            yield url
        return
    with PrivatePostgres() as server, postgres_database_beside(server.url, OWN_NAME) as url:
        yield url


@contextmanager
def postgres_database_beside(url: str, name: str) -> Iterator[str]:
    """Yield the URL of a new, empty database ``name`` on the server of ``url``; dropped at the end.

    No connection is kept in between, for tests end other people's connections; and the database of ``url`` may be
    gone before.
    """
    maintenance_url = with_path(url, "postgres")
    with psycopg.connect(maintenance_url, autocommit=True) as server:
        server.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        server.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
    try:
        yield with_path(url, name)
    finally:
        with psycopg.connect(maintenance_url, autocommit=True) as server:
            server.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@contextmanager
def mysql_database() -> Iterator[str]:
    """Yield the URL of a new, empty MariaDB database."""
    import MySQLdb  # not in every environment that starts servers

    given = os.environ.get("WHEELBEAT_TEST_MYSQL_URL")
    try:
        _mysql(given or MYSQL_URL).close()
    except MySQLdb.OperationalError as error:
        if given:
            raise ServiceError(f"WHEELBEAT_TEST_MYSQL_URL={given}: {error}") from error
        with PrivateMariadb() as server, mysql_database_beside(server.url, OWN_NAME) as url:
            yield url
        return
    with mysql_database_beside(given or MYSQL_URL, OWN_NAME) as url:
        yield url


@contextmanager
def mysql_database_beside(url: str, name: str) -> Iterator[str]:
    """Yield the URL of a new, empty database ``name`` on the server of ``url``; dropped at the end."""
    _mysql_execute(url, f"DROP DATABASE IF EXISTS {name}")
    _mysql_execute(url, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    try:
        yield with_path(url, name)
    finally:
        _mysql_execute(url, f"DROP DATABASE IF EXISTS {name}")


def _mysql_execute(url: str, statement: str) -> None:
    """Run one statement on a connection of its own: a session must not idle through the whole test run."""
    connection = _mysql(url)
    try:
        connection.cursor().execute(statement)
    finally:
        connection.close()


def _mysql(url: str) -> Any:
    import MySQLdb  # see above

    parts = urlsplit(url)
    return MySQLdb.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=unquote(parts.username or "root"),
        password=unquote(parts.password or ""),
        connect_timeout=10,
    )


@contextmanager
def amqp_vhost() -> Iterator[str]:
    """Yield the URL of a new, empty virtual host of RabbitMQ."""
    given = os.environ.get("WHEELBEAT_TEST_AMQP_URL")
    url = given or AMQP_URL
    if _amqp_answers(url):
        make = _vhost_maker(url)
        if make is not None:
            try:
                make("PUT")
                yield with_path(url, OWN_NAME)
            finally:
                make("DELETE")
            return
    if given:
        raise ServiceError(
            f"WHEELBEAT_TEST_AMQP_URL={given}: no broker answers there, or no virtual host can be made on it "
            "(needs rabbitmqctl as root, or the management plugin on the broker's port + 10000)"
        )
    with PrivateRabbit() as server:
        yield server.url


def _amqp_answers(url: str) -> bool:
    parts = urlsplit(url)
    connection = amqp.Connection(
        host=f"{parts.hostname}:{parts.port or 5672}",
        userid=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        virtual_host=unquote(parts.path[1:]) or "/",
        connect_timeout=10,
    )
    try:
        connection.connect()
    except (OSError, amqp.AMQPError):
        return False
    connection.close()
    return True


class _VhostMaker:
    """Makes (``PUT``) and drops (``DELETE``) our virtual host through rabbitmqctl or the management plugin."""

    def __init__(self, url: str, *, through_ctl: bool) -> None:
        parts = urlsplit(url)
        self.user = unquote(parts.username or "guest")
        self.password = unquote(parts.password or "guest")
        self.api = f"http://{parts.hostname}:{(parts.port or 5672) + 10000}/api"
        self.through_ctl = through_ctl

    def __call__(self, method: str) -> None:
        if self.through_ctl and method == "PUT":
            _ctl("add_vhost", OWN_NAME)
            _ctl("set_permissions", "-p", OWN_NAME, self.user, ".*", ".*", ".*")
        elif self.through_ctl:
            _ctl("delete_vhost", OWN_NAME)
        else:
            self.call(method, f"/vhosts/{OWN_NAME}")

    def call(self, method: str, path: str) -> None:
        credentials = b64encode(f"{self.user}:{self.password}".encode()).decode()
        headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.api + path, method=method, headers=headers)
        urllib.request.urlopen(request, timeout=30).close()


def _vhost_maker(url: str) -> _VhostMaker | None:
    local = urlsplit(url).hostname in ("127.0.0.1", "localhost")
    if local and os.geteuid() == 0 and shutil.which("rabbitmqctl"):
        try:
            _ctl("list_vhosts", "--quiet")
        except ServiceError:
            pass
        else:
            return _VhostMaker(url, through_ctl=True)
    maker = _VhostMaker(url, through_ctl=False)
    try:
        maker.call("GET", "/vhosts")
    except (OSError, urllib.error.URLError):
        return None
    return maker


def _ctl(*words: str) -> None:
    done = subprocess.run(
        ["rabbitmqctl", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise ServiceError(f"rabbitmqctl {' '.join(words)} failed: {done.stdout}{done.stderr}")


@contextmanager
def redis_database() -> Iterator[str]:
    """Yield the URL of an empty Redis database."""
    given = os.environ.get("WHEELBEAT_TEST_REDIS_URL")
    if given is None:
        with PrivateRedis() as server:
            yield server.url
        return
    with redis.Redis.from_url(given) as client:
        keys = client.dbsize()
        if keys:
            raise ServiceError(
                f"WHEELBEAT_TEST_REDIS_URL={given} holds {keys} keys; name an empty database for the tests"
            )
        try:
            yield given
        finally:
            client.flushdb()
