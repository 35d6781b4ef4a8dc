"""One running beat: the steps of a tick, over the engine and its edges.

Created at the first tick, in the process and thread that schedules. A step never waits for a broker, a database or a
thread; ``wait_s`` returns how long the scheduler may sleep.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from celery_wheelbeat.beat.loading import Loading
from celery_wheelbeat.beat.marks import MarkDocument, choose, known_marks
from celery_wheelbeat.beat.quarantine import QuarantineReports
from celery_wheelbeat.beat.schedule_view import private_entry
from celery_wheelbeat.dispatch.lane import Rendering
from celery_wheelbeat.dispatch.messages.claim_headers import ClaimHeaders, visibility_timeout_s
from celery_wheelbeat.dispatch.messages.run_ids import RunIds
from celery_wheelbeat.jobs.compile import REPLACEABLE_ENTRY
from celery_wheelbeat.jobs.definitions import ChangeBatch, DueBatch, EntryMark, overlap_of
from celery_wheelbeat.jobs.rows import key_of as monitor_key
from celery_wheelbeat.observe.gap_log import GapLog
from celery_wheelbeat.observe.poll_lane_log import PollLaneLog
from celery_wheelbeat.runtime.clock import Motion
from celery_wheelbeat.schedules.kinds import NEVER_MS
from celery_wheelbeat.schedules.zones import database_version
from celery_wheelbeat.sources.beat_schedule.entries import key_of as entry_key
from celery_wheelbeat.sources.messages import Changed, Loaded, News, Opened, Remembered, Sized

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery_wheelbeat.beat.assembly import Parts
    from celery_wheelbeat.engine.shards import JobView
    from celery_wheelbeat.engine.watchdog import SweepReport
    from celery_wheelbeat.errors import InvalidMonitor
    from celery_wheelbeat.jobs.definitions import DefinitionBatch, Finished
    from celery_wheelbeat.runtime.clock import Reading

logger = logging.getLogger("celery.beat")

OPENING_S = 10.0
"""How long a start waits for the database before the entries of ``beat_schedule`` start without it."""
REST_MAX_S = 1.0
"""Longest sleep between two ticks."""


class Beat:
    """The state of one beat and the steps of its tick; ``parts`` are its collaborators."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.pid = os.getpid()
        self.state = "starting"
        self.refusals = QuarantineReports(parts.entries, parts.desk)
        self._begun_s = parts.clock.monotonic_s()
        self._begun_ms = 0
        """Cursor of the engine at its start. A first start misses only fire times that pass during the load."""
        self._marks: dict[str, int | None] = {}
        self._loaded_to = -1
        """Highest id loaded so far."""
        self._stored: MarkDocument | None = None
        self._namespace: str | None = None
        self._remembered: str | None = None
        """The installation's namespace as an earlier start stored it."""
        self._replaced_by: int | None = None
        """Id of the monitor that replaces the default entry ``celery.backend_cleanup``."""
        self._entries_seen: tuple[int, int] | None = None
        self._due_at_start: list[DueBatch] = []
        self._lane_lines = PollLaneLog(parts.engine, self.key_of)
        self._gap_lines = GapLog(parts.ledger)
        self.loading = Loading(parts.engine)

    def start(self) -> None:
        """Start the threads."""
        self.parts.lines.install()
        self.parts.dispatch.start()
        self.parts.desk.start()
        logger.info("beat: Time zones as of tzdata %s", database_version())

    # The steps of a tick, in order.

    def read_clock(self) -> Reading:
        """Read the clock; a backward step rebuilds the wheel."""
        parts = self.parts
        reading = parts.guard.look(parts.clock.wall_ms(), parts.clock.monotonic_s())
        if reading.motion is Motion.BACK and self.state != "starting":
            logger.critical("beat: The clock was set back by %.1f s; following it", reading.gap_ms / 1000)
            parts.engine.step_back(reading.now_ms, reading.steps)
            parts.mark.step_back(parts.engine.cursor_ms)
        elif reading.motion in (Motion.STALLED, Motion.FORWARD):
            logger.warning("beat: %.1f s passed unnoticed (%s)", reading.gap_ms / 1000, reading.motion.value)
            if self.state != "starting":
                self._gap_lines.begin_stall(reading)
        return reading

    def take_in_changes(self, reading: Reading) -> None:
        """Apply the changes from the I/O thread and from ``beat_schedule`` to the engine."""
        for news in self.parts.desk.take():
            self._take_in(news, reading.now_ms)
        if self.state == "starting" and self.parts.clock.monotonic_s() - self._begun_s > OPENING_S:
            self._begin_without_database(reading.now_ms)
        if self.state != "starting":
            self._update_entries(reading.now_ms)
            self.refusals.look_at_entries()
        if self.state == "running":
            self._gap_lines.end_start()

    def advance(self, reading: Reading) -> list[DueBatch]:
        """Process every slot up to now; returns the due runs."""
        if self.state == "starting":
            return []
        due, self._due_at_start = self._due_at_start, []
        engine = self.parts.engine
        due += self._gap_lines.in_stall(lambda: engine.advance(reading.now_ms, cause=reading.skip_reason))
        if engine.caught_up(reading.now_ms):
            self._gap_lines.end_stall()
        self._lane_lines.look()
        return due

    def submit_due(self, due: Iterable[DueBatch]) -> None:
        """Queue the due runs and pass as many to the publisher as it has room for."""
        now_s = self.parts.clock.monotonic_s()
        self.parts.dispatch.refresh(now_s)
        self.parts.dispatch.enqueue(due)
        self.parts.dispatch.submit_due(now_s)

    def take_in_outcomes(self) -> None:
        """Settle the outcomes that the publisher reports; pass finished one-offs and quarantines to the I/O thread."""
        settled = self.parts.dispatch.collect_outcomes(self.parts.clock.monotonic_s())
        if settled.finished:
            self._report_finished(settled.finished)
        if settled.poisoned:
            self.refusals.look_at_poison({job: (self.key_of(job), why) for job, why in settled.poisoned.items()})
        self.refusals.lift(settled.lifted)

    def move_mark(self, reading: Reading) -> None:
        """Move the mark up to the oldest unsettled run; the mark stays until the load has ended."""
        engine = self.parts.engine
        if self.state == "running":
            ask_ms = engine.lane.polled.next_ask_ms()
            self.parts.mark.move(
                engine.cursor_ms,
                oldest_fire_ms=self.parts.dispatch.oldest_fire_ms(),
                ask_ms=None if ask_ms == NEVER_MS else ask_ms,
                limit_ms=reading.mark_limit_ms,
            )

    def sweep(self, number: int) -> SweepReport:
        """Let the watchdog check shard ``number``; read definitions that it could not heal again from their source."""
        parts = self.parts
        report = parts.engine.sweep(number)
        lost = report.reload_ids
        if report.resync or any(job_id < 0 for job_id in lost):
            parts.entries.recompile(parts.entries.ids() if report.resync else lost)
            parts.view.version += 1
        if report.resync or any(job_id >= 0 for job_id in lost):
            parts.desk.reread(None if report.resync else [job_id for job_id in lost if job_id >= 0])
        return report

    def wait_s(self, reading: Reading) -> float:
        """Return the seconds until the next work, at most ``REST_MAX_S``; ``Wake`` may end the sleep earlier."""
        parts = self.parts
        if self.state == "starting":
            return REST_MAX_S
        if not parts.engine.caught_up(reading.now_ms) or parts.engine.lane.turn.behind:
            return 0.0
        if parts.dispatch.can_submit():
            return 0.0
        tick_ms = parts.settings.tick_ms
        next_ms = (parts.engine.cursor + 1) * tick_ms
        return min(REST_MAX_S, max(0.0, (next_ms - parts.clock.wall_ms()) / 1000))

    def mark_document(self) -> MarkDocument | None:
        """Return the document that the next start reads; None while there is neither a mark nor a stored document."""
        if self.parts.mark.mark_ms is None:
            return self._stored
        return MarkDocument(
            self.parts.mark.mark_ms,
            self.parts.engine.step_number,
            self.parts.engine.relived_until_ms,
            self._stored_entries() if self._entries_seen is None else self.parts.entries.marks(),
        )

    @property
    def refused(self) -> Mapping[str, InvalidMonitor]:
        """Quarantined monitors by key."""
        return self.refusals.monitors

    @property
    def namespace(self) -> str | None:
        """Namespace of the run ids; None until the database or a setting names it."""
        return self._namespace

    def key_of(self, job_id: int) -> str:
        """Return the text key of a job."""
        return monitor_key(job_id) if job_id >= 0 else entry_key(self.parts.entries.name_of(job_id))

    # Parts of the steps.

    def _take_in(self, news: News, now_ms: int) -> None:
        match news:
            case Remembered(namespace):
                self._remembered = namespace
                if self._namespace is None and self.state != "starting":
                    self._set_namespace(namespace)
            case Opened():
                self._begin(news, now_ms)
                self._set_namespace(news.namespace)
            case Sized(jobs, text_bytes):
                self.loading.begin(jobs, text_bytes, self.parts.clock.monotonic_s())
            case Loaded(batch, refused, last):
                self.refusals.look_at_monitors(refused, batch.ids)
                self._watch_replaceable(batch, ())
                self._load(batch)
                self.loading.go_on(self.parts.clock.monotonic_s())
                if last:
                    self.state = "running"
                    self.loading.end(self.parts.clock.monotonic_s())
            case Changed(changes, refused):
                seen_ids = np.concatenate((changes.upserts.ids, changes.deleted_ids))
                self.refusals.look_at_monitors(refused, seen_ids)
                monitors = changes.deleted_ids[changes.deleted_ids >= 0]  # an id below 0 may be that of an entry
                self._watch_replaceable(changes.upserts, monitors.tolist())
                self._apply(ChangeBatch(changes.upserts, monitors, changes.cursor))

    def _begin(self, opened: Opened, now_ms: int) -> None:
        """Start the engine from the stored marks; if it already runs, take in the marks late."""
        known = known_marks(opened.marks, now_ms)
        self.refusals.recall(opened.quarantined)
        if self.state == "starting":
            self._start_engine(known, now_ms)
            self.state = "loading" if opened.loading else "running"
        self.parts.engine.misfires.first_start = not known
        latest_ms = max((document.mark_ms for document in known.values()), default=None)
        self._gap_lines.begin_start(None if latest_ms is None else self._begun_ms - latest_ms)
        self._marks = {self.parts.dispatch.destination: self._begun_ms, **{to: m.mark_ms for to, m in known.items()}}

    def _begin_without_database(self, now_ms: int) -> None:
        """Start the engine without the database. Runs wait unless the namespace of their ids is known."""
        logger.warning("beat: The database does not answer; starting without what it knows of earlier runs")
        self._begin(Opened(None, {}, loading=True), now_ms)
        if self.parts.settings.namespace or self._remembered:
            self._set_namespace(self._remembered)
        else:
            logger.error(
                "beat: Runs wait for the database, which knows the namespace of their ids; "
                "with wheelbeat_namespace they would not have to"
            )

    def _start_engine(self, known: Mapping[str, MarkDocument], now_ms: int) -> None:
        self._stored = choose(known.values(), now_ms).document
        steps, relived_until_ms = (
            (0, 0) if self._stored is None else (self._stored.steps, self._stored.relived_until_ms)
        )
        self.parts.guard.steps = steps
        self.parts.entries.remember(self._stored_entries())
        self.parts.engine.start(now_ms, step_number=steps, relived_until_ms=relived_until_ms)
        self._begun_ms = self.parts.engine.cursor_ms
        if self._stored is not None:  # a fast clock may have stored a mark later than now
            self.parts.mark.mark_ms = min(self._stored.mark_ms, self._begun_ms)

    def _set_namespace(self, installation: str | None) -> None:
        self._namespace = self.parts.namespace_of(installation)
        remembered_s = int(self.parts.settings.dedup_ttl)
        claims = ClaimHeaders(self._namespace, remembered_s, visibility_timeout_s(self.parts.app))

        def headers_of(view: JobView, entry: Any) -> Mapping[str, Any]:
            overlap = overlap_of(view.flags).name.lower()
            return claims.of(self.key_of(view.id), overlap, entry.schedule, entry.options.get("expires"))

        self.parts.dispatch.name_runs(Rendering(RunIds(self._namespace), self.key_of, self._entry_of, headers_of))

    def _stored_entries(self) -> Mapping[str, EntryMark]:
        return {} if self._stored is None else self._stored.entries

    def _entry_of(self, view: JobView, fire_ms: int) -> Any:
        if view.id >= 0:
            return self.parts.monitor_entries.entry_for(view, fire_ms)
        return private_entry(self.parts.view.data.get(view.name), fire_ms)  # None if another thread has removed it

    def _update_entries(self, now_ms: int) -> None:
        view, entries = self.parts.view, self.parts.entries
        seen = (view.version, now_ms // 1000)  # edits of entry objects are detected once a second
        if seen == self._entries_seen:
            return
        first, self._entries_seen = self._entries_seen is None, seen
        there = dict(view.data)  # an atomic copy: other threads may write
        if self._replaced_by is not None:
            there.pop(REPLACEABLE_ENTRY, None)
        changes = entries.changes(there, now_ms)
        if first:
            self._settle_start(changes.upserts)
        elif len(changes.upserts) or len(changes.deleted_ids):
            self._apply(changes)

    def _load(self, batch: DefinitionBatch) -> None:
        """Load one block. Jobs that a restarted load delivers a second time are applied as edits."""
        if len(batch) and batch.ids[0] <= self._loaded_to:
            again = self.parts.engine.shards.known(batch.ids)
            self._apply(ChangeBatch(batch.take(np.flatnonzero(again)), np.empty(0, np.int64)))
            batch = batch.take(np.flatnonzero(~again))
        self._loaded_to = max([self._loaded_to, *batch.ids[-1:].tolist()])
        self._settle_start(batch)
        self._keep_done(self.parts.dispatch.one_offs.load(batch))

    def _settle_start(self, batch: DefinitionBatch) -> None:
        """Load jobs; the next ``advance`` offers their missed runs."""
        self._due_at_start += self._gap_lines.in_start(lambda: self.parts.engine.load(batch, self._marks))

    def _apply(self, changes: ChangeBatch) -> None:
        parts = self.parts
        parts.engine.apply(changes)
        touched = np.concatenate((changes.upserts.ids, changes.deleted_ids))
        lifted = parts.dispatch.redefined(touched)
        self.refusals.lift(lifted)
        one_offs = parts.dispatch.one_offs.redefine(changes.upserts, changes.deleted_ids.tolist(), parts.engine.reached)
        self._keep_done(one_offs.done)
        if len(changes.deleted_ids) or one_offs.withdrawn:
            withdrawn = np.array(one_offs.withdrawn, np.int64)
            parts.dispatch.drop(np.concatenate((changes.deleted_ids, withdrawn)), "removed")
        parts.monitor_entries.redefined(touched)

    def _keep_done(self, done: Mapping[int, Finished]) -> None:
        """Finish one-offs again that an edit older than their end has re-enabled, and report them again."""
        if done:
            self.parts.dispatch.finish(done)
            self._report_finished(done)

    def _report_finished(self, finished: Mapping[int, Finished]) -> None:
        """Ask the I/O thread to store ``finished_at`` of finished monitors."""
        self.parts.desk.finish({job_id: done for job_id, done in finished.items() if job_id >= 0})

    def _watch_replaceable(self, batch: DefinitionBatch, deleted_ids: Iterable[int]) -> None:
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
            self.parts.view.version += 1
