"""The gate in front of a store that fails for a moment, or for longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_wheelbeat.errors import ClaimStoreDown
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.worker.claims import Verdict
from celery_wheelbeat.worker.counters import Counters
from celery_wheelbeat.worker.lifecycle.admission import Gate
from celery_wheelbeat.worker.overlap import Lease
from celery_wheelbeat.worker.stores.choice import open_store
from celery_wheelbeat.worker.stores.connection import Losses

if TYPE_CHECKING:
    from pathlib import Path

NOW_MS = 1_800_000_000_000
"""2027-01-15 08:00 UTC."""
REQUEST = {"wheelbeat_fire_ms": NOW_MS, "wheelbeat_nonce": "n", "wheelbeat_overlap": "skip", "wheelbeat_job": "ns/j"}


class Flaky:
    """A store that grants everything, and fails when it is asked for the given times (counted from 1)."""

    def __init__(self, *failures: int, lost: int = 0) -> None:
        self.failures = failures
        self.asked: list[str] = []
        self.losses = Losses()
        self.losses.add(lost)

    def __getattr__(self, name: str) -> Any:
        answers = {"claim": Verdict.ELECTED, "mark": True, "acquire": Lease(True, 7), "release": None}

        def ask(*_: Any) -> Any:
            self.asked.append(name)
            if len(self.asked) in self.failures:
                raise ClaimStoreDown("cut")
            return answers[name]

        return ask


def pass_through(store: Flaky) -> dict[str, int]:
    """Let one run through a gate before ``store``, to its end; return what was counted."""
    counters = Counters()
    gate = Gate(store, Settings(), counters, flags_redelivery=True, wall_ms=lambda: NOW_MS)  # type: ignore[arg-type]
    task = SimpleNamespace(name="t", acks_late=False, time_limit=None)
    admission = gate.admit(task, "id", (), {}, dict(REQUEST))
    assert admission.refusal is None
    gate.settle(admission, "SUCCESS")
    return {name: count for name, count in counters.totals().items() if count}


def test_a_store_that_goes_away_during_the_run_costs_its_mark_and_never_the_run() -> None:
    store = Flaky(3, 4)
    assert pass_through(store) == {"elected": 1, "marks_lost": 1}
    assert store.asked == ["claim", "acquire", "mark", "release"]


def test_marks_of_earlier_runs_that_were_lost_on_their_way_are_counted_with_the_next_claim() -> None:
    store = Flaky(lost=3)
    assert pass_through(store) == {"elected": 1, "marks_lost": 3}
    assert pass_through(store) == {"elected": 1}


@pytest.mark.parametrize(
    ("more", "outcome"),
    [
        ({}, "dropped_stale"),
        ({"eta": "2027-01-15T05:00:00+00:00"}, "dropped_stale"),
        # ten minutes ago, after a wait of most of a day: the first copy has claimed it since then
        ({"eta": "2027-01-15T07:50:00+00:00"}, "elected"),
        ({"eta": "soon"}, "dropped_stale"),
        ({"retries": 1}, "elected"),
        ({"replaced_task_nesting": 1}, "elected"),
        ({"wheelbeat_waiting": True}, "elected"),
    ],
)
def test_only_what_begins_and_is_overdue_is_stale(more: dict[str, Any], outcome: str) -> None:
    counters = Counters()
    gate = Gate(Flaky(), Settings(), counters, flags_redelivery=True, wall_ms=lambda: NOW_MS)  # type: ignore[arg-type]
    task = SimpleNamespace(name="t", acks_late=False, time_limit=None, wheelbeat={"stale": "drop"})
    old = {**REQUEST, "wheelbeat_fire_ms": NOW_MS - 86_000_000, "wheelbeat_claim_ttl": 3_600, **more}
    gate.admit(task, "id", (), {}, old)
    assert counters.totals()[outcome] == 1


def test_what_is_remembered_is_not_stale_however_overdue_it_is(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/claims.sqlite3")
    store.prepare()
    task = SimpleNamespace(name="t", acks_late=True, time_limit=None, wheelbeat={"stale": "drop"})
    counters, clock_ms = Counters(), [NOW_MS]
    gate = Gate(store, Settings(), counters, flags_redelivery=True, wall_ms=lambda: clock_ms[0])
    message = {"wheelbeat_fire_ms": NOW_MS, "wheelbeat_nonce": "n"}
    assert gate.admit(task, "id", (), {}, dict(message)).refusal is None
    clock_ms[0] += 10 * 86_400_000  # its claim was prolonged for as long as it ran, and now its worker is dead
    again = {**message, "delivery_info": {"redelivered": True}}
    assert gate.admit(task, "id", (), {}, again).refusal is None
    assert gate.admit(task, "id", (), {}, {**message, "wheelbeat_nonce": "copy"}).refusal is not None
    assert gate.admit(task, "other", (), {}, dict(message)).refusal is not None
    # of which nothing but the claim of what was dropped remains
    assert gate.admit(task, "other", (), {}, again).refusal is not None
    counted = {name: count for name, count in counters.totals().items() if count}
    assert counted == {
        "elected": 1, "taken_over": 1, "dropped_other": 1, "stale": 1, "dropped_stale": 1, "dropped_finished": 1,
    }  # fmt: skip
    store.close()


def test_a_store_that_is_away_drops_what_is_stale_where_the_task_wants_that() -> None:
    counters = Counters()
    gate = Gate(Flaky(1, 2), Settings(), counters, flags_redelivery=True, wall_ms=lambda: NOW_MS)  # type: ignore[arg-type]
    task = SimpleNamespace(name="t", acks_late=False, time_limit=None, wheelbeat={"stale": "drop"})
    gate.admit(task, "id", (), {}, {**REQUEST, "wheelbeat_fire_ms": NOW_MS - 86_500_000})
    assert {name: count for name, count in counters.totals().items() if count} == {"stale": 1, "dropped_stale": 1}


def test_a_store_that_is_away_lets_the_run_through_without_a_claim() -> None:
    store = Flaky(1)
    assert pass_through(store) == {"outage_open": 1}
    assert store.asked == ["claim"]


def test_workers_whose_clocks_differ_by_days_elect_one_copy_and_grant_one_lease(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/claims.sqlite3")
    store.prepare()
    task = SimpleNamespace(name="t", acks_late=False, time_limit=None)
    day_ms = 86_400_000

    def admitted_at(skew_ms: int, task_id: str) -> bool:
        wall_ms = NOW_MS + skew_ms
        gate = Gate(store, Settings(), Counters(), flags_redelivery=True, wall_ms=lambda: wall_ms)
        copy = {**REQUEST, "wheelbeat_nonce": f"{task_id} {skew_ms}"}
        return gate.admit(task, task_id, (), {}, copy).refusal is None

    skews_ms = (0, -3 * day_ms, 3 * day_ms)
    assert [admitted_at(skew_ms, "one") for skew_ms in skews_ms] == [True, False, False]
    # another run of the same job: the first one's lease is alive, whatever a worker's clock says
    assert [admitted_at(skew_ms, f"other {skew_ms}") for skew_ms in skews_ms] == [False, False, False]
    store.close()
