"""Both lanes in a real beat: what the log and the status say, thousands of runs, kills in the middle of batches."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis
from processes import DjangoProject, redis_conf
from services import PrivateRedis

from celery_wheelbeat import run_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes

MANY = """
    Monitor.objects.bulk_create(
        Monitor(name=f"check {n}", task="proj.note", interval_ms=1000, args=f"[{n}]") for n in range(%(count)d)
    )
"""


@pytest.fixture
def broker() -> Iterator[PrivateRedis]:
    with PrivateRedis(appendonly="yes", appendfsync="always") as server:
        yield server


def runs_in(server: PrivateRedis) -> list[dict[str, Any]]:
    """Headers of every message in the queue ``celery``."""
    with redis.Redis.from_url(server.url) as client:
        return [json.loads(message)["headers"] for message in client.lrange("celery", 0, -1)]


def length(server: PrivateRedis) -> int:
    """How many messages are in the queue ``celery``."""
    with redis.Redis.from_url(server.url) as client:
        return int(client.llen("celery"))


def newest_ms(server: PrivateRedis) -> int:
    """Fire time of the newest message in the queue ``celery``, 0 while it is empty."""
    with redis.Redis.from_url(server.url) as client:
        message = client.lindex("celery", 0)
    return int(json.loads(message)["headers"]["wheelbeat_fire_ms"]) if message else 0


def conf_of(server: PrivateRedis, **more: Any) -> dict[str, Any]:
    return {**redis_conf(server.url, **more), "broker_transport_options": {}}


def test_the_log_says_who_takes_which_lane_and_workers_get_the_messages(tmp_path: Path, broker: PrivateRedis) -> None:
    with DjangoProject(tmp_path, conf_of(broker)) as project:
        project.django(
            """
            Monitor.objects.create(name="fast", task="proj.note", interval_ms=1000, args='["ä"]', expires_s=60)
            Monitor.objects.create(name="alone", task="proj.note", interval_ms=1000, overlap="skip")
            Monitor.objects.create(name="next", task="proj.note", interval_ms=1000, expires_next=True)
            """
        )
        project.worker()
        beat = project.beat()
        beat.wait_for("jobs take the fast lane")
        assert "expires at its next fire time" in beat.output
        beat.wait_for("Sending due task fast (proj.note)")
        runs = project.wait_for_runs(
            lambda runs: {run.name for run in runs} == {"fast", "alone", "next"}, "every monitor ran"
        )
        (first, *_) = [run for run in runs if run.name == "fast"]
        assert first.args == ["ä"]
        assert first.id == run_id("monitor:1", first.fire_ms or 0, "tests")
        assert beat.stop() == 0


@pytest.mark.parametrize("lives", [2, pytest.param(5, marks=pytest.mark.soak)])
def test_sigkill_in_the_middle_of_batches_loses_nothing(tmp_path: Path, broker: PrivateRedis, lives: int) -> None:
    """1,500 monitors every second; a kill leaves batches on their way, and the next start offers them again.

    ``misfire=all``: of others only the newest run is kept while the connection of a busy start takes its time.
    """
    monitors = 1500
    conf = conf_of(broker, wheelbeat_restart_lookback=60)  # however late a busy machine writes the mark
    with DjangoProject(tmp_path, conf) as project:
        project.django(MANY % {"count": monitors} + '    Monitor.objects.update(misfire="all")\n')
        gaps: list[tuple[int, int]] = []
        killed_ms = 0
        for life in range(lives):
            beat = project.beat()
            beat.wait_for("jobs loaded")
            gaps.append((killed_ms, round(time.time() * 1000)))
            until_ms = gaps[-1][1] + 3_000
            project.wait_for(lambda until_ms=until_ms: newest_ms(broker) >= until_ms, "three seconds of new runs")  # type: ignore[misc]
            if life < lives - 1:
                beat.send(signal.SIGKILL)
                killed_ms = round(time.time() * 1000)
                beat.wait()
        assert beat.stop() == 0, beat.output
        found = runs_in(broker)
    by_job: dict[str, set[int]] = {}
    for one in found:
        assert one["id"] == run_id(_key(one), one["wheelbeat_fire_ms"], "tests")
        by_job.setdefault(one["periodic_task_name"], set()).add(one["wheelbeat_fire_ms"])
    assert len(by_job) == monitors
    last_ms = min(max(fires) for fires in by_job.values())
    expected = [
        at
        for at in range(-(-gaps[0][1] // 1000) * 1000 + 1000, last_ms, 1000)
        if not any(begin < at <= end for begin, end in gaps)
    ]
    assert len(expected) >= 4
    lost = {name: missing for name, fires in by_job.items() if (missing := [at for at in expected if at not in fires])}
    assert lost == {}


def _key(headers: dict[str, Any]) -> str:
    return f"monitor:{int(headers['argsrepr'].strip('[]')) + 1}"


def test_two_beats_on_one_redis_send_the_same_runs(tmp_path: Path, broker: PrivateRedis) -> None:
    with DjangoProject(tmp_path, conf_of(broker)) as project:
        project.django(MANY % {"count": 500})
        beats = [project.beat("-s", str(tmp_path / f"schedule-{number}")) for number in range(2)]
        for beat in beats:
            beat.wait_for("jobs loaded")
        seen = length(broker)

        def both_have_sent() -> bool:
            ids = [one["id"] for one in runs_in(broker)]
            return len(ids) > seen + 3000 and len(set(ids)) < len(ids)

        project.wait_for(both_have_sent, "some seconds of both")
        assert [beat.stop() for beat in beats] == [0, 0]
        found = runs_in(broker)
    ids = [one["id"] for one in found]
    assert len(set(ids)) < len(ids)
    assert len({one["wheelbeat_nonce"] for one in found}) == len(found)
    assert all(one["id"] == run_id(_key(one), one["wheelbeat_fire_ms"], "tests") for one in found)
