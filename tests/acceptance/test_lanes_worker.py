"""A real worker takes messages of the fast lane: every id, in order, once; priorities; expired ones are left."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
from services import PrivateRedis
from support.engine.definitions import Job
from support.lanes.bench import MINUTE_MS, START_MS, FastBench, numbered
from support.lanes.fast_lane import make_app
from support.processes import Project, redis_conf

from celery_wheelbeat.jobs.identity import run_id

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", ["redis", "amqp"])
def test_a_worker_runs_everything_once_and_in_order(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, count: int
) -> None:
    url = str(request.getfixturevalue(f"{kind}_url"))
    options = {"global_keyprefix": f"{uuid.uuid4()}:"} if kind == "redis" else {}
    queue = {"broker_transport_options": options, "task_default_queue": f"worker-{count}"}
    with Project(tmp_path, redis_conf(url, worker_prefetch_multiplier=100, **queue)) as project:
        with FastBench(make_app(url, **queue)) as bench:
            bench.load([*_at_one_instant(count, bench.route("proj.note"))])
            bench.pass_minutes()
            bench.drain()
            assert bench.slow_runs == 0
        project.runs_file.touch()
        project.worker()
        with project.runs_file.open("rb") as lines:
            seen = [0]

            def enough() -> bool:
                seen[0] += lines.read().count(b"\n")
                return seen[0] >= count

            project.wait_for(enough, "every run", timeout_s=30 + count / 100)
        runs = project.runs()
        by_shard = sorted(range(count), key=lambda number: (number % 256, number))  # the order of one slot of the wheel
        assert [run.args for run in runs] == [[number] for number in by_shard]
        assert [run.id for run in runs] == [
            run_id(f"monitor:{number}", START_MS + MINUTE_MS, "tests") for number in by_shard
        ]


def _at_one_instant(count: int, route: int) -> list[Job]:
    return [
        Job(id=number, interval_ms=MINUTE_MS, offset_ms=0, route_index=route, payload=b"[[%d], {}]" % number)
        for number in range(count)
    ]


OPTIONS: tuple[dict[str, float], ...] = ({"priority": 9}, {"priority": 0}, {"expires": 0.01})


def _send_with_options(app: Celery) -> None:
    """Send three runs with each of ``OPTIONS``; their arguments begin at 0, 10 and 20."""
    with FastBench(app) as bench:
        for number, options in enumerate(OPTIONS):
            bench.load(numbered(3, bench.route("proj.note", json.dumps(options)), first=10 * number))
        bench.pass_minutes()
        bench.drain()
        assert bench.slow_runs == 0


def test_priorities_and_expiry_are_the_workers_business_as_ever(tmp_path: Path) -> None:
    with PrivateRedis() as server, Project(tmp_path, redis_conf(server.url, broker_transport_options={})) as project:
        _send_with_options(make_app(server.url))
        worker = project.worker("--prefetch-multiplier", "1")
        runs = project.wait_for_runs(lambda runs: len(runs) >= 6, "the runs that have not expired")
        assert [run.args[0] // 10 for run in runs] == [1, 1, 1, 0, 0, 0]
        worker.wait_for("Discarding revoked task")


def test_priorities_and_expiry_on_rabbitmq(tmp_path: Path, amqp_url: str) -> None:
    """The greatest priority first, where the queue has priorities; what has expired is run by nobody."""
    queue = {"task_default_queue": "worker-priorities", "task_queue_max_priority": 10}
    with Project(tmp_path, redis_conf(amqp_url, broker_transport_options={}, **queue)) as project:
        app = make_app(amqp_url, **queue)
        _send_with_options(app)
        worker = project.worker("--prefetch-multiplier", "1")
        project.wait_for_runs(lambda runs: len(runs) >= 6, "the runs that have not expired")
        with app.connection_for_read() as connection:
            bound = app.amqp.queues["worker-priorities"](connection.default_channel)
            project.wait_for(lambda: not bound.queue_declare(passive=True).message_count, "an empty queue")
        worker.stop()
        assert [run.args[0] // 10 for run in project.runs()] == [0, 0, 0, 1, 1, 1]
