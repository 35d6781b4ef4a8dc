"""The fast lane behind a Sentinel: after a failover it goes on with the new master, and nothing is there twice."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import redis
from fast_bench import FastBench, numbered
from lanes import make_app
from services import MASTER_NAME, PrivateRedis, PrivateSentinel, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

pytestmark = pytest.mark.redis


class Failing:
    """A master with a replica and the Sentinel that watches them."""

    def __init__(self, **options: str) -> None:
        self.master = PrivateRedis(**options)
        self.replica = PrivateRedis(**options)
        self.sentinel = PrivateSentinel(self.master)

    def __enter__(self) -> Self:
        self.master.start()
        self.replica.start()
        with redis.Redis.from_url(self.replica.url) as client:
            client.replicaof("127.0.0.1", self.master.port)
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", "the replica's link")
        self.sentinel.start()
        wait_until(lambda: self.sentinel.replicas() == 1, "the Sentinel's knowledge of the replica")
        return self

    def __exit__(self, *exc_info: object) -> None:
        for server in (self.sentinel, self.replica, self.master):
            server.close()

    def app(self) -> Any:
        """An app that asks the Sentinel."""
        return make_app(self.sentinel.url, broker_transport_options={"master_name": MASTER_NAME})

    def replicated(self) -> None:
        """Wait until the replica has what the master has."""
        with redis.Redis.from_url(self.master.url) as client, redis.Redis.from_url(self.replica.url) as copy:
            wait_until(lambda: copy.llen("celery") == client.llen("celery"), "the replication of the queue")

    def ids(self) -> Counter[str]:
        """How often each id is in the queue of what was the replica."""
        with redis.Redis.from_url(self.replica.url) as client:
            return Counter(json.loads(message)["headers"]["id"] for message in client.lrange("celery", 0, -1))


def sent_before_and_after(servers: Failing, fail: Callable[[], Any]) -> Counter[str]:
    """Send a minute, fail over while another is sent, send a third; returns how often each id is on the new master."""
    with FastBench(servers.app()) as bench:
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
        assert bench.parts.ledger.sent + bench.parts.ledger.skipped["backlog"] == 6_000
        assert bench.parts.ledger.skipped.total() == bench.parts.ledger.skipped["backlog"]
        sent = bench.parts.ledger.sent
    ids = servers.ids()
    assert len(ids) == sent
    return ids


def test_the_death_of_a_master_is_followed() -> None:
    with Failing() as servers:
        ids = sent_before_and_after(servers, servers.master.kill)
        assert set(ids.values()) == {1}


def test_a_master_that_hands_over_loses_nothing() -> None:
    """Without a replica it takes no more: else it would go on confirming what it forgets when it is demoted."""
    with Failing(**{"min-replicas-to-write": "1"}) as servers, redis.Redis(port=servers.sentinel.port) as sentinel:

        def hand_over() -> None:
            sentinel.sentinel_failover(MASTER_NAME)
            wait_until(lambda: servers.sentinel.master_port() == servers.replica.port, "the failover")
            with redis.Redis.from_url(servers.master.url) as former:  # as the Sentinel does, some seconds later
                former.replicaof("127.0.0.1", servers.replica.port)
                former.client_kill_filter(_type="normal", skipme=True)

        ids = sent_before_and_after(servers, hand_over)
        assert set(ids.values()) == {1}
