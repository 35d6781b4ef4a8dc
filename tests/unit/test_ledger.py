"""The account of runs."""

from __future__ import annotations

import pytest

from celery_wheelbeat.engine.ledger import REASONS, Ledger


@pytest.mark.promise("every-due-run-is-accounted-for")
def test_identity_holds_while_every_run_has_a_fate():
    ledger = Ledger()
    ledger.expect(10)
    assert ledger.difference(pending=10) == 0
    ledger.confirm(4)
    ledger.skip("stall", 3)
    assert ledger.settled == 7
    assert ledger.difference(pending=3) == 0
    assert ledger.difference(pending=2) == 1


def test_reoffered_runs_stand_outside_the_sum():
    ledger = Ledger()
    ledger.reoffer(5)
    assert ledger.reoffered == 5
    assert ledger.difference(pending=0) == 0


def test_reasons_are_a_closed_list():
    ledger = Ledger()
    assert set(ledger.skipped) == set(REASONS)
    with pytest.raises(ValueError, match=r"'rain' is not a reason.*restart"):
        ledger.skip("rain", 1)


@pytest.mark.parametrize("method", ["expect", "confirm", "reoffer"])
def test_counters_only_grow(method):
    with pytest.raises(ValueError, match="only grows"):
        getattr(Ledger(), method)(-1)
