"""The start of a beat: open the sources, choose the mark, start the engine, load the monitors, settle missed time.

States are in the docstring of the package. Invariant: no run is sent before the namespace of run ids is known, and a
mark that was never read is not overwritten.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.beat.first_mark import FirstMark
from celery_wheelbeat.beat.loading import Loading
from celery_wheelbeat.beat.marks import MarkDocument, choose, known_marks
from celery_wheelbeat.engine.shards import Relived
from celery_wheelbeat.engine.sharing.shard_marks import ShardMarks
from celery_wheelbeat.later.open_seconds import Resume
from celery_wheelbeat.runtime.clock import WAIT_MS
from celery_wheelbeat.sources.messages import Opened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_wheelbeat.beat.entry_changes import EntryChanges
    from celery_wheelbeat.beat.marks import KnownMarks, Mark
    from celery_wheelbeat.dispatch.dispatcher import Dispatcher
    from celery_wheelbeat.dispatch.lane import Rendering
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.jobs.definitions import DefinitionBatch, DueBatch, EntryMark
    from celery_wheelbeat.observe.gap_log import GapLog
    from celery_wheelbeat.runtime.clock import Clock, ClockGuard
    from celery_wheelbeat.sources.messages import Sized

logger = logging.getLogger("celery.beat")

OPENING_S = 10.0
"""How long a start waits for the database before the entries of ``beat_schedule`` start without it."""
UNWRITTEN_MS = 60_000
"""How far a process may have handed out runs after its last mark document, by a clock that was wrong."""


@dataclass(frozen=True, slots=True)
class Naming:
    """How run ids get their namespace, and how a namespace becomes the functions that render runs."""

    configured: bool
    """Whether a setting names the namespace, so that the database is not needed for it."""
    namespace_of: Callable[[str | None], str]
    """UUID of the installation, None if unknown → namespace."""
    rendering_of: Callable[[str], Rendering]
    """Namespace → rendering."""


class Startup:
    """The states of one beat, from ``starting`` to ``running``."""

    def __init__(
        self,
        engine: Engine,
        dispatcher: Dispatcher,
        entries: EntryChanges,
        naming: Naming,
        *,
        clock: Clock,
        guard: ClockGuard,
        mark: Mark,
        gaps: GapLog,
    ) -> None:
        self.state = "starting"
        self.namespace: str | None = None
        """Namespace of the run ids; None until the database or a setting names it."""
        self.stored: MarkDocument | None = None
        """The mark of earlier processes that this start uses."""
        self.later: Resume | None = None
        """Where an earlier beat stopped to read one-off runs."""
        self.loading = Loading(engine)
        self.first_mark = FirstMark(clock.monotonic_s)
        self._engine = engine
        self._dispatcher = dispatcher
        self._entries = entries
        self._naming = naming
        self._clock = clock
        self._guard = guard
        self._mark = mark
        self._gaps = gaps
        self._constructed_s = clock.monotonic_s()
        self._begun_ms = 0
        """Cursor of the engine at its start. A first start misses only fire times that pass during the load."""
        self._marks: dict[str, ShardMarks] = {}
        """The marks by destination, for jobs that are loaded."""
        self._installation: str | None = None
        """The installation's namespace as an earlier start stored it."""
        self._loaded_to = -1
        """Highest id loaded so far."""
        self._due: list[DueBatch] = []

    @property
    def has_begun(self) -> bool:
        """Whether the engine is started."""
        return self.state != "starting"

    @property
    def marks(self) -> ShardMarks | None:
        """The stored marks of this beat's destination; None before the start."""
        return self._marks.get(self._dispatcher.destination)

    @property
    def stored_entries(self) -> Mapping[str, EntryMark]:
        """The entries that the stored mark knows."""
        return {} if self.stored is None else self.stored.entries

    def remember(self, installation: str) -> None:
        """Use the namespace that an earlier start stored, if the database does not name one in time."""
        self._installation = installation
        if self.namespace is None and self.has_begun:
            self._set_namespace(installation)

    def open(self, opened: Opened, now_ms: int) -> None:
        """Start from what the store knows. If the engine already runs, only apply the marks and the namespace.

        Without a usable mark, runs wait until the mark of this start is stored.
        """
        self._begin(opened, now_ms)
        self._set_namespace(opened.namespace)
        if opened.former_namespace not in (None, self.namespace):
            logger.warning(
                "beat: No beat has run in the namespace %r; the last one ran in %r. This is a first start: nothing "
                "counts as missed, and runs have other ids than that beat gave them, so workers do not recognise "
                "copies of what it sent. If this was not meant, set wheelbeat_namespace back",
                self.namespace,
                opened.former_namespace,
            )
        if self._engine.misfires.first_start:
            self.first_mark.begin()
            self._mark.mark_ms = self._begun_ms

    def stop_waiting(self, now_ms: int) -> None:
        """Start without the database if it has not answered for ``OPENING_S``.

        Runs wait unless the namespace of their ids is known.
        """
        if self.has_begun or self._clock.monotonic_s() - self._constructed_s <= OPENING_S:
            return
        logger.warning("beat: The database does not answer; starting without its record of earlier runs")
        self._begin(Opened(None, {}, loading=True), now_ms)
        if self._naming.configured or self._installation:
            self._set_namespace(self._installation)
        else:
            logger.error(
                "beat: Runs wait for the database, which stores the namespace of their ids; "
                "set wheelbeat_namespace to send them without it"
            )

    def begin_load(self, sized: Sized) -> None:
        """Reserve space for a load; raises ``TooManyJobs`` if it does not fit."""
        self.loading.begin(sized.jobs, sized.text_bytes, self._clock.monotonic_s())

    def split_known(self, block: DefinitionBatch) -> tuple[DefinitionBatch | None, DefinitionBatch]:
        """Split a block into the jobs that a restarted load delivers a second time (None: no such jobs), and the rest.

        The former have to be applied as edits.
        """
        known = None
        if len(block) and block.ids[0] <= self._loaded_to:
            again = self._engine.shards.known(block.ids)
            known, block = block.take(np.flatnonzero(again)), block.take(np.flatnonzero(~again))
        self._loaded_to = max([self._loaded_to, *block.ids[-1:].tolist()])
        return known, block

    def load(self, batch: DefinitionBatch) -> None:
        """Load jobs and settle what each has missed; ``take_due`` returns the runs to offer."""
        self._due += self._gaps.in_start(lambda: self._engine.load(batch, self._marks))

    def note_block(self, *, last: bool) -> None:
        """Report the progress of the load; its last block ends the start."""
        self.loading.go_on(self._clock.monotonic_s())
        if last:
            self.state = "running"
            self.loading.end(self._clock.monotonic_s())

    def take_due(self) -> list[DueBatch]:
        """Return the missed runs that loaded jobs are owed."""
        due, self._due = self._due, []
        return due

    def _begin(self, opened: Opened, now_ms: int) -> None:
        marks = known_marks(opened.marks, now_ms)
        known = marks.documents
        self.later = Resume.read(opened.later)
        if not self.has_begun:
            self._start_engine(marks, now_ms)
            self.state = "loading" if opened.loading else "running"
        self._engine.misfires.first_start = not known
        latest_ms = max((document.latest_ms for document in known.values()), default=None)
        self._gaps.begin_start(None if latest_ms is None else self._begun_ms - latest_ms)
        destination = self._dispatcher.destination
        shards = self._engine.config.shards
        self._marks = {to: _complete(document.by_shard.resized(shards), to) for to, document in known.items()}
        self._marks.setdefault(destination, ShardMarks.uniform(shards, self._begun_ms))

    def _start_engine(self, marks: KnownMarks, now_ms: int) -> None:
        self.stored = choose(marks.documents.values(), now_ms).document
        self._guard.steps = marks.steps
        self._entries.remember(self.stored_entries)
        stored = MarkDocument(0) if self.stored is None else self.stored
        relived_until_ms = stored.relived_until_ms
        if stored.reached_ms - stored.held_ms > WAIT_MS:
            if now_ms >= stored.reached_ms - WAIT_MS:
                self._guard.hold(stored.reached_ms - stored.held_ms)
            else:
                logger.critical("beat: The clock was set back while no beat ran; following it")
                self._guard.steps += 1
                relived_until_ms = max(relived_until_ms, stored.reached_ms + UNWRITTEN_MS)
        self._mark.remember(stored.settled_until_ms)
        self._engine.start(now_ms, Relived(relived_until_ms, self._guard.steps, stored.settled_until_ms))
        self._begun_ms = self._engine.cursor_ms
        if self.stored is not None:  # a fast clock may have stored a mark later than now
            self._mark.mark_ms = min(self.stored.mark_ms, self._begun_ms)
            shards = self.stored.by_shard.resized(self._engine.config.shards).filled()
            self._mark.shards = shards.capped(self._begun_ms)

    def _set_namespace(self, installation: str | None) -> None:
        self.namespace = self._naming.namespace_of(installation)
        self._dispatcher.name_runs(self._naming.rendering_of(self.namespace))


def _complete(marks: ShardMarks, destination: str) -> ShardMarks:
    """Return the marks of all shards; one that is missing while others are known is an error of ours."""
    if not marks.known.all():
        logger.error(
            "beat: A mark is missing: %d shards of %s have none, though others have; the earliest known one is used",
            int(np.count_nonzero(~marks.known)),
            destination,
        )
    return marks.filled()
