"""Runs of one job that must not overlap: a run that takes longer than its interval, in the three ways."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from support.claims import ClaimProject, now_ms

from celery_wheelbeat.dispatch.messages.claim_headers import worker_headers
from celery_wheelbeat.worker.claims import State, claim_key
from celery_wheelbeat.worker.stores.choice import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_wheelbeat.worker.claims import Claim

pytestmark = [pytest.mark.processes, pytest.mark.redis, pytest.mark.postgres]


MINUTE_S = 60


@pytest.fixture
def project(redis_url: str, postgres_url: str, tmp_path: Path) -> ClaimProject:
    """Broker Redis; claims and leases in PostgreSQL. No worker yet."""
    return ClaimProject(tmp_path, {"broker_url": redis_url, "wheelbeat_dedup_url": postgres_url})


@pytest.fixture(scope="module")
def working(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaimProject]:
    """One worker of four pool processes for all tests that let it live; broker, claims and leases in Redis."""
    with ClaimProject(tmp_path_factory.mktemp("working"), {"broker_url": redis_url, "result_backend": redis_url}) as it:
        it.pool_worker(concurrency=4)
        yield it


class Job:
    """A job with an overlap choice of its own, whose runs a test publishes one after the other."""

    def __init__(self, project: ClaimProject, overlap: str, task: str = "short") -> None:
        self.project = project
        self.task = task
        self.headers = worker_headers(f"monitor:{uuid4().int % 10**9}", "tests", overlap=overlap)
        self.ids: list[str] = []
        self.fires: dict[str, int] = {}

    def due(self, length: float | str) -> str:
        """Publish a run that takes so many seconds, or until a gate is open."""
        run_id = str(uuid4())
        self.ids.append(run_id)
        self.fires[run_id] = now_ms()
        self.project.publish(self.task, run_id, fire_ms=self.fires[run_id], args=(length,), headers=self.headers)
        return run_id

    def claim_of(self, run_id: str) -> Claim | None:
        """Return what the result backend of the project keeps of a run's claim."""
        with closing(open_store(self.project.conf["result_backend"])) as store:
            return store.read(claim_key(run_id, self.fires[run_id], 0, 0))

    def logged(self, text: str) -> int:
        """Return how many log lines about runs of this job contain ``text``."""
        lines = [line for process in self.project.processes for line in list(process.lines) if text in line]
        return sum(any(run_id in line for run_id in self.ids) for line in lines)

    def outcome(self, run_id: str) -> str:
        """Wait until a run has ``start``ed, ``waits`` or was ``skipped``, and say which."""

        def seen() -> str:
            if self.project.count("start")[run_id]:
                return "start"
            logs = [line for process in self.project.processes for line in list(process.lines) if run_id in line]
            return next((word for word in ("skipped", "waits") for line in logs if word in line), "")

        self.project.until(lambda: bool(seen()), f"an outcome of {run_id}")
        return seen()

    def until_logged(self, run_id: str, text: str) -> None:
        """Wait for a log line about a run."""

        def seen() -> bool:
            lines = [line for process in self.project.processes for line in list(process.lines)]
            return any(run_id in line and text in line for line in lines)

        self.project.until(seen, f"{text!r} about {run_id}")

    def until_event(self, run_id: str, event: str) -> None:
        """Wait for ``start`` or ``done`` of a run."""
        self.project.until(lambda: self.project.count(event)[run_id] > 0, f"{event} of {run_id}")

    def spans(self) -> list[tuple[float, float]]:
        """Return start and end of every execution, in order."""
        started = {line.id: line.at_ms for line in self.project.lines("start") if line.id in self.ids}
        ended = {line.id: line.at_ms for line in self.project.lines("done") if line.id in self.ids}
        return sorted((at_ms, ended.get(run_id, float("inf"))) for run_id, at_ms in started.items())


def overlapping(spans: list[tuple[float, float]]) -> int:
    """Return how many executions began before the one before them had ended."""
    return sum(start < end for (_, end), (start, _) in pairwise(spans))


def test_allow_lets_runs_overlap(working: ClaimProject) -> None:
    job, gate = Job(working, "allow"), working.gate()
    runs = [job.due(gate), job.due(gate)]
    for event in ("start", "done"):
        for run_id in runs:
            job.until_event(run_id, event)
        working.open(gate)
    assert overlapping(job.spans()) == 1


def test_skip_drops_the_run_that_finds_one_running(working: ClaimProject) -> None:
    job, gate = Job(working, "skip", task="kept"), working.gate()
    first = job.due(gate)
    job.until_event(first, "start")
    second = job.due(gate)
    job.until_logged(second, "skipped")
    working.open(gate)
    job.until_event(first, "done")
    while job.outcome(third := job.due(0)) == "skipped":
        pass  # the lease is free a moment after the end, and not only after its hour
    assert working.count("start")[second] == 0
    claim = job.claim_of(second)
    assert claim is not None
    assert claim.state is State.SKIPPED
    fences = [line.more["fence"] for line in working.lines("start") if line.id in (first, third)]
    assert fences[0] < fences[1]


def test_skip_is_per_job_and_a_task_may_widen_it(working: ClaimProject) -> None:
    jobs = [Job(working, "skip"), Job(working, "skip")]
    runs = [job.due(1) for job in jobs]
    for job, run_id in zip(jobs, runs, strict=True):
        job.until_event(run_id, "done")
    wide = [Job(working, "allow", task="single"), Job(working, "allow", task="single")]
    gate = working.gate()
    first = wide[0].due(gate)
    wide[0].until_event(first, "start")
    second = wide[1].due(0)
    wide[1].until_logged(second, "skipped")
    working.open(gate)
    wide[0].until_event(first, "done")


@pytest.mark.parametrize("task", ["short", "short_late"])
def test_queue_one_keeps_one_waiting_and_skips_the_next(working: ClaimProject, task: str) -> None:
    assert_queue_one(working, task)


@pytest.mark.parametrize("task", ["short", "short_late"])
def test_queue_one_in_a_database(project: ClaimProject, task: str) -> None:
    with project:
        project.pool_worker(concurrency=4)
        assert_queue_one(project, task)


def assert_queue_one(working: ClaimProject, task: str) -> None:
    """Let a second run wait, a third find the place taken, and a fourth find everything free again."""
    job, gate = Job(working, "queue_one", task), working.gate()
    first = job.due(gate)
    job.until_event(first, "start")
    second = job.due(0)
    job.until_logged(second, "waits")
    third = job.due(0)
    job.until_logged(third, "skipped")
    working.open(gate)
    job.until_event(second, "done")
    assert overlapping(job.spans()) == 0
    assert [working.count("start")[run_id] for run_id in job.ids] == [1, 1, 0]
    fourth = job.due(0)
    job.until_event(fourth, "done")


@pytest.mark.parametrize("task", ["short", "short_late"])
def test_a_copy_of_a_waiting_run_is_dropped(working: ClaimProject, task: str) -> None:
    job, gate = Job(working, "queue_one", task), working.gate()
    first = job.due(gate)
    job.until_event(first, "start")
    second, fire_ms = str(uuid4()), 1_800_000_000_000
    job.ids.append(second)
    for _ in range(2):
        working.publish(job.task, second, fire_ms=fire_ms, args=(0,), headers=job.headers)
    job.until_logged(second, "dropped (other)")
    working.open(gate)
    job.until_event(second, "done")
    assert working.count("start")[second] == 1
    assert overlapping(job.spans()) == 0


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
@pytest.mark.parametrize(
    ("task", "seconds", "every_s"),
    [("short", 0.75, 0.5), pytest.param("record", 90, MINUTE_S, marks=[pytest.mark.soak, pytest.mark.timeout(900)])],
)
def test_a_task_that_takes_longer_than_its_interval(
    working: ClaimProject, overlap: str, task: str, seconds: float, every_s: float
) -> None:
    job = Job(working, overlap, task)
    pace = threading.Event()
    for _ in range(6):
        job.due(seconds)
        pace.wait(every_s)

    def settled() -> bool:
        ended = sum(working.count("done")[run_id] for run_id in job.ids)
        return ended + job.logged("skipped: another execution") == len(job.ids)

    working.until(settled, "the end of every run", timeout_s=6 * (seconds + every_s) + 30)
    spans = job.spans()
    waited = job.logged("waits: another execution")
    began = working.count("start")
    gaps_s = [(later - earlier) / 1_000 for (earlier, _), (later, _) in pairwise(spans)]
    match overlap:
        case "allow":
            assert len(spans) == 6
            assert overlapping(spans) > 0
        case "skip":
            assert 1 <= len(spans) < 6
            assert (overlapping(spans), waited) == (0, 0)
        case "queue_one":
            assert 2 <= len(spans) <= 6
            assert overlapping(spans) == 0
            assert waited > 0
    if every_s < MINUTE_S:
        return  # a busy machine may stretch a run of less than a second over several intervals, but not one of 90 s
    match overlap:
        case "allow":
            assert overlapping(spans) == 5, "every minute, two at a time"
        case "skip":
            assert [run_id for run_id in job.ids if began[run_id]] == job.ids[::2], "every second minute"
        case "queue_one":
            assert len(spans) >= 4
            assert all(seconds <= gap_s < 2 * every_s for gap_s in gaps_s), f"one right after the other: {gaps_s}"


def test_a_lease_is_prolonged_while_its_run_lives(working: ClaimProject) -> None:
    job = Job(working, "skip")
    first = job.due(8.5)  # more than twice the lease of this task
    job.until_event(first, "start")
    while working.count("done")[first] == 0:
        outcome = job.outcome(job.due(0))
        assert outcome == "skipped" or working.count("done")[first] == 1


def test_a_worker_that_dies_while_it_runs_frees_the_lease(project: ClaimProject) -> None:
    with project:
        worker = project.pool_worker()
        job = Job(project, "queue_one")
        first = job.due(60)
        job.until_event(first, "start")
        worker.kill()
        project.pool_worker()
        second = job.due(0)
        job.until_event(second, "done")
        assert project.count("done")[first] == 0  # acknowledged early: lost, as in Celery


def test_a_pool_process_that_dies_frees_the_lease(project: ClaimProject) -> None:
    with project:
        project.pool_worker()
        job = Job(project, "queue_one")
        first = job.due(60)
        job.until_event(first, "start")
        os.kill(project.lines("start")[0].pid, signal.SIGKILL)
        second = job.due(0)
        job.until_event(second, "done")


def test_a_worker_that_dies_while_a_run_waits_frees_the_place(project: ClaimProject) -> None:
    with project:
        worker = project.pool_worker("--purge")
        job = Job(project, "queue_one")
        first = job.due(60)
        job.until_event(first, "start")
        second = job.due(0)
        job.until_logged(second, "waits")
        worker.kill()
        project.pool_worker("--purge", concurrency=4)  # nothing of the old queue is left: the waiting message is gone
        while job.outcome(job.due(20)) == "skipped":
            pass  # the lease of the run that died has not ended
        while job.outcome(job.due(0)) == "skipped":
            pass  # nor has the place of the run that will never come back
        assert job.outcome(job.ids[-1]) == "waits"
        assert project.count("done")[second] == 0
