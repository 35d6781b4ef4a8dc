"""Runs from real beats: two at the same time, and jobs that say that their runs must not overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from claim_project import ClaimProject

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.redis]


def entries(count: int) -> dict[str, object]:
    """Return a ``beat_schedule`` of ``count`` entries that run every second."""
    return {f"each-second-{number}": {"task": "proj.record", "schedule": 1.0} for number in range(count)}


def assert_two_beats_double_nothing(redis_url: str, folder: Path, *, count: int, copies: int) -> None:
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
        project.until(lambda: project.logged("dropped (") >= copies, f"{copies} dropped copies", timeout_s=300)
        for beat in beats:
            assert beat.stop() == 0
        received = -1

        def quiet() -> bool:
            nonlocal received
            before, received = received, project.logged(" received")
            return before == received == len(project.lines("done")) + project.logged("dropped (")

        project.until(quiet, "an empty queue")
        executions = project.count("start")
        assert len(executions) > count
        assert set(executions.values()) == {1}


def test_two_beats_double_nothing(redis_url: str, tmp_path: Path) -> None:
    assert_two_beats_double_nothing(redis_url, tmp_path, count=20, copies=60)


@pytest.mark.soak
def test_two_beats_at_1000_runs_a_second_double_nothing(redis_url: str, tmp_path: Path) -> None:
    assert_two_beats_double_nothing(redis_url, tmp_path, count=1_000, copies=120_000)
