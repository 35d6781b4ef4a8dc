"""One running beat: the steps of a tick, over the engine and its edges.

Created at the first tick, in the process and thread that schedules. A step never waits for a broker, a database or a
thread; ``wait_s`` returns how long the scheduler may sleep.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import numpy as np

from celery_wheelbeat.beat.marks import Mark, MarkDocument
from celery_wheelbeat.beat.quarantine import QuarantineReports
from celery_wheelbeat.beat.startup import Startup
from celery_wheelbeat.jobs.definitions import ChangeBatch, DueBatch
from celery_wheelbeat.jobs.identity import LATER_IDS_FROM
from celery_wheelbeat.observe.gap_log import GapLog
from celery_wheelbeat.observe.poll_lane_log import PollLaneLog
from celery_wheelbeat.runtime.clock import Motion
from celery_wheelbeat.schedules.kinds import NEVER_MS
from celery_wheelbeat.schedules.zones import database_version
from celery_wheelbeat.sources.messages import Changed, Loaded, Opened, Remembered, Sized

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_wheelbeat.beat.entry_changes import EntryChanges
    from celery_wheelbeat.beat.standing.member import Member
    from celery_wheelbeat.beat.startup import Naming
    from celery_wheelbeat.dispatch.dispatcher import Dispatcher
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.engine.sharing.shard_marks import ShardMarks
    from celery_wheelbeat.engine.watchdog import SweepReport
    from celery_wheelbeat.jobs.definitions import DefinitionBatch
    from celery_wheelbeat.later.in_wheel import LaterRuns
    from celery_wheelbeat.runtime.clock import Clock, ClockGuard, Reading
    from celery_wheelbeat.runtime.mailbox import Wake
    from celery_wheelbeat.sources.messages import SourceIO, SourceMessage

logger = logging.getLogger("celery.beat")

REST_MAX_S = 1.0
"""Longest sleep between two ticks."""


class DefinitionListener(Protocol):
    """An object that keeps something per definition."""

    def redefined(self, changes: ChangeBatch) -> None:
        """Take note of changes that the engine has applied."""


class Beat:
    """The steps of a tick. ``sources`` and ``dispatcher`` have threads of their own."""

    def __init__(
        self,
        sources: SourceIO,
        engine: Engine,
        dispatcher: Dispatcher,
        entries: EntryChanges,
        *,
        listeners: Iterable[DefinitionListener],
        naming: Naming,
        later: LaterRuns,
        clock: Clock,
        guard: ClockGuard,
        wake: Wake,
        member: Member | None = None,
    ) -> None:
        """``member``: None if this beat sends everything, whether or not others are here."""
        self.sources = sources
        self.engine = engine
        self.dispatcher = dispatcher
        self.entries = entries
        self.later = later
        self.listeners = [*listeners]
        """Objects that keep something per definition and have to drop it when the definition changes."""
        self.clock = clock
        self.wake = wake
        self.pid = os.getpid()
        self.mark = Mark()
        self.quarantine = QuarantineReports(entries.in_force, sources)
        self.member = member
        self._news: deque[SourceMessage] = deque()
        """Messages of the I/O thread that are not applied yet."""
        self._guard = guard
        self._reading: Reading | None = None
        """The last reading of the clock."""
        self._passed_ms: int | None = None
        """Up to here every run was handed out, as of the last ``move_mark``; None before the first."""
        self._gaps = GapLog(engine.ledger)
        self._poll_lane_log = PollLaneLog(engine, entries.key_of)
        self.startup = Startup(
            engine, dispatcher, entries, naming, clock=clock, guard=guard, mark=self.mark, gaps=self._gaps
        )

    @property
    def state(self) -> str:
        """``starting``, ``loading``, ``running`` or ``stopped``."""
        return self.startup.state

    def start(self) -> None:
        """Start the threads."""
        self.dispatcher.start()
        self.sources.start()
        logger.info("beat: Time zones as of tzdata %s", database_version())

    # The steps of a tick, in order.

    def read_clock(self) -> Reading:
        """Read the clock; a backward step rebuilds the wheel."""
        reading = self._guard.read(self.clock.wall_ms(), self.clock.monotonic_s())
        self._reading = reading
        if reading.motion is Motion.BACK and self.startup.has_begun:
            self._step_back(reading)
        elif reading.motion in (Motion.STALLED, Motion.FORWARD):
            logger.warning("beat: %.1f s passed without a tick (%s)", reading.gap_ms / 1000, reading.motion.value)
            if self.startup.has_begun:
                self._gaps.begin_stall(reading)
        return reading

    def apply_changes(self, reading: Reading) -> None:
        """Apply the changes from the I/O thread and from ``beat_schedule`` to the engine.

        After a stall the missed slots are processed first, in one or several ticks: a change must not affect fire times
        from before it was read.
        """
        if self._gaps.stalled:
            self._enqueue(self.advance(reading))
            if self._gaps.stalled:
                return
        self._look_around()
        self._news += self.sources.take()
        while self._news and not self._waits:
            self._apply_message(self._news.popleft(), reading.now_ms)
            self._look_around()
        self.startup.stop_waiting(reading.now_ms)
        if self.startup.has_begun and not self._waits:
            self._apply_entries(reading.now_ms)
            self.quarantine.update_entries()
            self.later.apply_reads(self._apply)
        if self.state == "running":
            self._gaps.end_start()

    def advance(self, reading: Reading) -> list[DueBatch]:
        """Process every slot up to now; returns the due runs."""
        if not self._may_advance():
            return []
        due = self.startup.take_due()
        due += self._gaps.in_stall(lambda: self.engine.advance(reading.now_ms, cause=reading.skip_reason))
        if self.engine.caught_up(reading.now_ms):
            self._gaps.end_stall()
        self._poll_lane_log.update()
        return due

    def submit_due(self, due: Iterable[DueBatch]) -> None:
        """Queue the due runs and pass as many to the publisher as it has room for."""
        self._enqueue(due)
        if not self.startup.first_mark.must_wait():
            self.dispatcher.submit_due(self.clock.monotonic_s())

    def collect_outcomes(self) -> None:
        """Settle the outcomes that the publisher reports; pass finished monitors and quarantines to the I/O thread."""
        of_jobs = self.dispatcher.collect_outcomes(self.clock.monotonic_s())
        if of_jobs.finished:
            self.sources.finish({job_id: done for job_id, done in of_jobs.finished.items() if job_id >= 0})
        if of_jobs.poisoned:
            key_of = self.entries.key_of
            self.quarantine.add_unsendable({job: (key_of(job), why) for job, why in of_jobs.poisoned.items()})
        self.quarantine.lift(of_jobs.lifted)
        self.later.remove_settled(self.engine.cursor_ms, self.clock.monotonic_s(), self._apply)

    def move_mark(self, reading: Reading) -> None:
        """Move the mark up to the oldest unsettled run; the mark stays until the load has ended."""
        ask_ms = self.engine.poll_lane.jobs.next_ask_ms()
        passed_ms: int | None = self.engine.cursor_ms
        if self.member is not None:
            limit_ms = NEVER_MS if reading.mark_limit_ms is None else reading.mark_limit_ms
            passed_ms = self.member.move_marks(min(limit_ms, ask_ms - 1), loaded=self.state == "running")
        if self.state == "running" and passed_ms is not None:
            self._passed_ms = min(passed_ms, ask_ms - 1, reading.mark_limit_ms or NEVER_MS)
            self.mark.move(
                passed_ms,
                oldest_fire_ms=self.dispatcher.oldest_fire_ms(),
                ask_ms=None if ask_ms == NEVER_MS else ask_ms,
                limit_ms=reading.mark_limit_ms,
            )

    def sweep(self, number: int) -> SweepReport:
        """Let the watchdog check shard ``number``; read definitions that it could not heal again from their source."""
        report = self.engine.sweep(number)
        lost = report.reload_ids
        if report.resync or any(job_id < 0 for job_id in lost):
            self.entries.recompile(None if report.resync else lost)
        monitors = [job_id for job_id in lost if 0 <= job_id < LATER_IDS_FROM]
        if report.resync or monitors:
            self.sources.reread(None if report.resync else monitors)
        return report

    def wait_s(self, reading: Reading) -> float:
        """Return the seconds until the next work, at most ``REST_MAX_S``; ``Wake`` may end the sleep earlier."""
        if not self._may_advance():
            return REST_MAX_S
        if not self.engine.caught_up(reading.now_ms) or self.engine.poll_lane.turn.behind:
            return 0.0
        if self.dispatcher.can_submit() and not self.startup.first_mark.must_wait():
            return 0.0
        next_ms = (self.engine.cursor + 1) * self.engine.config.tick_ms
        return min(REST_MAX_S, max(0.0, (next_ms - self.clock.wall_ms()) / 1000))

    # The end.

    def stop_sending(self, timeout_s: float, *, settle: bool) -> None:
        """Stop the publisher within ``timeout_s``. ``settle``: collect the last outcomes and move the mark."""
        if self.member is not None:
            self.member.leave()
        self.dispatcher.close(timeout_s)
        if settle:
            self.collect_outcomes()
            self.later.remove_settled(self.engine.cursor_ms, math.inf, self._apply)
            self._reading = self._guard.read(self.clock.wall_ms(), self.clock.monotonic_s())
            self.move_mark(self._reading)
        if self.member is not None:
            self.member.say_last(timeout_s, settled=settle)
        self.startup.state = "stopped"

    def close(self, timeout_s: float) -> None:
        """Stop the I/O threads, each within ``timeout_s``, and count the pending runs as skipped."""
        self.later.close(timeout_s)
        self.sources.close(timeout_s)
        if self.member is not None:
            self.member.close(timeout_s)
        left = self.dispatcher.shutdown()
        logger.info("beat: Stopped; %d runs sent, %d left for the next start", self.engine.ledger.sent, left.runs)

    def mark_document(self) -> MarkDocument | None:
        """Return the document that the next start reads; None while there is neither a mark nor a stored document."""
        if self.mark.mark_ms is None:
            return self.startup.stored
        held_ms = None if self._reading is None else self._reading.mark_limit_ms
        return MarkDocument(
            self.mark.mark_ms,
            self.engine.relived.step,
            self.engine.relived.until_ms,
            self.mark.settled_until_ms,
            held_ms=held_ms or 0,
            reached_ms=self.engine.cursor_ms if held_ms else 0,
            entries=self.startup.stored_entries if self.entries.is_first else self.entries.in_force.marks(),
            later=self.later.resume(),
            shards=self._shard_marks(),
        )

    # Parts of the steps.

    def _shard_marks(self) -> ShardMarks | None:
        """Return the mark of each shard; None while only one for all of them is known."""
        if self.member is not None:
            return self.member.holdings.marks_until(self.engine.cursor_ms) or self.mark.shards
        if self._passed_ms is not None:
            self.mark.move_shards(self._passed_ms, self.dispatcher.oldest_by_shard(self.engine.config.shards))
        return self.mark.shards

    def _step_back(self, reading: Reading) -> None:
        right_ms = NEVER_MS if reading.mark_limit_ms is None else reading.mark_limit_ms
        if self.state == "loading":  # monitors that are not loaded yet have missed what came after the mark
            right_ms = min(right_ms, self.mark.mark_ms or 0)
        self.engine.step_back(reading.now_ms, reading.steps, right_ms)
        settled_ms = self.engine.relived.settled_ms
        self.mark.step_back(self.engine.cursor_ms, settled_ms)
        self._passed_ms = None
        if self.member is not None:
            self.member.holdings.step_back(self.engine.cursor_ms)
        logger.critical(
            "beat: The clock was set back by %.1f s; following it. Crons and one-time jobs fire again after %s",
            reading.gap_ms / 1000,
            datetime.fromtimestamp(max(settled_ms, reading.now_ms) / 1000, UTC).isoformat(" ", "seconds"),
        )

    def _enqueue(self, due: Iterable[DueBatch]) -> None:
        self.dispatcher.refresh(self.clock.monotonic_s())
        self.dispatcher.enqueue(due)

    def _look_around(self) -> None:
        """Take and let go shards, as one of several beats."""
        if self.member is None:
            return
        if self.startup.namespace is not None:
            stored = self.startup.stored
            self.member.begin(self.startup.namespace, None if stored is None else self.startup.marks)
        self.member.know(self.entries.hashes())
        due = self.member.turn(loaded=self.state == "running" and not self.entries.is_first)
        if due:
            self._enqueue(due)

    @property
    def _waits(self) -> bool:
        return self.member is not None and self.member.waits

    def _may_advance(self) -> bool:
        return self.startup.has_begun and not self._waits

    def _apply_message(self, message: SourceMessage, now_ms: int) -> None:
        match message:
            case Remembered(namespace):
                self.startup.remember(namespace)
            case Opened():
                self.quarantine.recall(message.quarantined)
                self.startup.open(message, now_ms)
                self.later.start(self.startup.later)
            case Sized():
                self.startup.begin_load(message)
            case Loaded(batch, refused, last):
                self.quarantine.update_monitors(refused, batch.ids)
                self.entries.note_replacement(batch, ())
                self._load(batch)
                self.startup.note_block(last=last)
            case Changed(changes, refused):
                self.quarantine.update_monitors(refused, changes.ids)
                deleted = changes.deleted_ids
                monitors = deleted[(deleted >= 0) & (deleted < LATER_IDS_FROM)]  # other ids are those of other jobs
                self.entries.note_replacement(changes.upserts, monitors.tolist())
                self._apply(ChangeBatch(changes.upserts, monitors, changes.cursor))

    def _apply_entries(self, now_ms: int) -> None:
        first, changes = self.entries.is_first, self.entries.changes(now_ms)
        if changes is None:
            return
        if first:
            self.startup.load(changes.upserts)
        elif len(changes.upserts) or len(changes.deleted_ids):
            self._apply(changes)

    def _load(self, block: DefinitionBatch) -> None:
        known, block = self.startup.split_known(block)
        if known is not None:
            self._apply(ChangeBatch(known, np.empty(0, np.int64)))
        self.startup.load(block)
        self.dispatcher.loaded(block)

    def _apply(self, changes: ChangeBatch) -> None:
        self.engine.apply(changes)
        for listener in self.listeners:
            listener.redefined(changes)
