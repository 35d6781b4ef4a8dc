"""The second account of a shard: what it keeps of edits is bounded, and counted together it comes to the same."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from support.engine.definitions import Job, changes_of

from celery_wheelbeat.engine import EngineConfig, recount
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.schedules.cron import Cron, CronTable

START_MS = 1_764_000_000_000
DAY_MS = 86_400_000


def engine_of(shards: int = 1) -> Engine:
    engine = Engine(EngineConfig(shards=shards), CronTable(), Ledger())
    engine.start(START_MS)
    return engine


def test_edits_one_by_one_are_not_kept_until_the_next_sweep() -> None:
    """A sweep comes to each of 256 shards every nine minutes; at 1,600 edits a second that is 800,000 of them."""
    engine = engine_of()
    for number in range(2_000):
        engine.apply(changes_of(engine.crons, Job(number % 50, interval_ms=10_000 + 1_000 * (number % 7))))
        engine.advance(START_MS + 20 * number)
        pending = engine.shards[0].recount._pending
        assert len(pending) < recount.PENDING_CHANGES
        assert sum(len(change.rows.ids) for change in pending) < recount.PENDING_ROWS
    report = engine.sweep(0)
    assert report.healthy, report.counts


@pytest.mark.parametrize("pending", [1, 2, 7, 10_000])
def test_changes_counted_together_come_to_the_same(pending: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recount, "PENDING_CHANGES", pending)
    draw = random.Random(3)
    engine = engine_of()
    kinds = [
        Job(0, interval_ms=10_000),
        Job(0, interval_ms=10_000, start_ms=START_MS + 40_000, end_ms=START_MS + 300_000),
        Job(0, interval_ms=400 * DAY_MS),
        Job(0, interval_ms=20 * DAY_MS + 500),
        Job(0, interval_ms=60_000, incident_interval_ms=5_000, incident_until_ms=START_MS + 200_000),
        Job(0, cron=Cron("* * * * *", "UTC")),
        Job(0, interval_ms=7_000, enabled=False),
    ]
    ids = [1, 2, 3, 2**33, 2**62, -5, -(2**60)]
    for second in range(600):
        jobs = {job_id: replace(draw.choice(kinds), id=job_id) for job_id in draw.sample(ids, draw.randint(1, 4))}
        gone = [job_id for job_id in ids if job_id not in jobs and draw.random() < 0.2]
        engine.apply(changes_of(engine.crons, *jobs.values(), deleted=gone))
        engine.advance(START_MS + second * 1_000)
    report = engine.sweep(0)
    assert report.healthy, report.counts


def test_a_change_that_nobody_made_is_still_found() -> None:
    engine = engine_of()
    for number in range(3 * recount.PENDING_CHANGES):
        engine.apply(changes_of(engine.crons, Job(number % 5, interval_ms=10_000)))
        engine.advance(START_MS + 1_000 * number)
    assert engine.sweep(0).healthy
    engine.shards[0].table.columns.interval[np.array([2])] = 20_000
    engine.apply(changes_of(engine.crons, Job(1, interval_ms=30_000)))
    assert not engine.sweep(0).healthy
