"""Weeks of a site whose people replace a tenth of their monitors a day: memory stays flat, the watchdog finds nothing.

Engine, backlog and all tables on a simulated clock. Each day has an outage of the broker.
"""

from __future__ import annotations

import gc
import random
import tracemalloc
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.engine.clockwork import row

from celery_wheelbeat.dispatch.backlog import Backlog
from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.definitions import ChangeBatch, Misfire, misfire_of
from celery_wheelbeat.schedules.cron import CronTable

if TYPE_CHECKING:
    from celery_wheelbeat.jobs.rows import MonitorRow

START_MS = 1_900_000_000_000
STEP_MS = 240_000
WHOLE_DAY = 86_400_000 // STEP_MS
SHORT_DAY = WHOLE_DAY // 72
"""In steps; with as much churn as a whole one."""
CHURN_A_DAY = 0.10
OUTAGE = range(3, 5)
"""Steps of each day in which the broker takes nothing."""
BACKLOG_MAX = 200
SHARDS = 2


class Site:
    """People, a beat without its edges, and a broker that is up most of the time."""

    def __init__(self, monitors: int, steps_a_day: int) -> None:
        self.chance = random.Random(1)
        self.ids = count(1)
        self.crons, self.ledger = CronTable(), Ledger()
        self.engine = Engine(EngineConfig(shards=SHARDS), self.crons, self.ledger)
        self.backlog = Backlog(self.ledger, limit=BACKLOG_MAX, keep_all=self._keeps_all)
        self.now_ms = START_MS
        self.engine.start(self.now_ms)
        self.alive = {one.id: one for one in (self.invent() for _ in range(monitors))}
        compiled = compile_rows(list(self.alive.values()), crons=self.crons)
        self.engine.load(compiled.batch, {})
        self.steps_a_day = steps_a_day
        self.edits_a_step = max(1, round(monitors * CHURN_A_DAY / steps_a_day))
        self.sweeps = 0

    def invent(self) -> MonitorRow:
        """A monitor of any kind, with arguments of any length."""
        number, chance = next(self.ids), self.chance
        when = chance.choice(
            [
                {"interval_ms": chance.choice([60_000, 300_000, 3_600_000, 86_400_000])},
                {"interval_ms": 3_600_000, "end_at_ms": self.now_ms + chance.randrange(1, 200_000_000)},
                {"cron": chance.choice(["*/5 * * * *", "0 3 * * *", "30 2 * * 1"]), "timezone": "Europe/Berlin"},
                {"once_at_ms": self.now_ms + chance.randrange(1, 200_000_000)},
            ]
        )
        texts = {"kwargs": '{"text": "' + "x" * chance.randrange(400) + '"}', "queue": chance.choice([None, "a", "b"])}
        misfire = chance.choice(["auto", "skip", "latest", "all"])
        return row(f"m{number}", id=number, effective_from_ms=self.now_ms, misfire=misfire, **when, **texts)

    def change(self) -> None:
        """Replace some monitors, edit as many, pause and resume some."""
        gone = self.chance.sample(sorted(self.alive), 2 * self.edits_a_step)
        deleted, edited = gone[: self.edits_a_step], gone[self.edits_a_step :]
        for job_id in deleted:
            del self.alive[job_id]
        for job_id in edited:
            self.alive[job_id] = self.invent()._replace(
                id=job_id, name=f"m{job_id}", enabled=self.chance.random() < 0.9
            )
        for _ in deleted:
            fresh = self.invent()
            self.alive[fresh.id] = fresh
            edited.append(fresh.id)
        rows = [self.alive[job_id] for job_id in edited]
        compiled = compile_rows(rows, crons=self.crons)
        assert compiled.refused == {}
        self.engine.apply(ChangeBatch(compiled.batch, np.array(deleted, np.int64)))

    def pass_time(self, step: int) -> None:
        """Change something, let four minutes pass, send what is due, sweep one shard."""
        self.change()
        self.now_ms += STEP_MS
        while not self.engine.caught_up(self.now_ms):
            for due in self.engine.advance(self.now_ms):
                self.backlog.offer(due)
        if step in OUTAGE:
            self.backlog.squeeze()
        else:
            while self.backlog.waiting:
                self.backlog.confirm([self.backlog.take(1_000).token])
        self.sweeps += 1
        report = self.engine.sweep(self.sweeps % SHARDS)
        assert report.healthy, report
        assert self.ledger.difference(self.backlog.pending) == 0

    def live(self, days: int) -> list[int]:
        """Let days pass; returns the bytes in use after each."""
        bytes_after = []
        for _ in range(days):
            for step in range(self.steps_a_day):
                self.pass_time(step)
            gc.collect()
            bytes_after.append(tracemalloc.get_traced_memory()[0])
        return bytes_after

    def _keeps_all(self, ids: np.ndarray) -> np.ndarray:
        views = self.engine.lookup(ids)
        return np.array([view is not None and misfire_of(view.flags) is Misfire.ALL for view in views], np.bool_)


def live(monitors: int, days: int, steps_a_day: int) -> None:
    """Pages of texts fill and are emptied again, so memory rises and falls; it must come down to where it was."""
    tracemalloc.start()
    try:
        site = Site(monitors, steps_a_day)
        bytes_after = site.live(days)
    finally:
        tracemalloc.stop()
    settled = bytes_after[days // 6 :]
    early, late = min(settled[: len(settled) // 2]), min(settled[len(settled) // 2 :])
    assert late < early * 1.08, bytes_after
    assert len(site.engine) <= len(site.alive) == monitors
    assert site.ledger.skipped["backlog"] > 0
    assert site.ledger.sent > 3 * monitors


def test_memory_is_flat_and_the_watchdog_finds_nothing() -> None:
    live(1_000, 18, SHORT_DAY)


@pytest.mark.soak
def test_memory_is_flat_over_a_week_of_a_large_site() -> None:
    live(20_000, 8, WHOLE_DAY)
