"""Runs from real beats: two at the same time, and jobs that say that their runs must not overlap."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from claim_project import ClaimProject
from processes import DjangoProject, redis_conf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.redis]


def entries(count: int) -> dict[str, object]:
    """Return a ``beat_schedule`` of ``count`` entries that run every second."""
    return {f"each-second-{number}": {"task": "proj.record", "schedule": 1.0} for number in range(count)}


def assert_two_beats_double_nothing(
    redis_url: str, folder: Path, *, count: int, copies: int, timeout_s: float = 60, every_s: float = 0.2
) -> None:
    """Let two beats send the same runs until ``copies`` were dropped; every run has executed once."""
    conf = {
        "broker_url": redis_url,
        "result_backend": redis_url,
        "task_ignore_result": True,
        "wheelbeat_namespace": "two-beats",
        "beat_schedule": entries(count),
    }
    with ClaimProject(folder, conf) as project:
        for _ in range(2):
            project.pool_worker()
        beats = [project.beat("-s", str(folder / name)) for name in ("first", "second")]
        project.until(lambda: project.logged("dropped (") >= copies, f"{copies} dropped copies", timeout_s, every_s)
        for beat in beats:
            assert beat.stop() == 0
        received = -1

        def quiet() -> bool:
            nonlocal received
            before, received = received, project.logged(" received")
            return before == received == len(project.lines("done")) + project.logged("dropped (")

        project.until(quiet, "an empty queue", timeout_s, every_s)
        executions = project.count("start")
        assert len(executions) > count
        assert set(executions.values()) == {1}


def test_two_beats_double_nothing(redis_url: str, tmp_path: Path) -> None:
    assert_two_beats_double_nothing(redis_url, tmp_path, count=20, copies=60)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_two_beats_at_1000_runs_a_second_double_nothing(redis_url: str, tmp_path: Path) -> None:
    assert_two_beats_double_nothing(redis_url, tmp_path, count=1_000, copies=120_000, timeout_s=1_500, every_s=10)


SLOW = """
    @app.task(bind=True, wheelbeat={"lease_s": 3, "wait_s": 0.5})
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
            lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
            return sorted((began, ended) for name, _, began, ended in lines if name == job)

        project.wait_for(
            lambda: all(len(spans(job)) >= 2 for job in ("allow", "skip", "queue_one")), "two runs of each monitor"
        )
        assert beat.stop() == 0
        overlaps = {
            job: sum(began < ended for (_, ended), (began, _) in pairwise(spans(job)))
            for job in ("allow", "skip", "queue_one")
        }
        assert overlaps["allow"] > 0
        assert (overlaps["skip"], overlaps["queue_one"]) == (0, 0)
        assert "skipped: another execution holds the lease job:" in worker.output
        assert "waits: another execution holds the lease job:" in worker.output
