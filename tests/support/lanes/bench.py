"""Engine, both lanes and a real broker, without a scheduler around them: the test says what time it is."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from celery_wheelbeat.beat.assembly import assemble
from celery_wheelbeat.beat.scheduler import WheelScheduler
from celery_wheelbeat.dispatch.celery_lane.lane import CeleryLane
from celery_wheelbeat.dispatch.fast_lane.lane import FastLane
from celery_wheelbeat.dispatch.lane import Rendering
from celery_wheelbeat.dispatch.messages.claim_headers import ClaimHeaders, visibility_timeout_s
from celery_wheelbeat.dispatch.messages.run_ids import RunIds
from celery_wheelbeat.jobs.definitions import ChangeBatch, Route, overlap_of
from celery_wheelbeat.jobs.rows import key_of
from celery_wheelbeat.settings import Settings
from support.engine.definitions import Job, batch_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery import Celery

    from celery_wheelbeat.jobs.definitions import DefinitionBatch

START_MS = 1_764_000_000_000
MINUTE_MS = 60_000
WAIT_S = 120.0


class FastBench:
    """See the module. ``now_ms`` is the engine's time; the lanes' time is real."""

    def __init__(self, app: Celery, *, start_ms: int = START_MS, **settings: Any) -> None:
        self.scheduler = WheelScheduler(app)
        self.beat, supervision = assemble(self.scheduler, Settings(**settings))
        self.lanes = self.beat.dispatcher
        self.engine = self.beat.engine
        self.ledger = self.engine.ledger
        self.send_log = supervision.send_log
        assert supervision.lane_report is not None
        self.lane_report = supervision.lane_report
        self.fast, self.slow = self._both()
        claims = ClaimHeaders("tests", Settings(**settings).dedup_ttl, visibility_timeout_s(app))
        self.rendering = Rendering(
            RunIds("tests"),
            key_of,
            self.scheduler.schedule.monitors.entry_for,
            lambda view, entry: claims.of(
                key_of(view.id), overlap_of(view.flags).name.lower(), entry.schedule, entry.options.get("expires")
            ),
        )
        self.lanes.name_runs(self.rendering)
        self.now_ms = start_ms
        self.engine.start(start_ms)
        self.lanes.start()

    def _both(self) -> tuple[FastLane, CeleryLane]:
        fast, slow = self.lanes.lanes
        assert isinstance(fast, FastLane)
        assert isinstance(slow, CeleryLane)
        return fast, slow

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.lanes.close(5)

    def route(self, task: str = "lanes.check", options: str = "{}", *, expires_next: bool = False) -> int:
        """Intern a route."""
        return self.engine.routes.intern(Route(task, options, expires_next))

    def load(self, jobs: Iterable[Job], *, more_flags: int = 0) -> DefinitionBatch:
        """Load jobs, all with ``more_flags``."""
        batch = batch_of(jobs, self.engine.crons)
        batch = replace(batch, flags=(batch.flags | more_flags).astype(np.uint16))
        self.engine.load(batch, {})
        return batch

    def redefine(self, *jobs: Job) -> None:
        """Change definitions."""
        batch = batch_of(jobs, self.engine.crons)
        changes = ChangeBatch(batch, np.empty(0, np.int64))
        self.engine.apply(changes)
        self.lanes.redefined(changes)

    def pass_minutes(self, minutes: int = 1) -> int:
        """Let time pass for the engine and offer what is due; returns how many runs."""
        return sum(self.pass_second() for _ in range(minutes * 60))

    def pass_second(self) -> int:
        """Let a second pass for the engine and offer what is due; returns how many runs."""
        self.now_ms += 1000
        due = self.engine.advance(self.now_ms)
        self.lanes.refresh(time.monotonic())
        self.lanes.enqueue(due)
        return sum(map(len, due))

    def turn(self) -> None:
        """One turn of a scheduling thread."""
        self.lanes.collect_outcomes(time.monotonic())
        self.submit_due()

    def submit_due(self) -> None:
        """Let the lanes submit as much as they have room for."""
        now_s = time.monotonic()
        self.lanes.refresh(now_s)
        self.lanes.submit_due(now_s)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Turn until ``condition`` holds."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            self.turn()
            assert time.monotonic() < deadline, f"{what} did not happen: {self.lanes.last_error}"
            if not self.lanes.can_submit():
                self.beat.wake.wait(0.005)

    def drain(self) -> None:
        """Turn until nothing is pending; the accounts have to be right then."""
        self.until(lambda: self.lanes.pending == 0, "the sending of everything")
        assert self.ledger.difference(0) == 0
        assert self.lanes.strays == 0

    @property
    def slow_runs(self) -> int:
        """How many runs the celery lane was given."""
        return self.slow.backlog.left_queue

    def reasons(self) -> list[str]:
        """Why forms have no envelope."""
        return [answer for _, answer in self.fast.forms.answers() if isinstance(answer, str)]


def numbered(count: int, route: int, *, first: int = 0, interval_ms: int = MINUTE_MS) -> list[Job]:
    """Jobs whose id is their only argument."""
    return [
        Job(id=number, interval_ms=interval_ms, route_index=route, payload=b'[[%d], {"url": "u"}]' % number)
        for number in range(first, first + count)
    ]
