"""A real worker takes messages of the fast lane: every id, in order, once; priorities; expired ones are left."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
from definitions import Job
from fast_bench import MINUTE_MS, START_MS, FastBench, numbered
from lanes import make_app
from processes import Project, redis_conf
from services import PrivateRedis

from celery_wheelbeat.runs import run_id

if TYPE_CHECKING:
    from pathlib import Path

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


def test_priorities_and_expiry_are_the_workers_business_as_ever(tmp_path: Path) -> None:
    with PrivateRedis() as server, Project(tmp_path, redis_conf(server.url, broker_transport_options={})) as project:
        with FastBench(make_app(server.url)) as bench:
            for number, options in enumerate(({"priority": 9}, {"priority": 0}, {"expires": 0.01})):
                route = bench.route("proj.note", json.dumps(options))
                bench.load(numbered(3, route, first=10 * number))
            bench.pass_minutes()
            bench.drain()
            assert bench.slow_runs == 0
        worker = project.worker("--prefetch-multiplier", "1")
        runs = project.wait_for_runs(lambda runs: len(runs) >= 6, "the runs that have not expired")
        assert [run.args[0] // 10 for run in runs] == [1, 1, 1, 0, 0, 0]
        worker.wait_for("Discarding revoked task")
