"""Both lanes in a real beat: what the log and the status say, thousands of runs, kills in the middle of batches."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import redis
from services import PrivateRedis, TcpProxy
from support.processes import DjangoProject, redis_conf

from celery_wheelbeat import run_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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
    by_job = fires_by_job(found)
    assert len(by_job) == monitors
    last_ms = min(max(fires) for fires in by_job.values())
    expected = [at for at in seconds(gaps[0][1], last_ms) if not any(begin < at <= end for begin, end in gaps)]
    assert len(expected) >= 4
    assert lost(by_job, expected) == {}


def seconds(begin_ms: int, end_ms: int) -> range:
    """Fire times of a monitor of one second: the first whole second is left to the start."""
    return range(-(-begin_ms // 1000) * 1000 + 1000, end_ms, 1000)


def fires_by_job(found: list[dict[str, Any]]) -> dict[str, Counter[int]]:
    """How often each fire time of each job is there; every run has the id that anybody can compute."""
    by_job: dict[str, Counter[int]] = {}
    for one in found:
        assert one["id"] == run_id(_key(one), one["wheelbeat_fire_ms"], "tests")
        by_job.setdefault(one["periodic_task_name"], Counter())[one["wheelbeat_fire_ms"]] += 1
    return by_job


def lost(by_job: dict[str, Counter[int]], expected: Sequence[int]) -> dict[str, list[int]]:
    """Fire times that are not there, by job."""
    return {name: missing for name, fires in by_job.items() if (missing := [at for at in expected if at not in fires])}


def _key(headers: dict[str, Any]) -> str:
    return f"monitor:{int(headers['argsrepr'].strip('[]')) + 1}"


def test_two_beats_on_one_redis_send_the_same_runs_and_lose_none(tmp_path: Path, broker: PrivateRedis) -> None:
    """Each of them sends every run: the union holds what one would have sent, even where the other has stopped."""
    monitors = 500
    with DjangoProject(tmp_path, conf_of(broker)) as project:
        project.django(MANY % {"count": monitors} + '    Monitor.objects.update(misfire="all")\n')
        beats, loaded_ms = [], []
        for number in range(2):
            beat = project.beat("-s", str(tmp_path / f"schedule-{number}"))
            beat.wait_for("jobs loaded")
            beats.append(beat)
            loaded_ms.append(round(time.time() * 1000))
        project.wait_for(lambda: newest_ms(broker) >= loaded_ms[1] + 4_000, "some seconds of both")
        assert beats[0].stop() == 0
        alone_ms = round(time.time() * 1000)
        project.wait_for(lambda: newest_ms(broker) >= alone_ms + 2_000, "some seconds of one")
        assert beats[1].stop() == 0
        found = runs_in(broker)
    assert len({one["wheelbeat_nonce"] for one in found}) == len(found)
    by_job = fires_by_job(found)
    assert len(by_job) == monitors
    expected = seconds(loaded_ms[0], min(max(fires) for fires in by_job.values()))
    assert len(expected) >= 6
    assert lost(by_job, expected) == {}
    assert all(times <= 2 for fires in by_job.values() for times in fires.values())
    twice = [at for at in expected if all(fires[at] == 2 for fires in by_job.values())]
    assert len(twice) >= 2, "both sent all of them"


def test_what_sigterm_finds_on_its_way_is_reported_and_sent_by_the_next_start(
    tmp_path: Path, broker: PrivateRedis
) -> None:
    """The broker stops answering in the middle of a send; the beat ends all the same, and says what it leaves."""
    monitors = 300
    with TcpProxy(broker.port) as proxy:
        conf = {**conf_of(broker), "broker_url": f"redis://127.0.0.1:{proxy.port}/0", "wheelbeat_restart_lookback": 60}
        with DjangoProject(tmp_path, conf) as project:
            project.django(MANY % {"count": monitors} + '    Monitor.objects.update(misfire="all")\n')
            beat = project.beat()
            beat.wait_for("jobs loaded")
            loaded_ms = round(time.time() * 1000)
            project.wait_for(lambda: newest_ms(broker) >= loaded_ms + 2_000, "two seconds of runs")
            proxy.stall()
            since_ms = round(time.time() * 1000) + 1_500  # an earlier report may count runs that were confirmed since
            project.wait_for(lambda: in_flight(tmp_path, since_ms) >= monitors, "a batch on its way")
            assert beat.stop() == 0, beat.output
            (left,) = re.findall(r"Stopped; \d+ runs sent, (\d+) left for the next start", beat.output)
            assert int(left) >= monitors
            proxy.pass_through()
            again = project.beat()
            again.wait_for("jobs loaded")
            again_ms = round(time.time() * 1000)
            project.wait_for(lambda: newest_ms(broker) >= again_ms + 2_000, "two more seconds of runs")
            assert again.stop() == 0, again.output
            found = runs_in(broker)
    by_job = fires_by_job(found)
    assert len(by_job) == monitors
    expected = seconds(loaded_ms, min(max(fires) for fires in by_job.values()))
    assert expected[-1] > again_ms
    assert lost(by_job, expected) == {}


def in_flight(folder: Path, since_ms: int) -> int:
    """How many runs are on their way by the last report of the beat; 0 if that is older than ``since_ms``."""
    with closing(sqlite3.connect(folder / "db.sqlite3", timeout=30)) as connection:
        row = connection.execute("SELECT status FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 1").fetchone()
    status = json.loads(row[0]) if row else {"at_ms": 0}
    return int(status["destinations"]["broker"]["in_flight"]) if status["at_ms"] >= since_ms else 0
