"""Runs from real beats: two at the same time, and jobs that say that their runs must not overlap."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import redis
from support.claims import ClaimProject
from support.processes import DjangoProject, redis_conf

if TYPE_CHECKING:
    from pathlib import Path

    from support.processes import Process

pytestmark = [pytest.mark.processes, pytest.mark.redis]


def conf_of_two_beats(redis_url: str, count: int, **more: object) -> dict[str, object]:
    """Return the settings of beats whose ``count`` entries run every second."""
    task = more.pop("task", "proj.record")
    return {
        "broker_url": redis_url,
        "result_backend": redis_url,
        "task_ignore_result": True,
        "wheelbeat_namespace": "two-beats",
        "beat_schedule": {f"each-second-{number}": {"task": task, "schedule": 1.0} for number in range(count)},
        **more,
    }


@pytest.mark.promise("same-run-same-id")
def test_two_beats_double_nothing(redis_url: str, tmp_path: Path) -> None:
    count, copies = 20, 60
    with ClaimProject(tmp_path, conf_of_two_beats(redis_url, count)) as project:
        workers = [project.pool_worker() for _ in range(2)]
        beats = [project.beat("-s", str(tmp_path / name)) for name in ("first", "second")]
        project.until(lambda: project.logged("dropped (") >= copies, f"{copies} dropped copies")
        stop_all(beats)
        until_drained(project, redis_url)
        stop_all(workers)
        assert waiting_at(project, redis_url) == 0
        executions = project.count("start")
        assert len(executions) > count
        assert set(executions.values()) == {1}


def stop_all(processes: list[Process]) -> None:
    """End processes in an orderly way, one after the other."""
    for process in processes:
        assert process.stop() == 0


def waiting_at(project: ClaimProject, redis_url: str) -> int:
    """Return how many messages are queued at the broker, or delivered and not acknowledged."""
    with redis.Redis.from_url(redis_url) as broker:
        return int(broker.llen(project.conf["task_default_queue"]) + broker.hlen("unacked"))


def until_drained(project: ClaimProject, redis_url: str, **patience: float) -> None:
    """Wait until the workers have taken every message; nobody publishes any more."""
    project.until(lambda: waiting_at(project, redis_url) == 0, "an empty queue", **patience)


TALLY = """
    import logging
    from celery.signals import worker_process_init

    for chatty in ("celery.worker.strategy", "celery.app.trace", "celery_wheelbeat.worker.lifecycle.admission"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

    @worker_process_init.connect
    def open_tally(**_):
        global tally_fd
        tally_fd = os.open("tally", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @app.task(bind=True)
    def tally(self):
        os.write(tally_fd, self.request.id.encode() + b"\\n")
"""
"""A task that does nothing but count: the worker is what limits this test."""

SLOWEST_DRAIN = 40
"""Messages per second that two workers on a busy machine take at the least; only a deadline depends on it."""


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_two_beats_at_1000_runs_a_second_double_nothing(redis_url: str, tmp_path: Path) -> None:
    runs = 120_000
    more = {"task": "proj.tally", "worker_enable_remote_control": True, "worker_prefetch_multiplier": 64}
    with ClaimProject(tmp_path, conf_of_two_beats(redis_url, 1_000, **more), extra=TALLY) as project:
        workers = [project.pool_worker() for _ in range(2)]
        beats = [project.beat("-s", str(tmp_path / name)) for name in ("first", "second")]
        marks = [tmp_path / "first.wheelbeat", tmp_path / "second.wheelbeat"]
        project.until(lambda: all(mark.exists() for mark in marks), "the marks of both beats")
        together_ms = max(mark_of(mark) for mark in marks)
        overlap_ms = runs + 1_000
        project.until(
            lambda: min(mark_of(mark) for mark in marks) >= together_ms + overlap_ms, "two minutes", timeout_s=3_600
        )
        stop_all(beats)
        began_s, queued = time.monotonic(), waiting_at(project, redis_url)
        until_drained(project, redis_url, timeout_s=60 + queued / SLOWEST_DRAIN, every_s=1)
        rate = queued / (time.monotonic() - began_s)

        def counted() -> Counter[str]:
            replies = project.app.control.broadcast("wheelbeat_claims", reply=True, timeout=20, limit=len(workers))
            return sum((Counter(answer["counters"]) for reply in replies for answer in reply.values()), Counter())

        def executions() -> list[str]:
            return (tmp_path / "tally").read_text().split()

        project.until(lambda: counted()["elected"] == len(executions()), "the last counts", every_s=1)
        counters = counted()
        stop_all(workers)
        assert waiting_at(project, redis_url) == 0
        found = (
            f"{len(executions())} runs, {dict(counters)}; {queued} messages left by the beats, drained at {rate:.0f}/s"
        )
        logging.getLogger(__name__).info(found)
        assert len(set(executions())) == len(executions()), found
        assert counters.keys() == {"elected", "dropped_other"}, found
        assert min(counters.values()) >= runs, found


def mark_of(file: Path) -> int:
    """Return up to which fire time every run of a beat is confirmed."""
    return min(mark["mark_ms"] for mark in json.loads(file.read_text())["marks"].values())


SLOW = """
    @app.task(bind=True, wheelbeat={"wait_s": 0.5})
    def slow(self, job):
        began = time.time()
        time.sleep(1.2)
        with open("spans.jsonl", "a") as out:
            out.write(json.dumps([job, self.request.id, began, time.time()]) + "\\n")
"""


def test_the_choice_of_a_monitor_reaches_the_workers(redis_url: str, tmp_path: Path) -> None:
    with DjangoProject(tmp_path, redis_conf(redis_url, result_backend=redis_url), extra=SLOW) as project:
        project.django(
            """
            for overlap in ("allow", "skip", "queue_one"):
                Monitor.objects.create(
                    name=overlap, task="proj.slow", interval_ms=1000, overlap=overlap, args=f'["{overlap}"]'
                )
            """
        )
        worker = project.celery("worker", "-c", "8", "-l", "info")
        worker.wait_for(" ready.")
        worker.wait_for("Copies of runs are dropped; claims in result_backend (redis)")  # Django alone installs it
        beat = project.beat()

        def spans(job: str) -> list[tuple[float, float]]:
            file = tmp_path / "spans.jsonl"
            lines = file.read_text().split("\n")[:-1] if file.exists() else []
            return sorted((began, ended) for name, _, began, ended in map(json.loads, lines) if name == job)

        def overlaps(job: str) -> int:
            return sum(began < ended for (_, ended), (began, _) in pairwise(spans(job)))

        project.wait_for(
            lambda: min(len(spans(job)) for job in ("allow", "skip", "queue_one")) >= 2, "two runs of each monitor"
        )
        project.wait_for(lambda: overlaps("allow") > 0, "runs side by side of the monitor that allows it")
        worker.wait_for("skipped: another execution holds the lease job:")
        worker.wait_for("waits: another execution holds the lease job:")
        assert beat.stop() == 0
        assert (overlaps("skip"), overlaps("queue_one")) == (0, 0)
