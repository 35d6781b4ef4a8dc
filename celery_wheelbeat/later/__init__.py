"""One-off runs: millions of tasks, each due once, stored in the caller's transaction and sent by the beat.

Job: take a task and an instant from the application (``apply_at``, ``apply_many``, ``now``), let it be cancelled or
moved until two seconds before, and give the beat what comes due.

Threads and owners: the calls run in the application's threads, on the application's connections. The readers belong to
one thread of a beat.

States of a run::

    stored ──→ due ──→ sent or skipped, as any run
       └── cancelled | moved ──→ tombstone in its second ──→ skipped(cancelled), if the beat had read it already

Nothing is written when a run is sent: the mark of the beat says that its second is done. Whole days are dropped later.

Never: UPDATE a row; use the clock of an application host to place a row; commit what the caller has not committed.
"""

from __future__ import annotations

from celery_wheelbeat.later.awaited import aapply_at, aapply_many, acancel, acount, amove, anow, apending
from celery_wheelbeat.later.calls import apply_at, apply_many, cancel, count, move, now, pending
from celery_wheelbeat.later.drop_in import install
from celery_wheelbeat.later.run import LaterRun
from celery_wheelbeat.later.writers import Cancelled

__all__ = [
    "Cancelled",
    "LaterRun",
    "aapply_at",
    "aapply_many",
    "acancel",
    "acount",
    "amove",
    "anow",
    "apending",
    "apply_at",
    "apply_many",
    "cancel",
    "count",
    "install",
    "move",
    "now",
    "pending",
]
