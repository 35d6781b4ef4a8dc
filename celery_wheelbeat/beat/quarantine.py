"""Definitions that cannot be run: said once in the log, shown in the status, and kept in the table of the quarantine.

The I/O thread writes down monitors that do not compile, since it reads them. What is written from here are the entries
of ``beat_schedule``, which have no row of their own that could change.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING

from celery_wheelbeat.jobs.rows import key_of as monitor_key
from celery_wheelbeat.sources.beat_schedule.entries import key_of as entry_key
from celery_wheelbeat.sources.databases.store import stored_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from celery_wheelbeat.errors import InvalidMonitor
    from celery_wheelbeat.schedules.kinds import Int64s
    from celery_wheelbeat.sources.beat_schedule.entries import Entries
    from celery_wheelbeat.sources.messages import Desk

logger = logging.getLogger("celery.beat")

LINES_MAX = 20
"""Monitors that are named in the log when many are refused at once: a bulk edit may break a million."""


class Refusals:
    """Owned by the scheduling thread."""

    def __init__(self, entries: Entries, desk: Desk) -> None:
        self.monitors: dict[str, InvalidMonitor] = {}
        """Monitors that cannot run, by key."""
        self._entries = entries
        self._desk = desk
        self._reported: dict[str, str] = {}
        """Name of an entry → the reason that was reported."""
        self._recorded: Collection[str] = ()
        """Keys of entries that earlier processes have written down."""
        self._unsendable: dict[int, str] = {}
        """Job id → key, of what was written down because it can never be sent."""

    def recall(self, recorded: Collection[str]) -> None:
        """Note which job keys the table of the quarantine holds from earlier processes."""
        self._recorded = [key for key in recorded if key.startswith(entry_key(""))]

    def look_at_monitors(self, refused: Mapping[int, InvalidMonitor], seen_ids: Int64s) -> None:
        """Note refused monitors, and that the others of ``seen_ids`` are well or gone."""
        if self.monitors:
            for key in [monitor_key(job_id) for job_id in seen_ids.tolist()]:
                self.monitors.pop(key, None)
        self.monitors.update((monitor_key(job_id), problem) for job_id, problem in refused.items())
        for job_id, problem in islice(refused.items(), LINES_MAX):
            logger.error("beat: Monitor %d, %.200r, is quarantined: %s", job_id, problem.name, problem)
        if len(refused) > LINES_MAX:
            logger.error("beat: %d more monitors are quarantined; the admin says which", len(refused) - LINES_MAX)

    def look_at_poison(self, poisoned: Mapping[int, tuple[str, tuple[str, str]]]) -> None:
        """Write down jobs that can never be sent: job id → key and (definition hash, reason)."""
        self._unsendable.update((job_id, key) for job_id, (key, _) in poisoned.items())
        self._desk.quarantine(dict(poisoned.values()), [])

    def lift(self, job_ids: Iterable[int]) -> None:
        """Take back what was written down about jobs whose definition has changed, or that are gone."""
        keys = [self._unsendable.pop(job_id, monitor_key(job_id) if job_id >= 0 else None) for job_id in job_ids]
        known = [key for key in keys if key is not None]
        if known:
            self._desk.quarantine({}, known)

    def look_at_entries(self) -> None:
        """Report entries that are broken now; lift those that are not any more, also of earlier processes."""
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
            self._desk.quarantine({entry_key(name): ("", reason) for name, reason in added.items()}, sorted(lifted))
