"""Dispatch: from due runs to the ledger, with a real engine and backlog behind a publisher that the test controls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from celery_wheelbeat.dispatch import Confirmed, Failed, FailureKind, PublisherHealth, Run
from celery_wheelbeat.dispatch.backlog import Backlog
from celery_wheelbeat.dispatch.celery_lane.lane import CeleryLane
from celery_wheelbeat.dispatch.dispatcher import Dispatcher
from celery_wheelbeat.dispatch.lane import FIRST_CONNECTION_S, Rendering
from celery_wheelbeat.dispatch.messages.run_ids import RunIds
from celery_wheelbeat.dispatch.queues.deferred import PAUSE_S
from celery_wheelbeat.dispatch.reports.lateness import Lateness
from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.definitions import ChangeBatch, Finished
from celery_wheelbeat.jobs.identity import run_id
from celery_wheelbeat.jobs.rows import MonitorRow, key_of
from celery_wheelbeat.schedules.cron import CronTable

if TYPE_CHECKING:
    from collections.abc import Sequence

START_MS = 1_700_000_000_000
ROW = MonitorRow(
    id=1, name="a", task="t", args=None, kwargs=None, interval_ms=1000, cron=None, timezone="UTC", day_rule="and",
    once_at_ms=None, solar_event=None, solar_latitude=None, solar_longitude=None, jitter_s=0, start_at_ms=None,
    end_at_ms=None, one_off=False, queue=None, exchange=None, routing_key=None, priority=None, headers=None,
    expires_s=None, expires_next=False, options=None, misfire="auto", overlap="allow", enabled=True,
    incident_interval_ms=None, incident_until_ms=None, effective_from_ms=0, finished_at_ms=None,
)  # fmt: skip


class Told:
    """A publisher whose outcomes the test decides."""

    def __init__(self) -> None:
        self.submitted: list[Run] = []
        self.outcomes: list[Confirmed | Failed] = []
        self.connected = True

    def capacity(self) -> int:
        return 100 if self.connected else 0

    def submit(self, runs: Sequence[Run]) -> None:
        self.submitted += runs

    def poll(self) -> list[Confirmed | Failed]:
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def health(self) -> PublisherHealth:
        return PublisherHealth(self.connected, 0, 0.0)


class Bench:
    """One destination with its engine; time is a number."""

    def __init__(self) -> None:
        self.ledger, self.crons = Ledger(), CronTable()
        self.engine = Engine(EngineConfig(shards=1), self.crons, self.ledger)
        self.engine.start(START_MS)
        self.backlog = Backlog(self.ledger, limit=1000, keep_all=lambda ids: np.zeros(len(ids), np.bool_))
        self.publisher: Any = Told()
        self.lane = CeleryLane(self.engine, self.backlog, self.publisher, Lateness())
        self.dispatch = Dispatcher([], self.lane)
        self.dispatch.name_runs(Rendering(RunIds("tests"), key_of, lambda view, fire_ms: (view.name, fire_ms)))
        self.now_s = 0.0

    def define(self, *rows: MonitorRow) -> None:
        compiled = compile_rows(rows, crons=self.crons)
        assert not compiled.refused
        changes = ChangeBatch(compiled.batch, np.empty(0, np.int64))
        self.engine.apply(changes)
        self.dispatch.redefined(changes)

    def define_entry(self) -> None:
        """Define the same job as an entry of ``beat_schedule``."""
        compiled = compile_rows([ROW], crons=self.crons)
        entry = replace(compiled.batch, ids=np.array([-5], np.int64))
        self.engine.apply(ChangeBatch(entry, np.empty(0, np.int64)))

    def pass_time(self, seconds: float) -> list[Run]:
        """Advance, hand over; returns what the publisher was given."""
        before = len(self.publisher.submitted)
        self.now_s += seconds
        self.dispatch.refresh(self.now_s)
        self.dispatch.enqueue(self.engine.advance(START_MS + round(self.now_s * 1000)))
        self.dispatch.submit_due(self.now_s)
        return list(self.publisher.submitted[before:])

    def settle(self, runs: Sequence[Run], kind: FailureKind | None = None) -> Any:
        self.publisher.outcomes = [
            Confirmed(run.token, run.fire_ms + 7) if kind is None else Failed(run.token, kind, "why") for run in runs
        ]
        return self.dispatch.collect_outcomes(self.now_s)

    def skipped(self) -> dict[str, int]:
        return {reason: runs for reason, runs in self.ledger.skipped.items() if runs}


@pytest.fixture
def bench() -> Any:
    bench = Bench()
    yield bench
    assert bench.ledger.difference(bench.backlog.pending) == 0
    assert bench.backlog.strays == 0


def test_a_run_is_rendered_from_the_definition_and_confirmed(bench: Bench) -> None:
    bench.define(ROW)
    (run,) = bench.pass_time(1)
    assert run[:6] == (
        1,
        "monitor:1",
        "a",
        START_MS + 1000,
        run_id("monitor:1", START_MS + 1000, "tests"),
        ("a", START_MS + 1000),
    )
    bench.settle([run])
    assert (bench.ledger.sent, bench.backlog.pending) == (1, 0)


def test_runs_wait_while_the_namespace_is_unknown(bench: Bench) -> None:
    rendering, bench.lane.rendering = bench.lane.rendering, None
    bench.define(ROW)
    assert bench.pass_time(2) == []
    bench.lane.rendering = rendering
    assert len(bench.pass_time(0)) == 2


@pytest.mark.parametrize("kind", [FailureKind.NOT_SENT, FailureKind.UNCERTAIN])
def test_what_did_not_arrive_is_sent_again_with_the_same_id(bench: Bench, kind: FailureKind) -> None:
    bench.define(ROW)
    (run,) = bench.pass_time(1)
    bench.settle([run], kind)
    assert bench.dispatch.last_error == "why"
    (again,) = bench.pass_time(0)
    assert (again.run_id, again.fire_ms) == (run.run_id, run.fire_ms)
    assert again.token != run.token


def test_a_poisoned_job_is_quarantined_until_it_changes(bench: Bench) -> None:
    bench.define(ROW, ROW._replace(id=2, name="b"))
    poisoned = [run for run in bench.pass_time(1) if run.job_id == 1]
    settled = bench.settle(poisoned, FailureKind.POISON)
    assert bench.dispatch.last_error == "a: why"
    ((digest, reason),) = settled.poisoned.values()
    assert (len(digest), reason) == (32, "why")
    assert [run.job_id for run in bench.pass_time(1)] == [2]
    assert bench.skipped() == {"error": 1, "quarantined": 1}
    bench.define(ROW._replace(args="[1]"))
    assert bench.settle([]).lifted == [1]
    assert [run.job_id for run in bench.pass_time(1)] == [1, 2]


def test_a_job_that_is_corrected_or_gone_while_its_run_is_on_the_way_is_not_quarantined(bench: Bench) -> None:
    bench.define(ROW, ROW._replace(id=2, name="b"))
    runs = bench.pass_time(1)
    bench.define(ROW._replace(args="[1]"), ROW._replace(id=2, name="b", enabled=False))
    assert bench.settle(runs, FailureKind.POISON).poisoned == {}
    assert bench.dispatch.quarantined == {}
    assert bench.skipped() == {"error": 2}
    corrected = bench.pass_time(1)
    assert [run.job_id for run in corrected] == [1]
    assert list(bench.settle(corrected, FailureKind.POISON).poisoned) == [1]
    assert list(bench.dispatch.quarantined) == [1]


def test_an_entry_that_cannot_be_serialised_loses_the_run_and_is_not_quarantined(bench: Bench) -> None:
    bench.define_entry()
    settled = bench.settle(bench.pass_time(1), FailureKind.POISON)
    assert (settled.poisoned, bench.dispatch.quarantined) == ({}, {})
    assert bench.skipped() == {"error": 1}
    assert len(bench.pass_time(1)) == 1


def test_an_entry_that_cannot_be_copied_loses_the_run_and_is_named_once_a_minute(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(view: Any, fire_ms: int) -> Any:
        raise OSError("a property of the user's")

    assert bench.lane.rendering is not None
    rendering = bench.lane.rendering
    bench.lane.rendering = rendering._replace(entry_of=broken)
    bench.define_entry()
    for _ in range(30):
        assert bench.pass_time(1) == []
    assert caplog.text.count("beat: a cannot be sent: OSError: a property of the user's") == 1
    assert (bench.skipped(), bench.dispatch.quarantined) == ({"error": 30}, {})
    bench.lane.rendering = rendering
    assert len(bench.pass_time(1)) == 1


def test_headers_that_cannot_be_made_concern_one_job(bench: Bench) -> None:
    def headers_of(view: Any, entry: Any) -> Any:
        if view.id == 1:
            raise AttributeError("a schedule of the user's")
        return {"x": 1}

    assert bench.lane.rendering is not None
    bench.lane.rendering = bench.lane.rendering._replace(headers_of=headers_of)
    bench.define(ROW, ROW._replace(id=2, name="b"))
    assert [(run.job_id, run.headers) for run in bench.pass_time(1)] == [(2, {"x": 1})]
    assert bench.skipped() == {"error": 1}


def test_an_entry_that_another_thread_has_just_removed_is_skipped_as_removed(bench: Bench) -> None:
    assert bench.lane.rendering is not None
    bench.lane.rendering = bench.lane.rendering._replace(entry_of=lambda _view, _fire_ms: None)
    bench.define_entry()
    assert bench.pass_time(1) == []
    assert bench.skipped() == {"removed": 1}


def test_a_run_that_has_expired_is_counted_as_such_and_is_no_error(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.define(ROW)
    for _ in range(3):
        bench.settle(bench.pass_time(1), FailureKind.EXPIRED)
    assert bench.skipped() == {"expired": 3}
    assert bench.dispatch.last_error == ""
    assert caplog.text.count("beat: 1 runs had expired before they could be sent: skipped(expired)") == 1


@pytest.mark.parametrize(("kind", "reason"), [(FailureKind.UNROUTABLE, "unroutable"), (FailureKind.ERROR, "error")])
def test_one_lost_run_is_counted_and_the_job_continues(bench: Bench, kind: FailureKind, reason: str) -> None:
    bench.define(ROW)
    bench.settle(bench.pass_time(1), kind)
    assert bench.dispatch.last_error == "a: why"
    assert bench.skipped() == {reason: 1}
    assert len(bench.pass_time(1)) == 1


def test_refused_runs_wait_apart_and_the_newest_of_a_job_is_kept(bench: Bench) -> None:
    bench.define(ROW)
    bench.settle(bench.pass_time(PAUSE_S), FailureKind.REFUSED)
    assert bench.pass_time(PAUSE_S / 2) == []
    both = bench.pass_time(PAUSE_S / 2)
    assert [run.fire_ms - START_MS for run in both] == [1000, 2000]
    bench.settle(both, FailureKind.REFUSED)
    assert bench.skipped() == {"backlog": 1}
    assert bench.dispatch.failures == {"refused": 3}
    assert [run.fire_ms - START_MS for run in bench.pass_time(PAUSE_S)] == [2000, 3000]


def test_refused_runs_of_a_job_that_wants_all_are_all_kept(bench: Bench) -> None:
    bench.backlog.keep_all = lambda ids: np.ones(len(ids), np.bool_)
    bench.define(ROW)
    for _ in range(3):
        bench.settle(bench.pass_time(PAUSE_S), FailureKind.REFUSED)
    assert bench.skipped() == {}
    assert [run.fire_ms - START_MS for run in bench.pass_time(PAUSE_S)] == [1000, 2000, 3000, 4000]


def test_a_job_that_is_gone_or_paused_is_removed_from_the_backlog(bench: Bench) -> None:
    bench.publisher.connected = False
    bench.define(ROW, ROW._replace(id=2, name="b"))
    bench.pass_time(1)
    bench.define(ROW._replace(enabled=False))
    bench.publisher.connected = True
    assert [run.job_id for run in bench.pass_time(0)] == [2]
    assert bench.skipped() == {"removed": 1}


def test_while_the_destination_is_down_only_the_newest_run_is_kept(bench: Bench) -> None:
    bench.define(ROW)
    bench.pass_time(0)
    bench.publisher.connected = False
    for _ in range(5):
        bench.pass_time(1)
    bench.publisher.connected = True
    assert [run.fire_ms for run in bench.pass_time(0)] == [START_MS + 5000]
    assert bench.skipped() == {"backlog": 4}


def test_the_first_connection_has_more_time_than_the_later_ones(bench: Bench) -> None:
    bench.define(ROW)
    bench.publisher.connected = False
    bench.pass_time(0)
    for _ in range(round(FIRST_CONNECTION_S)):
        bench.pass_time(1)
    assert bench.skipped() == {}
    bench.publisher.connected = True
    assert len(bench.pass_time(0)) == FIRST_CONNECTION_S
    bench.publisher.connected = False
    bench.pass_time(1)
    assert bench.skipped() == {}
    bench.pass_time(1)
    assert bench.skipped() == {"backlog": 1}


def test_a_first_connection_that_does_not_come_is_not_waited_for_for_ever(bench: Bench) -> None:
    bench.define(ROW)
    bench.publisher.connected = False
    bench.pass_time(0)
    for _ in range(round(FIRST_CONNECTION_S) + 1):
        bench.pass_time(1)
    assert bench.skipped() == {"backlog": FIRST_CONNECTION_S}


def test_a_short_interruption_drops_nothing(bench: Bench) -> None:
    bench.define(ROW)
    bench.pass_time(0)
    bench.publisher.connected = False
    bench.pass_time(1)
    bench.publisher.connected = True
    assert [run.fire_ms for run in bench.pass_time(1)] == [START_MS + 1000, START_MS + 2000]


def test_a_one_off_is_finished_by_its_first_confirmed_run(bench: Bench) -> None:
    bench.define(ROW._replace(one_off=True))
    (run,) = bench.pass_time(1)
    assert bench.pass_time(2) == []
    settled = bench.settle([run])
    assert settled.finished == {1: Finished(run.fire_ms + 7, ROW.effective_from_ms)}
    assert bench.pass_time(3) == []
    assert bench.skipped() == {"ended": 2}


def test_a_one_off_that_failed_is_the_one_that_is_sent_again(bench: Bench) -> None:
    bench.define(ROW._replace(one_off=True))
    (run,) = bench.pass_time(1)
    bench.settle([run], FailureKind.UNCERTAIN)
    (again,) = bench.pass_time(0)
    assert again.run_id == run.run_id
    assert bench.settle([again]).finished == {1: Finished(run.fire_ms + 7, ROW.effective_from_ms)}


@pytest.mark.parametrize("ahead_ms", [1_000, 60_000, 86_400_000])
def test_a_database_whose_clock_is_ahead_costs_no_one_off_its_run(bench: Bench, ahead_ms: int) -> None:
    """``effective_from`` is an instant of the database's clock, a fire time one of the beat's."""
    once = ROW._replace(id=2, name="b", interval_ms=None, once_at_ms=START_MS + 2_000, jitter_s=None)
    bench.define(
        ROW._replace(one_off=True, effective_from_ms=START_MS + ahead_ms),
        once._replace(effective_from_ms=START_MS + ahead_ms),
    )
    (first,) = bench.pass_time(1)
    assert (first.job_id, first.fire_ms) == (1, START_MS + 1_000)
    assert bench.settle([first]).finished == {1: Finished(first.fire_ms + 7, START_MS + ahead_ms)}
    (second,) = bench.pass_time(1)
    assert (second.job_id, second.fire_ms) == (2, START_MS + 2_000)
    assert bench.settle([second]).finished == {2: Finished(second.fire_ms + 7, START_MS + ahead_ms)}
    assert bench.skipped() == {}


def test_a_run_of_what_the_job_was_before_is_not_the_run_of_a_one_off(bench: Bench) -> None:
    bench.define(ROW)
    (run,) = bench.pass_time(1)
    bench.define(ROW._replace(one_off=True, effective_from_ms=START_MS - 60_000))
    bench.settle([run], FailureKind.UNCERTAIN)
    assert bench.pass_time(0) == []
    assert bench.skipped() == {"removed": 1}
    (own,) = bench.pass_time(1)
    assert own.fire_ms == START_MS + 2_000


def break_entries(bench: Bench) -> None:
    def broken(view: Any, fire_ms: int) -> Any:
        raise InvalidMonitor("args", view.name)

    assert bench.lane.rendering is not None
    bench.lane.rendering = bench.lane.rendering._replace(entry_of=broken)


def test_an_entry_that_cannot_be_built_is_set_aside_and_written_down_once(bench: Bench) -> None:
    break_entries(bench)
    bench.define(ROW)
    assert bench.pass_time(1) == []
    assert bench.dispatch.quarantined == {1: "args: a"}
    assert bench.skipped() == {"error": 1}
    ((job_id, (digest, reason)),) = bench.settle([]).poisoned.items()
    assert (job_id, len(digest), reason) == (1, 32, "args: a")
    bench.pass_time(1)
    assert bench.settle([]).poisoned == {}


def test_an_entry_class_of_the_users_that_raises_costs_the_run(bench: Bench) -> None:
    def broken(view: Any, fire_ms: int) -> Any:
        raise OSError("another service")

    assert bench.lane.rendering is not None
    rendering = bench.lane.rendering
    bench.lane.rendering = rendering._replace(entry_of=broken)
    bench.define(ROW)
    assert bench.pass_time(1) == []
    assert (bench.skipped(), bench.dispatch.quarantined) == ({"error": 1}, {})
    bench.lane.rendering = rendering
    assert len(bench.pass_time(1)) == 1


def test_an_entry_that_is_redefined_before_it_is_settled_is_not_written_down(bench: Bench) -> None:
    break_entries(bench)
    bench.define(ROW)
    bench.pass_time(1)
    bench.define(ROW._replace(args="[1]"))
    assert bench.settle([]).lifted == [1]
    assert bench.settle([]).poisoned == {}


def test_large_arguments_are_handed_over_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the publisher has is bounded in bytes, too, except for one run; nothing is lost for it."""
    monkeypatch.setattr("celery_wheelbeat.dispatch.celery_lane.lane.PAYLOAD_BYTES_MAX", 2_500)
    bench = Bench()
    lengths = [1_000, 1_000, 10_000, 1_000, 1_000, 1_000, 100, 100]
    bench.define(
        *(ROW._replace(id=at, name=f"job {at}", args=f'["{"x" * size}"]') for at, size in enumerate(lengths, 1))
    )
    bench.pass_time(1)
    settled = 0
    while settled < len(lengths):
        while bench.dispatch.can_submit():
            assert bench.dispatch.submit_due(bench.now_s) > 0
        there = bench.publisher.submitted[settled:]
        assert sum(lengths[run.job_id - 1] for run in there[:-1]) < 2_500
        settled += len(there)
        bench.settle(there)
    assert sorted(run.job_id for run in bench.publisher.submitted) == list(range(1, len(lengths) + 1))
    assert bench.backlog.pending == 0
    assert bench.backlog.leases.size_bytes == 0
