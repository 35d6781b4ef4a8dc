"""The services do to clients what tests ask of them."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from contextlib import closing

import amqp
import MySQLdb
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from services import (
    PrivateMariadb,
    PrivatePostgres,
    PrivateRabbit,
    PrivateRedis,
    TcpProxy,
    free_port,
    wait_until,
)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.postgres
def test_found_postgres_database_is_ours(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        (name,) = connection.execute("SELECT current_database()").fetchone()
    assert name == f"wheelbeat_test_{os.getpid()}"


@pytest.mark.amqp
def test_found_amqp_vhost_takes_a_message(amqp_url):
    parts = amqp_url.rsplit("/", 1)
    port = int(parts[0].rsplit(":", 1)[1])
    with amqp.Connection(f"127.0.0.1:{port}", virtual_host=parts[1]) as connection, connection.channel() as channel:
        queue, _, _ = channel.queue_declare(exclusive=True)
        channel.basic_publish(amqp.Message("hello"), routing_key=queue)
        assert channel.basic_get(queue, no_ack=True).body == "hello"


@pytest.mark.mysql
def test_private_mariadb_is_found_or_started(mysql_url):
    assert mysql_url.endswith(f"wheelbeat_test_{os.getpid()}")


@pytest.mark.redis
def test_redis_can_be_paused_killed_and_started_again(redis_url):
    with PrivateRedis(appendonly="yes", appendfsync="always") as server:
        pid = server.pid
        with redis.Redis(port=server.port) as client:
            client.set("kept", "yes")
        with redis.Redis(port=server.port, socket_timeout=0.3, retry=Retry(NoBackoff(), 0)) as client:
            server.pause()
            with pytest.raises(redis.TimeoutError):
                client.get("kept")
        server.resume()
        with redis.Redis(port=server.port) as client:
            assert client.get("kept") == b"yes"
        server.kill()
        assert not _alive(pid)
        server.start()
        with redis.Redis(port=server.port) as client:
            assert client.get("kept") == b"yes"
        pid = server.pid
    assert not _alive(pid)
    assert not server.folder.exists()


@pytest.mark.postgres
def test_postgres_survives_a_kill_and_a_standby_is_promoted():
    with PrivatePostgres(fsync=True) as primary:
        with psycopg.connect(primary.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            connection.execute("INSERT INTO kept VALUES (7)")
        primary.kill()
        primary.start()
        with primary.standby() as standby:
            primary.stop()
            standby.promote()
            with psycopg.connect(standby.url, autocommit=True) as connection:
                connection.execute("INSERT INTO kept VALUES (8)")
                assert connection.execute("SELECT sum(n) FROM kept").fetchone() == (15,)


@pytest.mark.postgres
def test_a_paused_postgres_keeps_the_session_and_answers_later():
    with PrivatePostgres() as server, psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SELECT 1")
        server.pause()
        connection.pgconn.send_query(b"SELECT 42")
        assert select.select([connection.pgconn.socket], [], [], 0.3) == ([], [], [])
        server.resume()
        assert connection.pgconn.get_result().get_value(0, 0) == b"42"
        assert connection.pgconn.get_result() is None


@pytest.mark.amqp
def test_private_rabbit_restarts_with_its_data_and_leaves_no_process():
    with PrivateRabbit() as server:
        pids = [server.pid]
        with amqp.Connection(f"127.0.0.1:{server.port}") as connection, connection.channel() as channel:
            channel.queue_declare("kept", durable=True, auto_delete=False)
            channel.confirm_select()
            channel.basic_publish_confirm(amqp.Message("m", delivery_mode=2), routing_key="kept")
        server.stop()
        assert not _alive(pids[0])
        server.start()
        pids.append(server.pid)
        assert "kept" in server.ctl("list_queues", "--quiet", "name")
        server.kill()
        wait_until(lambda: not any(map(_alive, pids)), "the end of the node")


@pytest.mark.mysql
def test_private_mariadb_keeps_data_over_a_restart():
    with PrivateMariadb() as server:
        with closing(MySQLdb.connect(host="127.0.0.1", port=server.port, user="root", db="mysql")) as connection:
            connection.cursor().execute("CREATE DATABASE kept")
        server.stop()
        server.start()
        with closing(MySQLdb.connect(host="127.0.0.1", port=server.port, user="root", db="kept")) as connection:
            assert connection.query("SELECT 1") is None


def _echo(server: socket.socket) -> bytes:
    connection, _ = server.accept()
    with connection:
        connection.settimeout(60)
        data = connection.recv(100)
        connection.sendall(data)
        return data


def test_proxy_passes_stalls_mutes_and_cuts():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        TcpProxy(server.getsockname()[1]) as proxy,
        contextlib.ExitStack() as ends,
    ):

        def connect() -> tuple[socket.socket, socket.socket]:
            client = ends.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=60))
            behind = ends.enter_context(server.accept()[0])
            behind.settimeout(60)
            return client, behind

        client, behind = connect()
        client.sendall(b"ping")
        assert behind.recv(10) == b"ping"
        behind.sendall(b"pong")
        assert client.recv(10) == b"pong"

        proxy.stall()
        client.sendall(b"late")
        assert _is_silent(behind)
        proxy.pass_through()
        assert behind.recv(10) == b"late"

        proxy.mute()
        client.sendall(b"heard")
        assert behind.recv(10) == b"heard"
        behind.sendall(b"lost")
        assert _is_silent(client)

        proxy.drip(1)
        client.sendall(b"ab")
        assert behind.recv(10) == b"a"
        assert behind.recv(10) == b"b"

        proxy.cut(refuse=True)
        with pytest.raises(ConnectionResetError):
            client.recv(10)
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as refused:
            assert _is_reset(refused)
        proxy.pass_through()
        again, behind_again = connect()
        again.sendall(b"back")
        assert behind_again.recv(10) == b"back"


def _is_silent(connection: socket.socket) -> bool:
    return not select.select([connection], [], [], 0.2)[0]


def _is_reset(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_proxy_without_a_target_refuses():
    with TcpProxy(free_port()) as proxy, socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as client:
        assert _is_reset(client)
