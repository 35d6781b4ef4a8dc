"""The fast lane behind a Sentinel: after a failover it goes on with the new master, and nothing is there twice.

Also where the servers, the Sentinel and their clients speak nothing but TLS.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from services import MASTER_NAME, PrivateRedis, PrivateSentinel, TcpProxy, wait_until
from support.lanes.bench import FastBench, numbered
from support.lanes.fast_lane import make_app

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from services import Certificates

pytestmark = pytest.mark.redis


class Failing:
    """A master with a replica and the Sentinel that watches them."""

    def __init__(self, tls: Certificates | None, **options: str) -> None:
        self.tls = tls
        self.master = PrivateRedis(tls=tls, **options)
        self.replica = PrivateRedis(tls=tls, **options)
        self.sentinel = PrivateSentinel(self.master)

    def __enter__(self) -> Self:
        self.master.start()
        self.replica.start()
        with self.replica.client() as client:
            client.replicaof("127.0.0.1", self.master.port)
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", "the replica's link")
        self.sentinel.start()
        wait_until(lambda: self.sentinel.replicas() == 1, "the Sentinel's knowledge of the replica")
        return self

    def __exit__(self, *exc_info: object) -> None:
        for server in (self.sentinel, self.replica, self.master):
            server.close()

    def app(self, *, first_asked: str = "") -> Any:
        """An app that asks the Sentinel, after the one at ``first_asked`` if that is given."""
        secure = {} if self.tls is None else {"broker_use_ssl": self.tls.redis_client}
        url = ";".join(filter(None, (first_asked, self.sentinel.url)))
        return make_app(url, broker_transport_options=self.sentinel.transport_options, **secure)

    def replicated(self) -> None:
        """Wait until the replica has what the master has."""
        with self.master.client() as client, self.replica.client() as copy:
            wait_until(lambda: copy.llen("celery") == client.llen("celery"), "the replication of the queue")

    def ids(self) -> Counter[str]:
        """How often each id is in the queue of what was the replica."""
        with self.replica.client() as client:
            return Counter(json.loads(message)["headers"]["id"] for message in client.lrange("celery", 0, -1))


@pytest.fixture(params=["plain", "tls"])
def secured(request: pytest.FixtureRequest) -> Certificates | None:
    """Certificates, or None for servers without TLS."""
    return request.getfixturevalue("tls") if request.param == "tls" else None


def sent_before_and_after(servers: Failing, fail: Callable[[], Any], app: Any = None) -> Counter[str]:
    """Send a minute, fail over while another is sent, send a third; returns how often each id is on the new master."""
    with FastBench(app or servers.app()) as bench:
        bench.load(numbered(2_000, bench.route()))
        bench.pass_minutes()
        bench.drain()
        servers.replicated()
        fail()
        bench.pass_minutes()
        bench.turn()
        wait_until(lambda: servers.sentinel.master_port() == servers.replica.port, "the failover")
        bench.drain()
        bench.pass_minutes()
        bench.drain()
        assert bench.slow_runs == 0
        assert bench.ledger.sent + bench.ledger.skipped["backlog"] == 6_000
        assert bench.ledger.skipped.total() == bench.ledger.skipped["backlog"]
        sent = bench.ledger.sent
    ids = servers.ids()
    assert len(ids) == sent
    return ids


def test_the_death_of_a_master_is_followed(secured: Certificates | None) -> None:
    with Failing(secured) as servers:
        ids = sent_before_and_after(servers, servers.master.kill)
        assert set(ids.values()) == {1}


def test_a_sentinel_that_dies_with_the_master_blocks_nothing_else(secured: Certificates | None) -> None:
    """It keeps silent as a host does whose power is gone; the next one is asked in time."""
    with Failing(secured) as servers, TcpProxy(servers.sentinel.port) as dying:

        def die() -> None:
            servers.master.kill()
            dying.cut()
            dying.black_hole()

        app = servers.app(first_asked=f"sentinel://127.0.0.1:{dying.port}/0")
        assert set(sent_before_and_after(servers, die, app).values()) == {1}


def test_a_master_that_hands_over_loses_nothing(secured: Certificates | None) -> None:
    """Its writers wait meanwhile: what it confirms and has not passed on is forgotten when it is demoted."""
    with Failing(secured, **{"min-replicas-to-write": "1"}) as servers, servers.sentinel.client() as sentinel:

        def hand_over() -> None:
            with servers.master.client() as former:
                former.client_pause(60_000, all=False)
                sentinel.sentinel_failover(MASTER_NAME)
                wait_until(lambda: servers.sentinel.master_port() == servers.replica.port, "the failover")
                former.replicaof("127.0.0.1", servers.replica.port)  # as the Sentinel does, some seconds later
                former.client_unpause()
                former.client_kill_filter(_type="normal", skipme=True)

        ids = sent_before_and_after(servers, hand_over)
        assert set(ids.values()) == {1}
