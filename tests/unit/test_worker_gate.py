"""The gate in front of a store that fails for a moment, or for longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_wheelbeat.errors import ClaimStoreDown
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.worker.claims import Verdict
from celery_wheelbeat.worker.counters import Counters
from celery_wheelbeat.worker.gate import Gate
from celery_wheelbeat.worker.overlap import Lease
from celery_wheelbeat.worker.stores.choice import open_store

if TYPE_CHECKING:
    from pathlib import Path

NOW_MS = 1_800_000_000_000
"""2027-01-15 08:00 UTC."""
REQUEST = {"wheelbeat_fire_ms": NOW_MS, "wheelbeat_nonce": "n", "wheelbeat_overlap": "skip", "wheelbeat_job": "ns/j"}


class Flaky:
    """A store that grants everything, and fails when it is asked for the given times (counted from 1)."""

    def __init__(self, *failures: int) -> None:
        self.failures = failures
        self.asked: list[str] = []

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


@pytest.mark.parametrize("failure", [1, 2, 3, 4])
def test_a_connection_that_was_cut_costs_one_more_question(failure: int) -> None:
    store = Flaky(failure)
    assert pass_through(store) == {"elected": 1}
    steps = ["claim", "acquire", "mark", "release"]
    steps.insert(failure, steps[failure - 1])
    assert store.asked == steps


def test_a_store_that_goes_away_during_the_run_costs_its_mark_and_never_the_run() -> None:
    assert pass_through(Flaky(3, 4, 5, 6)) == {"elected": 1, "marks_lost": 1}


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


def test_a_store_that_is_away_lets_the_run_through_without_a_claim() -> None:
    store = Flaky(1, 2)
    assert pass_through(store) == {"outage_open": 1}
    assert store.asked == ["claim", "claim"]


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
