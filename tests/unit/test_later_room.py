"""One-off runs beyond ``wheelbeat_max_jobs`` wait until there is room; none vanishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.engine.definitions import Job, changes_of

from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.definitions import Route
from celery_wheelbeat.later.checks import Checked, DueRun
from celery_wheelbeat.later.feed import Held, ReadRuns
from celery_wheelbeat.later.in_wheel import LaterRuns
from celery_wheelbeat.later.open_seconds import Resume
from celery_wheelbeat.schedules.cron import CronTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

pytestmark = pytest.mark.promise("every-due-run-is-accounted-for")

NOW_MS = 1_764_000_000_000
NOW_S = NOW_MS // 1000


class Feed:
    """What a feed hands over, given by the test."""

    counts = None

    def __init__(self) -> None:
        self.reads: list[ReadRuns] = []
        self.held = Held(0, 0)
        self.settled_s = 0

    def take(self) -> Sequence[ReadRuns]:
        reads, self.reads = self.reads, []
        return reads

    def read(self, *runs: DueRun, cancelled: Sequence[str] = ()) -> None:
        self.reads.append(ReadRuns(Checked(runs, cancelled, ()), Resume(NOW_S + 60, NOW_S + 60, None), 0))


class Nobody:
    """No run waits in a backlog: each is sent as soon as it is handed out."""

    def holds(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.zeros(len(ids), np.bool_)

    def drop(self, ids: NDArray[np.int64], _reason: str) -> int:
        return len(ids)


def run_in(seconds: int) -> DueRun:
    return DueRun(f"run {seconds}", NOW_S + seconds, NOW_MS + 1_000 * seconds, Route("t"), b"[[],{}]")


@pytest.mark.parametrize("monitors", [0, 2, 3])
def test_runs_beyond_the_limit_are_sent_when_there_is_room(monitors: int) -> None:
    crons, ledger, feed, ids = CronTable(), Ledger(), Feed(), {}
    engine = Engine(EngineConfig(shards=4, max_jobs=3), crons, ledger)
    engine.start(NOW_MS)
    later = LaterRuns(feed, Nobody(), ledger, ids, room=lambda: 3 - len(engine))  # type: ignore[arg-type]
    engine.apply(changes_of(crons, *(Job(number, interval_ms=3_600_000) for number in range(monitors))))
    feed.read(*(run_in(seconds) for seconds in range(1, 9)))
    feed.read(cancelled=["run 8"])
    sent: list[str] = []
    for second in range(1, 20):
        if second == 12:
            engine.apply(changes_of(crons, deleted=range(monitors)))
        later.apply_reads(engine.apply)
        for batch in engine.advance(NOW_MS + 1_000 * second):
            sent += [ids[job_id] for job_id in batch.ids.tolist() if job_id in ids]
        unsent = 7 - len(sent)
        resume = later.resume()
        assert resume is not None
        assert unsent == 0 or resume.closed_s < NOW_S + 60
        later.remove_settled(engine.cursor_ms, float(second), engine.apply)
        later.apply_reads(engine.apply)
        assert feed.held.runs == unsent
    assert sorted(sent) == [f"run {seconds}" for seconds in range(1, 8)]
    assert engine.stats().refused == 0
    assert ledger.expected >= 7
