"""A broadcast is for every worker: each executes one of its copies."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import redis
from kombu import Exchange
from kombu.common import Broadcast
from support.claims import ClaimProject, now_ms

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.redis]

QUEUES = """
    from kombu import Queue
    from kombu.common import Broadcast
    app.conf.task_queues = [Queue(app.conf.task_default_queue), Broadcast({exchange!r})]
"""


def subscriptions(url: str) -> int:
    """Return how many exchanges the clients of a database listen to."""
    with redis.Redis.from_url(url) as client:
        database = client.connection_pool.connection_kwargs.get("db", 0)
        return sum(int(one["psub"]) for one in client.client_list() if int(one["db"]) == database)


@pytest.mark.parametrize("broker", ["redis_url", pytest.param("amqp_url", marks=pytest.mark.amqp)])
def test_each_worker_executes_a_broadcast_once(
    broker: str, redis_url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    exchange, run_id, fire_ms = f"all-{uuid4().hex[:8]}", str(uuid4()), now_ms()
    conf = {"broker_url": request.getfixturevalue(broker), "result_backend": redis_url}
    with ClaimProject(tmp_path, conf, extra=QUEUES.format(exchange=exchange)) as project:
        workers = [project.pool_worker(), project.pool_worker(pool="threads")]
        project.app.conf.task_queues = [Broadcast(exchange)]
        if broker == "redis_url":  # Redis keeps no broadcast for a worker that has not subscribed yet
            project.wait_for(lambda: subscriptions(redis_url) >= len(workers), "the subscriptions of both workers")
        for _ in range(2):
            # Celery declares no broadcast, and Redis has to know what the exchange is
            fanout = Exchange(exchange, "fanout")
            project.publish("record", run_id, fire_ms=fire_ms, queue=exchange, declare=[fanout])
        project.until_settled(2 * len(workers))
        assert project.count("start") == {run_id: len(workers)}
        for worker in workers:
            assert sum("dropped (other)" in line for line in worker.lines) == 1
