"""Entries of ``beat_schedule`` as the engine takes them: changes to apply, keys, and the private entry of a run.

Compares the scheduler's entries with those in force, in the scheduling thread. Other threads may write to the entries
at any time, so each comparison is of a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from celery_wheelbeat.beat.schedule_view import private_entry
from celery_wheelbeat.jobs.compile import REPLACEABLE_ENTRY
from celery_wheelbeat.jobs.identity import LATER_IDS_FROM
from celery_wheelbeat.jobs.rows import key_of as monitor_key
from celery_wheelbeat.membership.line import entry_hash
from celery_wheelbeat.sources.beat_schedule.entries import key_of as entry_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery_wheelbeat.beat.schedule_view import MonitorEntries, ScheduleView
    from celery_wheelbeat.engine.shards import JobView
    from celery_wheelbeat.jobs.definitions import ChangeBatch, DefinitionBatch, EntryMark
    from celery_wheelbeat.sources.beat_schedule.entries import Entries


class EntryChanges:
    """The entries of one beat."""

    def __init__(self, view: ScheduleView, entries: Entries, monitors: MonitorEntries) -> None:
        self.view = view
        self.in_force = entries
        """The compiled entries."""
        self._monitors = monitors
        self._hashed: Mapping[str, EntryMark] = {}
        self._hashes: Mapping[str, int] = {}
        self._replaced_by: int | None = None
        """Id of the monitor that replaces the default entry ``celery.backend_cleanup``."""
        self.is_first = True
        """Whether ``changes`` was not called yet: its first result is a load."""
        self._compared: tuple[int, int] | None = None
        """Version of the view and second of the last comparison; None: compare again."""

    def remember(self, stored: Mapping[str, EntryMark]) -> None:
        """Take over since when the entries have had their schedules, as earlier processes stored it."""
        self.in_force.remember(stored)

    def changes(self, now_ms: int) -> ChangeBatch | None:
        """Return the changes since the last call, or None. Edits of entry objects are detected once a second."""
        moment = (self.view.version, now_ms // 1000)
        if moment == self._compared:
            return None
        self._compared, self.is_first = moment, False
        entries = dict(self.view.data)  # an atomic copy: other threads may write
        if self._replaced_by is not None:
            entries.pop(REPLACEABLE_ENTRY, None)
        return self.in_force.changes(entries, now_ms, dict(self.view.broken))

    def hashes(self) -> Mapping[str, int]:
        """Return ``entry_hash`` → job id of the entries in force; the same object until they change."""
        marks = self.in_force.marks()
        if marks != self._hashed:
            self._hashed = marks
            self._hashes = {
                entry_hash(name, str(getattr(self.view.data.get(name), "task", "")), mark.definition_hash): (
                    self.in_force.id_of(name)
                )
                for name, mark in marks.items()
            }
        return self._hashes

    def recompile(self, ids: Iterable[int] | None) -> None:
        """Return these entries, None = all, again with the next ``changes``."""
        self.in_force.recompile(self.in_force.ids() if ids is None else ids)
        self._compared = None

    def note_replacement(self, batch: DefinitionBatch, deleted_ids: Iterable[int]) -> None:
        """Track which monitor replaces the default entry ``celery.backend_cleanup``, if any."""
        name = REPLACEABLE_ENTRY.encode()
        found = self._replaced_by
        if found is not None and (found in deleted_ids or found in batch.ids):
            found = None
        if name in batch.names:
            ends = np.cumsum(batch.name_lengths, dtype=np.int64)
            for job_id, start, end in zip(batch.ids, ends - batch.name_lengths, ends, strict=True):
                if batch.names[start:end] == name:
                    found = int(job_id)
        if found != self._replaced_by:
            self._replaced_by = found
            self._compared = None

    def key_of(self, job_id: int) -> str:
        """Return the text key of a job, monitor or entry."""
        if job_id >= LATER_IDS_FROM:
            return f"later:{job_id - LATER_IDS_FROM}"
        return monitor_key(job_id) if job_id >= 0 else entry_key(self.in_force.name_of(job_id))

    def entry_for(self, job: JobView, fire_ms: int) -> Any:
        """Return a private entry for the run of a job at ``fire_ms``; None if another thread has removed the entry."""
        if job.id >= 0:
            return self._monitors.entry_for(job, fire_ms)
        return private_entry(self.view.data.get(job.name), fire_ms)
