"""Which lane how many jobs take, and when the celery lane is behind: a real engine and backlog, time is a number."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.engine.definitions import Job, batch_of

from celery_wheelbeat.dispatch import PublisherHealth
from celery_wheelbeat.dispatch import lane_report as lane_census
from celery_wheelbeat.dispatch.backlog import Backlog
from celery_wheelbeat.dispatch.fast_lane.envelope_registry import EnvelopeRegistry
from celery_wheelbeat.dispatch.lane_report import (
    BEHIND_LOGGED_EVERY_S,
    BEHIND_S,
    PATIENCE_S,
    QUIET_S,
    LaneReport,
    QueueLag,
)
from celery_wheelbeat.dispatch.lane_rules import CHECKED_IN, ENTRY, KIND_SHIFT, ONE_OFF
from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.definitions import ChangeBatch, DueBatch, Flag, Overlap, Route
from celery_wheelbeat.schedules.cron import CronTable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

UPDATE_S = 2.0
START_MS = 1_764_000_000_000
HOURS_AGO_MS = START_MS - 6 * 3_600_000


class Bench:
    """A report on lanes whose answers the test gives."""

    def __init__(self) -> None:
        ledger = Ledger()
        self.engine = Engine(EngineConfig(shards=4), CronTable(), ledger)
        self.engine.start(START_MS)
        self.backlog = Backlog(ledger, limit=1_000_000, keep_all=lambda ids: np.ones(len(ids), np.bool_))
        self.connected = True
        for number in range(8):
            self.engine.routes.intern(Route(f"proj.t{number}"))
        self.forms = EnvelopeRegistry(
            self.engine.routes, lambda _interval, _expires, overlap: {"overlap": overlap.name}
        )
        self.exceptions: Mapping[str, Collection[int]] = {}
        slow = SimpleNamespace(
            rendering=object(),
            backlog=self.backlog,
            publisher=SimpleNamespace(health=lambda: PublisherHealth(self.connected, 0, 0.0)),
        )
        fast = SimpleNamespace(
            forms=self.forms,
            choice=SimpleNamespace(by_reason=lambda: self.exceptions),
            canary=SimpleNamespace(differences=0),
        )
        lanes: Any = (fast, slow)
        self.report = LaneReport(*lanes, self.engine)
        self.now_s = 0.0

    def load(self, *jobs: Job, flags: int = 0) -> None:
        batch = batch_of(jobs, self.engine.crons)
        self.engine.load(replace(batch, flags=(batch.flags | flags).astype(np.uint16)), {})

    def answer(self, route: int, answer: Any, overlap: Overlap = Overlap.ALLOW) -> None:
        (group,) = self.forms.groups(np.array([route << KIND_SHIFT | overlap.value]), np.array([60_000]))
        self.forms.learn(group.form, answer)

    def update(self, times: int = 1) -> None:
        for _ in range(times):
            self.now_s += UPDATE_S
            self.report.update(self.now_s)

    def offer(self, runs: int, fire_ms: int = START_MS) -> None:
        rows, ids = np.zeros(runs, np.uint32), np.arange(runs, dtype=np.int64)
        self.backlog.offer(DueBatch(0, rows, ids, np.full(runs, fire_ms), rows))

    def confirm(self, runs: int) -> None:
        self.backlog.confirm([self.backlog.take(runs).token])


@pytest.fixture
def bench(caplog: pytest.LogCaptureFixture) -> Bench:
    caplog.set_level(logging.INFO, "celery.beat")
    return Bench()


def test_a_kind_that_nobody_asks_about_any_more_counts_with_its_route(bench: Bench) -> None:
    """A signal is connected at run time: the first kind that is asked about again decides for all of its route."""
    bench.load(*jobs(0, 10))
    bench.load(*jobs(20, 3), flags=Flag.OVERLAP_LOW)
    bench.load(*jobs(30, 4), flags=Flag.OVERLAP_HIGH)
    bench.load(*jobs(40, 5, route=1))
    bench.answer(0, envelope())
    bench.answer(0, envelope(), Overlap.SKIP)
    bench.answer(1, envelope())
    bench.update(3)
    assert (bench.report.as_json()["fast"], bench.report.as_json()["celery"]) == (18, {})
    bench.forms.forget()
    bench.answer(0, "a signal")
    bench.update(3)
    assert (bench.report.as_json()["fast"], bench.report.as_json()["celery"]) == (5, {"a signal": 17})
    bench.forms.forget_reasons()  # it is asked for again
    bench.update(3)
    assert (bench.report.as_json()["fast"], bench.report.as_json()["celery"]) == (5, {"a signal": 17})
    bench.answer(0, envelope())
    bench.update(3)
    assert (bench.report.as_json()["fast"], bench.report.as_json()["celery"]) == (18, {})


def envelope(*observers: str) -> Any:
    return SimpleNamespace(observers=observers)


def jobs(first: int, count: int, route: int = 0, **columns: Any) -> list[Job]:
    return [Job(id=at, interval_ms=60_000, route_index=route, **columns) for at in range(first, first + count)]


def test_a_beat_with_entries_only_says_so(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.load(*jobs(-3, 3))
    bench.update(3)
    (output,) = caplog.messages
    assert output.startswith("beat: 0 jobs take the fast lane, 3 the celery lane (a few thousand runs a second): ")
    assert output.endswith(f"3 jobs: {ENTRY}. docs/howto/lanes.md says what to do about each")
    assert (bench.report.as_json()["fast"], bench.report.as_json()["celery"]) == (0, {ENTRY: 3})


def test_every_job_is_counted_in_one_lane_with_the_reason_it_leaves_for(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.load(*jobs(-2, 2))
    bench.load(*jobs(0, 10), *jobs(10, 4, route=1), *jobs(14, 3, enabled=False))
    bench.load(*jobs(20, 3), flags=Flag.ONE_OFF)
    bench.load(*jobs(30, 4), flags=Flag.OVERLAP_LOW | Flag.ONE_OFF)
    bench.load(*jobs(40, 5), flags=Flag.OVERLAP_HIGH)
    bench.load(*jobs(60, 2), flags=Flag.OVERLAP_LOW)
    bench.load(*jobs(50, 6, route=7))
    bench.exceptions = {CHECKED_IN: {0, 1, 11, 20, -1, 15, 999}}
    bench.answer(0, envelope("Sentry"))
    bench.answer(1, "a signal")
    bench.answer(0, "a reason of its own", Overlap.QUEUE_ONE)
    bench.answer(0, envelope(), Overlap.SKIP)
    bench.update(int(PATIENCE_S / UPDATE_S))
    assert caplog.messages == [], "the six may be due within a minute"
    bench.update(3)
    counted = bench.report.as_json()
    assert counted["celery"] == {ENTRY: 2, ONE_OFF: 7, "a reason of its own": 5, "a signal": 4, CHECKED_IN: 2}
    assert counted["fast"] == 10, "nobody knows yet about the six of route 7"
    assert counted["observers"] == ["Sentry"]
    assert caplog.messages[0] == "beat: Sentry seen: the headers are filled in on the fast lane"
    assert caplog.messages[1].startswith("beat: 10 jobs take the fast lane, 20 the celery lane")
    assert f"7 jobs: {ONE_OFF}; 5 jobs: a reason of its own; 4 jobs: a signal" in caplog.messages[1]


def test_it_is_reported_once_answers_have_come_and_again_only_when_they_change(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.load(*jobs(0, 5))
    bench.update(int(2 * PATIENCE_S / UPDATE_S))
    assert caplog.messages == [], "nothing is known"
    bench.answer(0, envelope())
    bench.update()
    assert caplog.messages == [], f"more may come within {QUIET_S} s"
    bench.update(20)
    assert caplog.messages == ["beat: All 5 jobs seen so far take the fast lane"]
    bench.forms.forget()  # a reconnect
    bench.update(20)
    bench.load(*jobs(10, 5))
    bench.update(20)
    assert len(caplog.messages) == 1, "an edit alone is no news"
    assert bench.report.as_json()["fast"] == 10, "but it is counted"
    bench.load(*jobs(30, 1, route=1))
    bench.answer(1, "a signal")
    bench.update(3)
    assert "10 jobs take the fast lane, 1 the celery lane" in caplog.messages[-1]
    assert "1 job: a signal" in caplog.messages[-1]


def test_jobs_that_leave_alone_count_even_where_nobody_asks_about_their_kind(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.load(*jobs(0, 5), *jobs(5, 3, route=1))
    bench.exceptions = {CHECKED_IN: {0, 5, 6, 7}}
    bench.answer(0, envelope())
    bench.update(3)
    assert bench.report.as_json()["celery"] == {CHECKED_IN: 4}
    (output,) = caplog.messages
    assert output.startswith("beat: 4 jobs take the fast lane, 4 the celery lane")


def test_nothing_is_reported_while_monitors_are_loaded(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.load(*jobs(-3, 3))
    for _ in range(100):
        bench.now_s += UPDATE_S
        bench.report.update(bench.now_s, loading=True)
    assert caplog.messages == []
    assert bench.report.as_json()["celery"] == {ENTRY: 3}
    bench.load(*jobs(0, 5))
    bench.update()
    bench.answer(0, envelope())
    bench.update(3)
    (output,) = caplog.messages
    assert output.startswith("beat: 5 jobs take the fast lane, 3 the celery lane")


def test_a_look_at_many_jobs_costs_no_more_than_one_at_some(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_census, "ROWS_PER_CALL", 10)
    census = lane_census.LaneCensus(bench.engine)
    bench.load(*jobs(0, 40))
    for look in range(4):
        assert census.by_kind().jobs.sum() == 10 * look
        assert census.rounds == 0
        census.count_next()
    assert (census.rounds, counted(census)) == (1, {0: 40})
    bench.engine.apply(ChangeBatch(batch_of([], bench.engine.crons), np.arange(39)))
    for _ in range(4):
        census.count_next()
    assert counted(census) == {0: 1}


def counted(census: lane_census.LaneCensus) -> dict[int, int]:
    total = Counter[int]()
    for kind, number in zip(*(column.tolist() for column in census.by_kind()), strict=True):
        total[kind] += number
    return dict(total)


def test_what_is_counted_of_many_kinds_is_no_longer_than_the_jobs(bench: Bench) -> None:
    """A list of all kinds for each shard would be: with 100,000 routes 800 MB."""
    routes = [bench.engine.routes.intern(Route("proj.check", f'{{"queue": "{number}"}}')) for number in range(2_000)]
    bench.load(*(Job(id=at, interval_ms=60_000, route_index=route) for at, route in enumerate(routes)))
    census = lane_census.LaneCensus(bench.engine)
    census.count_next()
    assert census.rounds == 1
    assert sum(len(counts.by_kind.kinds) for counts in census._counted.values()) == 2_000
    assert counted(census) == {route << KIND_SHIFT: 1 for route in routes}


def test_a_lane_that_gets_more_than_it_can_send_is_behind_after_a_minute(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.load(*jobs(0, 5))
    bench.answer(0, "a signal")
    looks = 0
    while not bench.report.behind:
        bench.offer(1_000)
        bench.confirm(500)
        bench.update()
        looks += 1
        assert looks < 100
    assert looks * UPDATE_S > BEHIND_S
    (output,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert output.getMessage().startswith("beat: The celery lane is 6")
    assert "now 5 jobs: a signal. docs/howto/lanes.md" in output.getMessage()
    bench.update(int(BEHIND_LOGGED_EVERY_S / UPDATE_S) - 1)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    bench.update()
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 2
    bench.confirm(bench.backlog.waiting)
    bench.update()
    assert not bench.report.behind


def test_a_lane_that_is_always_busy_but_keeps_up_is_not_behind(bench: Bench) -> None:
    bench.offer(2_000)
    for _ in range(200):
        bench.offer(1_000)
        bench.update()
        assert not bench.report.behind
        bench.confirm(1_000)


def test_runs_that_were_late_before_they_came_are_not_the_lanes_fault(bench: Bench) -> None:
    for _ in range(100):
        bench.offer(10, HOURS_AGO_MS)
        bench.update()
        assert not bench.report.behind
        bench.confirm(10)


def test_what_the_broker_refuses_for_minutes_is_not_the_lanes_fault(bench: Bench) -> None:
    bench.offer(500)
    for _ in range(200):
        bench.backlog.requeue_deferred(bench.now_s)
        bench.update()
        assert not bench.report.behind
        bench.offer(10)
        bench.backlog.defer([bench.backlog.take(1_000).token], bench.now_s)


def test_after_an_outage_the_lane_has_a_minute_to_catch_up(bench: Bench) -> None:
    bench.connected = False
    for _ in range(200):
        bench.offer(10)
        bench.update()
    bench.connected = True
    bench.update(int(BEHIND_S / UPDATE_S))
    assert not bench.report.behind
    bench.update(2)
    assert bench.report.behind


def test_lag_is_the_time_that_the_head_has_waited() -> None:
    lag = QueueLag()
    assert lag.sample(0.0, left=0, waiting=0) == 0.0
    assert lag.sample(1.0, left=0, waiting=5) == 0.0
    assert lag.sample(3.0, left=4, waiting=3) == 2.0
    assert lag.sample(4.0, left=5, waiting=2) == 1.0
    assert lag.sample(5.0, left=7, waiting=9) == 0.0
    assert lag.sample(6.0, left=16, waiting=0) == 0.0
