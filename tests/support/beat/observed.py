"""What a beat observes of itself, without a beat: the material of status documents."""

from __future__ import annotations

from typing import Any

from celery_wheelbeat.dispatch import PublisherHealth
from celery_wheelbeat.dispatch.reports.lateness import Quantiles
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.observe.status import ColdStart, DestinationState, EntryState, Jobs, Observed


def observed(**changes: Any) -> Observed:
    """Return what a beat with something of everything says of itself; ``changes`` replace fields."""
    ledger = Ledger()
    ledger.expect(10)
    ledger.confirm(6)
    ledger.skip("backlog", 3)
    seen = Observed(
        state="running",
        now_ms=1_700_000_010_000,
        cursor_ms=1_700_000_009_000,
        jobs=Jobs(5, 2, {"monitor:7": "cron: no", "entry:a": "never"}, 2, {"monitor:7": "nightly"}),
        ledger=ledger,
        pending=1,
        lateness=Quantiles(6, 0.1, 0.2, 0.3),
        destinations={"broker": DestinationState(PublisherHealth(False, 1, 0.0), 0, 1_700_000_008_000, 1, "refused")},
        source={"kind": "file"},
        sweeps=3,
        watchdog={},
        clock_steps=0,
        threads={"sources": 0.04},
        wedged=[],
        shards=256,
        cold_start=ColdStart(5, 1.25),
        schedule=[EntryState("clean up", "tasks.clean", "<freq: 1.00 hour>", 1_700_000_400_000)],
        survey={"load": {"from_s": 1_700_000_000, "seconds": "0 1", "minutes": "1"}, "minutes": [[60, 1, 0.1, 0.2]]},
    )
    return seen._replace(**changes)
