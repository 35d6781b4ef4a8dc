"""The fast lane into a real Redis: what arrives, and what is known after each way in which a batch can fail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import redis
from services import PrivateRedis, TcpProxy, free_port
from services.server import wait_until
from support.lanes.fast_lane import FIRE_MS, Lane, make_app

from celery_wheelbeat.dispatch import FailureKind
from celery_wheelbeat.dispatch.fast_lane.lane import BLOCK_RUNS
from celery_wheelbeat.dispatch.fast_lane.redis_wire import SLOTS
from celery_wheelbeat.jobs.identity import run_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_wheelbeat.dispatch.fast_lane.batches import Outcome

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def client(server: PrivateRedis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client
        client.config_set("maxmemory", "0")


def ids_in(client: redis.Redis, key: str = "celery") -> list[str]:
    """The ids in a queue, oldest first."""
    return [json.loads(message)["headers"]["id"] for message in reversed(client.lrange(key, 0, -1))]


def kinds(outcome: Outcome) -> list[tuple[int, FailureKind]]:
    return [(len(failure.positions), failure.kind) for failure in outcome.failures]


def through(proxy: TcpProxy, **conf: Any) -> Any:
    options = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, **conf.pop("options", {})}
    return make_app(f"redis://127.0.0.1:{proxy.port}/0", broker_transport_options=options, **conf)


def test_batches_arrive_in_order_with_computed_ids(server: PrivateRedis, client: redis.Redis) -> None:
    with Lane(make_app(server.url), kind="redis").connected() as lane:
        envelope = lane.envelope()
        batches = [lane.batch(envelope, range(start, start + 1000)) for start in range(0, 5000, 1000)]
        assert [outcome.failures for outcome in lane.send(*batches)] == [()] * 5
    assert ids_in(client) == [run_id(f"monitor:{job}", FIRE_MS, "tests") for job in range(5000)]
    tags = {json.loads(message)["properties"]["delivery_tag"] for message in client.lrange("celery", 0, -1)}
    nonces = {json.loads(message)["headers"]["wheelbeat_nonce"] for message in client.lrange("celery", 0, -1)}
    assert len(tags) == len(nonces) == 5000
    (marker,) = client.keys("wheelbeat:tests:seq:*:broker")
    assert 0 < client.ttl(marker) <= 86_400


def test_prefix_and_priority_name_the_list(server: PrivateRedis, client: redis.Redis) -> None:
    app = make_app(server.url, broker_transport_options={"global_keyprefix": "pre-"})
    with Lane(app, kind="redis").connected() as lane:
        for priority in (0, 3, 9):
            lane.send(lane.batch(lane.envelope(priority=priority), [priority]))
    assert [client.llen(key) for key in ("pre-celery", "pre-celery\x06\x163", "pre-celery\x06\x169")] == [1, 1, 1]
    assert len(client.keys("pre-wheelbeat:tests:seq:*")) == 1


def test_a_lost_reply_is_found_applied(server: PrivateRedis, client: redis.Redis) -> None:
    with TcpProxy(server.port) as proxy, Lane(through(proxy), kind="redis").connected() as lane:
        batch = lane.batch(lane.envelope(), range(100))
        proxy.mute()
        lane.sender.submit(batch)
        lane.wait(lambda: client.llen("celery") == 100, "the push")
        proxy.cut()
        proxy.pass_through()
        lane.wait(lambda: batch.token in lane.outcomes, "the outcome")
        assert lane.outcomes[batch.token].failures == ()
    assert client.llen("celery") == 100


def test_a_batch_that_never_arrived_is_not_sent(server: PrivateRedis, client: redis.Redis) -> None:
    with TcpProxy(server.port) as proxy, Lane(through(proxy), kind="redis").connected() as lane:
        batch = lane.batch(lane.envelope(), range(100))
        proxy.black_hole()
        lane.sender.submit(batch)
        lane.wait(lambda: not lane.sender.health().connected, "the loss of the connection")
        proxy.pass_through()
        lane.wait(lambda: batch.token in lane.outcomes, "the outcome")
        assert kinds(lane.outcomes[batch.token]) == [(100, FailureKind.NOT_SENT)]
    assert client.llen("celery") == 0


def test_bytes_that_are_still_on_their_way_can_no_longer_arrive(server: PrivateRedis, client: redis.Redis) -> None:
    """The old connection stays open behind a stalled proxy; it has to be dead before the marker is believed."""
    with TcpProxy(server.port) as stalled, Lane(through(stalled), kind="redis").connected() as lane:
        batch = lane.batch(lane.envelope(), range(50))
        stalled.stall()
        lane.sender.submit(batch)
        lane.wait(lambda: not lane.sender.health().connected, "the loss of the connection")
        former = {one["name"] for one in client.client_list() if one["name"].startswith("wheelbeat-")}
        assert len(former) == 1
        with TcpProxy(server.port) as other:
            lane.app.conf.broker_write_url = lane.app.conf.broker_url = f"redis://127.0.0.1:{other.port}/0"
            lane.wait(lambda: batch.token in lane.outcomes, "the outcome")
            stalled.pass_through()
            assert kinds(lane.outcomes[batch.token]) == [(50, FailureKind.NOT_SENT)]
            assert lane.send(lane.batch(lane.envelope(), [1]))[0].failures == ()
            assert client.llen("celery") == 1


def test_a_slow_line_is_not_taken_for_a_dead_one(server: PrivateRedis, client: redis.Redis) -> None:
    """A batch takes several times as long as nothing may move, to the last byte that the system holds for us."""
    with (
        TcpProxy(server.port, receive_bytes=65_536) as proxy,
        Lane(through(proxy, options={"socket_timeout": 2.0}), kind="redis").connected() as lane,
    ):
        batch = lane.batch(lane.envelope(), range(600), url="x" * 20_000)
        proxy.drip(32_768)
        (outcome,) = lane.send(batch)
        assert outcome.failures == ()
    assert client.llen("celery") == 600


@pytest.mark.parametrize("denied", [("client|kill", "client|list"), ("client",), ("hmget",)])
def test_where_the_proof_is_denied_the_outcome_is_uncertain_and_that_is_reported(
    server: PrivateRedis, client: redis.Redis, caplog: pytest.LogCaptureFixture, denied: Sequence[str]
) -> None:
    client.execute_command("ACL", "SETUSER", "small", "on", ">pw", "~*", "&*", "+@all", *[f"-{one}" for one in denied])
    with TcpProxy(server.port) as proxy:
        app = make_app(f"redis://small:pw@127.0.0.1:{proxy.port}/0", broker_transport_options={"socket_timeout": 1.0})
        with Lane(app, kind="redis").connected() as lane:
            assert "may be sent twice, with the same ids" in caplog.text
            assert lane.send(lane.batch(lane.envelope(), range(10)))[0].failures == ()
            batch = lane.batch(lane.envelope(), range(10))
            proxy.mute()
            lane.sender.submit(batch)
            lane.wait(lambda: client.llen("celery") == 20, "the push")
            proxy.cut()
            proxy.pass_through()
            lane.wait(lambda: batch.token in lane.outcomes, "the outcome")
            assert kinds(lane.outcomes[batch.token]) == [(10, FailureKind.UNCERTAIN)]
            lost = lane.batch(lane.envelope(), range(10))
            proxy.black_hole()
            lane.sender.submit(lost)
            client.execute_command("ACL", "SETUSER", "small", *[f"+{one}" for one in denied])
            lane.wait(lambda: not lane.sender.health().connected, "the loss of the connection")
            proxy.pass_through()
            lane.wait(lambda: lost.token in lane.outcomes, "the outcome")
            assert kinds(lane.outcomes[lost.token]) == [(10, FailureKind.UNCERTAIN)], "it was sent without a marker"
            assert lane.wire.provable
            assert caplog.text.count("may be sent twice, with the same ids") == 1


@pytest.mark.parametrize("denied", ["hset", "expire"])
def test_a_marker_that_may_not_be_written_is_done_without(
    server: PrivateRedis, client: redis.Redis, caplog: pytest.LogCaptureFixture, denied: str
) -> None:
    """Found out with the first batch, which is refused as a whole and can be sent again without a transaction."""
    client.execute_command("ACL", "SETUSER", "small", "on", ">pw", "~*", "&*", "+@all", f"-{denied}")
    with Lane(make_app(f"redis://small:pw@127.0.0.1:{server.port}/0"), kind="redis").connected() as lane:
        outcomes = [lane.send(lane.batch(lane.envelope(), range(10)))[0] for _ in range(2)]
        assert outcomes[1].failures == ()
        assert client.llen("celery") == 10 * len([one for one in outcomes if not one.failures])
        assert caplog.text.count("may be sent twice, with the same ids") == 1


def test_a_list_that_may_not_be_written_to_concerns_only_its_own_messages(
    server: PrivateRedis, client: redis.Redis
) -> None:
    allowed = ("~celery*", "~wheelbeat:*", "~_kombu*", "%R~closed*", "+@all")
    client.execute_command("ACL", "SETUSER", "few-keys", "on", ">pw", "&*", *allowed)
    with Lane(make_app(f"redis://few-keys:pw@127.0.0.1:{server.port}/0"), kind="redis").connected() as lane:
        good, bad = lane.batch(lane.envelope(), range(3)), lane.batch(lane.envelope(queue="closed"), range(2))
        both = good._replace(parcels=[*bad.parcels, *good.parcels], nonces=bad.nonces + good.nonces)
        (refused,) = lane.send(both)
        assert kinds(refused) == [(2, FailureKind.REFUSED), (3, FailureKind.REFUSED)]
        (outcome,) = lane.send(both._replace(token=1000))
        assert [(list(failure.positions), failure.kind) for failure in outcome.failures] == [
            ([0, 1], FailureKind.REFUSED)
        ]
    assert client.llen("celery") == 3


def test_in_a_cluster_a_prefix_with_a_hash_tag_keeps_the_proof(caplog: pytest.LogCaptureFixture) -> None:
    """Without one, kombu's own transactions fail there already. The node takes no keys of different slots together."""
    options = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    with PrivateRedis(**options) as node, redis.Redis.from_url(node.url) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        wait_until(lambda: "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO")), "a cluster")
        app = make_app(node.url, broker_transport_options={"global_keyprefix": "{beat}"})
        with Lane(app, kind="redis").connected() as lane:
            one, other = lane.batch(lane.envelope(), range(3)), lane.batch(lane.envelope(queue="other"), range(2))
            both = one._replace(parcels=[*one.parcels, *other.parcels], nonces=one.nonces + other.nonces)
            assert lane.send(both)[0].failures == ()
            assert lane.wire.provable
            apart = both._replace(token=1000, parcels=[one.parcels[0], other.parcels[0]._replace(key=b"elsewhere")])
            assert kinds(lane.send(apart)[0]) == [(3, FailureKind.REFUSED), (2, FailureKind.REFUSED)]
            assert "CrossSlot" in caplog.text
            assert lane.send(apart._replace(token=1001))[0].failures == (), "each list by itself"
        assert [client.llen(key) for key in ("{beat}celery", "{beat}other", "elsewhere")] == [6, 2, 2]


def test_no_memory_is_a_refusal_of_everything(server: PrivateRedis, client: redis.Redis) -> None:
    with Lane(make_app(server.url), kind="redis").connected() as lane:
        envelope = lane.envelope()
        client.config_set("maxmemory", "1mb")
        (outcome,) = lane.send(lane.batch(envelope, range(10)))
        assert kinds(outcome) == [(10, FailureKind.REFUSED)]
        assert "maxmemory" in outcome.failures[0].reason
        client.config_set("maxmemory", "0")
        assert lane.send(lane.batch(envelope, range(10)))[0].failures == ()
    assert client.llen("celery") == 10


def test_a_key_that_is_no_list_concerns_only_its_own_messages(server: PrivateRedis, client: redis.Redis) -> None:
    with Lane(make_app(server.url), kind="redis").connected() as lane:
        good = lane.batch(lane.envelope(), range(3))
        bad = lane.batch(lane.envelope(queue="broken"), range(2))
        client.set("broken", "a text")
        both = good._replace(parcels=[*bad.parcels, *good.parcels], nonces=bad.nonces + good.nonces)
        (outcome,) = lane.send(both)
        assert [(list(failure.positions), failure.kind) for failure in outcome.failures] == [
            ([0, 1], FailureKind.UNROUTABLE)
        ]
    assert client.llen("celery") == 3


def test_a_lost_reply_hides_no_key_that_is_no_list(server: PrivateRedis, client: redis.Redis) -> None:
    with TcpProxy(server.port) as proxy, Lane(through(proxy), kind="redis").connected() as lane:
        batch = lane.batch(lane.envelope(queue="broken"), range(2))
        client.set("broken", "a text")
        proxy.mute()
        lane.sender.submit(batch)
        lane.wait(lambda: bool(client.keys("wheelbeat:tests:seq:*")), "the marker")
        proxy.cut()
        proxy.pass_through()
        lane.wait(lambda: batch.token in lane.outcomes, "the outcome")
        assert kinds(lane.outcomes[batch.token]) == [(2, FailureKind.UNROUTABLE)]


def test_a_failed_batch_before_an_applied_one_is_not_taken_for_applied(
    server: PrivateRedis, client: redis.Redis
) -> None:
    """Two on their way, both replies lost, only the second applied: a single number as marker would lose the first."""
    patient = {"socket_timeout": 60.0}  # the proxy ends the connection, not a slow machine
    with TcpProxy(server.port) as proxy, Lane(through(proxy, options=patient), kind="redis").connected() as lane:
        envelope = lane.envelope()
        first, second = lane.batch(envelope, range(5)), lane.batch(envelope, range(5, 10))
        proxy.mute()
        client.config_resetstat()
        client.config_set("maxmemory", "1mb")
        lane.sender.submit(first)
        lane.wait(lambda: client.info("errorstats").get("errorstat_OOM") is not None, "the refusal")
        client.config_set("maxmemory", "0")
        lane.sender.submit(second)
        lane.wait(lambda: client.llen("celery") == 5, "the push")
        proxy.cut()
        proxy.pass_through()
        lane.wait(lambda: {first.token, second.token} <= lane.outcomes.keys(), "both outcomes")
        assert kinds(lane.outcomes[first.token]) == [(5, FailureKind.NOT_SENT)]
        assert kinds(lane.outcomes[second.token]) == []


def test_all_that_may_be_on_its_way_is_distinguished(server: PrivateRedis, client: redis.Redis) -> None:
    """Whatever their tokens are, and as many as the greatest window allows: no applied batch hides another one."""
    window = 100_000 // BLOCK_RUNS
    with TcpProxy(server.port) as proxy, Lane(through(proxy), kind="redis", window=window).connected() as lane:
        envelope = lane.envelope()
        batches = [
            lane.batch(envelope, [number])._replace(token=1 + number * SLOTS)  # as tokens of single runs lie between
            for number in range(window)
        ]
        proxy.mute()
        for batch in batches:
            lane.sender.submit(batch)
        lane.wait(lambda: client.llen("celery") == window, "the pushes")
        proxy.cut()
        proxy.pass_through()
        lane.wait(lambda: {batch.token for batch in batches} <= lane.outcomes.keys(), "the outcomes")
        assert {outcome.failures for outcome in lane.outcomes.values()} == {()}


def test_a_replica_is_left_for_the_current_master(server: PrivateRedis, client: redis.Redis) -> None:
    with PrivateRedis() as master, Lane(make_app(server.url), kind="redis").connected() as lane:
        envelope, epoch = lane.envelope(), lane.sender.epoch
        client.replicaof("127.0.0.1", master.port)
        (outcome,) = lane.send(lane.batch(envelope, range(3)))
        assert kinds(outcome) == [(3, FailureKind.REFUSED)]
        client.replicaof("NO", "ONE")
        again = lane.batch(envelope, range(3))
        lane.sender.submit(again)
        lane.wait(lambda: again.token in lane.outcomes, "the outcome")
        assert kinds(lane.outcomes[again.token]) == [(3, FailureKind.NOT_SENT)]
        lane.connected()
        assert lane.sender.epoch == epoch + 1


def test_batches_of_a_former_connection_come_back(server: PrivateRedis, client: redis.Redis) -> None:
    with Lane(make_app(server.url), kind="redis").connected() as lane:
        stale = lane.batch(lane.envelope(), range(3))._replace(epoch=0)
        (outcome,) = lane.send(stale)
        assert kinds(outcome) == [(3, FailureKind.NOT_SENT)]
    assert client.llen("celery") == 0
