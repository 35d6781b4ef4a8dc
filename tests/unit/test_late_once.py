"""Once jobs that the wheel cannot fire: owed once, and only where nobody can have run them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine.definitions import Job, batch_of, changes_of

from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.definitions import Misfire, Offer, Route
from celery_wheelbeat.schedules.cron import CronTable

START_MS = 1_700_000_000_000
AT_MS = START_MS + 4_000
ONCE = Job(3, at_ms=AT_MS, effective_from_ms=START_MS)


class Bench:
    def __init__(self) -> None:
        self.crons = CronTable()
        self.engine = Engine(EngineConfig(shards=1), self.crons, Ledger())
        self.engine.routes.intern(Route("probe"))
        self.engine.start(START_MS)

    def apply(self, *jobs: Job, deleted: tuple[int, ...] = ()) -> None:
        self.engine.apply(changes_of(self.crons, *jobs, deleted=deleted))

    def advance(self, seconds: float) -> list[tuple[int, int, Offer]]:
        due = self.engine.advance(START_MS + round(seconds * 1000))
        return [
            (job_id, fire_ms, batch.offer)
            for batch in due
            for job_id, fire_ms in zip(batch.ids.tolist(), batch.fire_ms.tolist(), strict=True)
        ]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_definition_that_comes_late_still_runs_once(bench: Bench) -> None:
    bench.advance(5)
    bench.apply(ONCE)
    assert bench.advance(5) == [(3, AT_MS, Offer.MISFIRE)]
    bench.apply(ONCE)
    assert bench.advance(9) == []


def test_an_instant_before_the_definition_is_run_at_once(bench: Bench) -> None:
    """Stored late, paused while it passed, or stored by a database whose clock is ahead: late rather than never."""
    bench.advance(5)
    bench.apply(replace(ONCE, effective_from_ms=AT_MS + 60_000))
    assert bench.advance(5) == [(3, AT_MS, Offer.MISFIRE)]
    bench.apply(replace(ONCE, effective_from_ms=AT_MS + 60_000))
    assert bench.advance(9) == []


def test_who_wants_no_late_run_gets_none_of_an_instant_before_the_definition(bench: Bench) -> None:
    bench.advance(5)
    bench.apply(replace(ONCE, effective_from_ms=AT_MS + 1, misfire=Misfire.SKIP))
    assert bench.advance(9) == []


def test_a_pause_over_the_instant_delays_the_run(bench: Bench) -> None:
    bench.apply(replace(ONCE, enabled=False))
    assert bench.advance(60) == []
    bench.apply(replace(ONCE, effective_from_ms=START_MS + 60_000))
    assert bench.advance(61) == [(3, AT_MS, Offer.MISFIRE)]


def test_a_pause_that_ends_in_time_but_arrives_late_loses_nothing(bench: Bench) -> None:
    bench.apply(replace(ONCE, enabled=False))
    assert bench.advance(5) == []
    bench.apply(replace(ONCE, effective_from_ms=AT_MS - 500))
    assert bench.advance(5) == [(3, AT_MS, Offer.MISFIRE)]


def test_bounds_that_let_it_in_late_lose_nothing(bench: Bench) -> None:
    bench.apply(replace(ONCE, end_ms=AT_MS))
    assert bench.advance(5) == []
    bench.apply(replace(ONCE, effective_from_ms=AT_MS - 500))
    assert bench.advance(5) == [(3, AT_MS, Offer.MISFIRE)]


@pytest.mark.parametrize("edit", ["delete", "pause", "other instant"])
def test_what_changed_meanwhile_is_owed_nothing(bench: Bench, edit: str) -> None:
    bench.advance(5)
    bench.apply(ONCE)
    if edit == "delete":
        bench.apply(deleted=(3,))
    else:
        bench.apply(replace(ONCE, enabled=False) if edit == "pause" else replace(ONCE, at_ms=AT_MS + 60_000))
    assert bench.advance(9) == []


def test_an_instant_that_is_new_in_a_time_that_is_lived_through_again(bench: Bench) -> None:
    bench.advance(10)
    bench.engine.step_back(START_MS, 1)
    bench.apply(ONCE)
    assert bench.advance(3) == []
    assert bench.advance(4) + bench.advance(5) == [(3, AT_MS, Offer.MISFIRE)]


def test_an_instant_that_was_lived_through_is_not_run_again(bench: Bench) -> None:
    bench.apply(ONCE)
    assert bench.advance(10) == [(3, AT_MS, Offer.DUE)]
    bench.engine.step_back(START_MS, 1)
    bench.apply(ONCE)
    assert bench.advance(5) + bench.advance(20) == []


def test_a_restart_offers_what_the_mark_has_passed(bench: Bench) -> None:
    bench.advance(60)
    due = bench.engine.load(batch_of([ONCE], bench.crons), {"broker": START_MS + 50_000})
    assert [(batch.ids.tolist(), batch.fire_ms.tolist()) for batch in due] == [([3], [AT_MS])]


def test_re_lived_intervals_that_were_missed_have_ids_of_their_own(bench: Bench) -> None:
    bench.apply(Job(1, interval_ms=10_000, offset_ms=0, misfire=Misfire.LATEST))
    bench.advance(3_600)
    bench.engine.step_back(START_MS, 1)
    due = bench.engine.advance(START_MS + 1_800_000)
    assert [(batch.fire_ms.tolist(), batch.step) for batch in due] == [([START_MS + 1_800_000], 1)]
