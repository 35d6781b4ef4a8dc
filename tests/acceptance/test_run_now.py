"""Run now and explain, in real processes: a double click is one run, and both work without a beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.processes import DjangoProject, redis_conf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes


def test_a_double_click_runs_once_and_a_second_request_again(tmp_path: Path, redis_url: str) -> None:
    conf = redis_conf(redis_url, wheelbeat_namespace=None, result_backend=redis_url)
    with DjangoProject(tmp_path, conf) as project:
        project.worker()
        printed = project.django(
            """
            import time

            import proj
            from celery_wheelbeat.commands.run_now import new_request

            monitor = Monitor.objects.create(
                name="paused", task="proj.note", interval_ms=86_400_000, args="[7]", enabled=False, headers='{"h": 1}'
            )
            request = new_request(time.time_ns() // 1_000_000)
            print(monitor.run_now(request), monitor.run_now(request), monitor.run_now())
            """
        )
        first, twin, other = printed.split()
        assert first == twin != other
        ended = project.celery("wheelbeat", "run", "paused")
        assert ended.wait() == 0, ended.output
        last = ended.lines[-1].split()[0]
        runs = project.wait_for_runs(lambda runs: last in {run.id for run in runs}, "the last run")
        assert sorted(run.id for run in runs) == sorted([first, other, last])
        for run in runs:
            assert (run.name, run.args, run.beat) == ("paused", [7], True)
            assert "h" in run.headers
        explained = project.celery("wheelbeat", "explain", "paused")
        assert explained.wait() == 0, explained.output
        for line in ("job        monitor:1, task proj.note", "disabled: nothing is sent", "none has reported"):
            assert line in explained.output
