"""Quarantined definitions: logged once, shown in the status, stored in the quarantine table.

The I/O thread stores monitors that do not compile, because it reads them. This module stores entries of
``beat_schedule``, which have no row, and jobs that can never be sent.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING

from celery_wheelbeat.jobs.identity import LATER_IDS_FROM
from celery_wheelbeat.jobs.rows import key_of as monitor_key
from celery_wheelbeat.sources.beat_schedule.entries import key_of as entry_key
from celery_wheelbeat.sources.databases.store import stored_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from celery_wheelbeat.errors import InvalidMonitor
    from celery_wheelbeat.schedules.kinds import Int64s
    from celery_wheelbeat.sources.beat_schedule.entries import Entries
    from celery_wheelbeat.sources.messages import SourceIO

logger = logging.getLogger("celery.beat")

LINES_MAX = 20
"""Maximum number of quarantined monitors that the log names at once: a bulk edit may break a million."""


class QuarantineReports:
    """Quarantined monitors, entries and jobs, as the scheduling thread knows them."""

    def __init__(self, entries: Entries, sources: SourceIO) -> None:
        self.monitors: dict[str, InvalidMonitor] = {}
        """Quarantined monitors by key."""
        self._entries = entries
        self._sources = sources
        self._reported: dict[str, str] = {}
        """Name of an entry → the reason already logged."""
        self._recorded: Collection[str] = ()
        """Keys of entries that earlier processes have stored."""
        self._unsendable: dict[int, str] = {}
        """Job id → key of jobs stored because they can never be sent."""

    def recall(self, recorded: Collection[str]) -> None:
        """Remember the job keys that earlier processes have stored in the quarantine table."""
        self._recorded = [key for key in recorded if key.startswith(entry_key(""))]

    def update_monitors(self, refused: Mapping[int, InvalidMonitor], seen_ids: Int64s) -> None:
        """Add the quarantined monitors; remove the other ``seen_ids``, which compile or are deleted."""
        if self.monitors:
            for key in [monitor_key(job_id) for job_id in seen_ids.tolist()]:
                self.monitors.pop(key, None)
        self.monitors.update((monitor_key(job_id), problem) for job_id, problem in refused.items())
        for job_id, problem in islice(refused.items(), LINES_MAX):
            logger.error("beat: Monitor %d, %.200r, is quarantined: %s", job_id, problem.name, problem)
        if len(refused) > LINES_MAX:
            logger.error("beat: %d more monitors are quarantined; the admin lists them", len(refused) - LINES_MAX)

    def add_unsendable(self, poisoned: Mapping[int, tuple[str, tuple[str, str]]]) -> None:
        """Store jobs that can never be sent: job id → key and (definition hash, reason)."""
        self._unsendable.update((job_id, key) for job_id, (key, _) in poisoned.items())
        self._sources.quarantine(dict(poisoned.values()), [])

    def lift(self, job_ids: Iterable[int]) -> None:
        """Lift the stored quarantine of jobs whose definition has changed or that are deleted."""
        keys = [
            self._unsendable.pop(job_id, monitor_key(job_id) if 0 <= job_id < LATER_IDS_FROM else None)
            for job_id in job_ids
        ]
        known = [key for key in keys if key is not None]
        if known:
            self._sources.quarantine({}, known)

    def update_entries(self) -> None:
        """Log and store entries that are broken; lift those that no longer are, earlier processes' included."""
        refused = {name: str(problem) for name, problem in self._entries.refused.items()}
        if refused == self._reported and not self._recorded:
            return
        added = {name: reason for name, reason in refused.items() if self._reported.get(name) != reason}
        for name, reason in added.items():
            logger.error("beat: Entry %r of beat_schedule is left out: %s", name, reason)
        kept = {stored_key(entry_key(name)) for name in refused}
        lifted = {entry_key(name) for name in self._reported.keys() - refused.keys()}
        lifted |= {key for key in self._recorded if key not in kept}
        self._reported, self._recorded = refused, ()
        if added or lifted:
            self._sources.quarantine({entry_key(name): ("", reason) for name, reason in added.items()}, sorted(lifted))
