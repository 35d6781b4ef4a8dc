"""One process of a beat: the real scheduler and all of its parts, with only the edges replaced.

Replaced are the clock, the wake (where the scheduling thread waits), the publisher and the database. Their methods are
the points at which simulated time passes, other threads get their turn, and the process may die.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_wheelbeat import sources
from celery_wheelbeat.beat.assembly import BeatEdges, assemble
from celery_wheelbeat.beat.scheduler import WheelScheduler
from celery_wheelbeat.dispatch.celery_lane.lane import CeleryLane
from celery_wheelbeat.dispatch.dispatcher import Dispatcher
from celery_wheelbeat.runtime.clock import ClockGuard
from celery_wheelbeat.sources.changelog.reader import MESSAGES_MAX, ChangeLogReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from celery_wheelbeat.dispatch import Confirmed, Failed, Run
    from celery_wheelbeat.dispatch.backlog import Backlog
    from celery_wheelbeat.dispatch.reports.lateness import Lateness
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.jobs.definitions import DueBatch
    from celery_wheelbeat.runtime.clock import Reading
    from celery_wheelbeat.settings import Settings
    from celery_wheelbeat.sources import MonitorDatabase
    from celery_wheelbeat.sources.messages import SourceMessage
    from simulation.auditor import Auditor
    from simulation.sim_broker import SimPublisher
    from simulation.sim_clock import SimClock

APP = Celery("simulated", set_as_current=False, broker="memory://")
APP.conf.result_expires = None  # else Celery adds an entry of its own


class Life:
    """See the module. ``rest`` is what the scheduling thread's wait becomes."""

    def __init__(
        self,
        *,
        database: MonitorDatabase,
        clock: SimClock,
        settings: Settings,
        deadline_s: float | None,
        entries: Mapping[str, Mapping[str, Any]],
        publisher: SimPublisher,
        auditor: Auditor,
        rest: Callable[[float], None],
        reach: Callable[[str], None],
    ) -> None:
        APP.conf.beat_schedule = dict(entries)
        APP.conf.beat_cron_starting_deadline = deadline_s
        sources.register(lambda _app: database)
        try:
            self.scheduler = WheelScheduler(APP)
            edges = BeatEdges(
                guard=_Guard(auditor, reach),
                wake=_Wake(rest),
                sources=lambda reader: _Sources(reader, clock, auditor, reach),
                dispatcher=partial(_Dispatch, publisher, auditor),
            )
            self.beat, self.supervision = assemble(self.scheduler, settings, clock, edges)
        finally:
            sources.register(None)
        self.scheduler.settings = settings
        self.publisher = publisher
        self.sources = self.beat.sources
        self.supervision._status.surveyor.turn = lambda _now_ms: (
            None
        )  # the forecast of the load would cost a third of the time
        self.scheduler._beat, self.scheduler._supervision = self.beat, self.supervision
        auditor.begin_life(self.beat, self.supervision, publisher)
        self.beat.start()

    def turn(self) -> None:
        """Run one turn of the scheduler, its wait included."""
        self.scheduler.tick()

    def add_entry(self, name: str, entry: Mapping[str, Any]) -> None:
        """Put an entry into the schedule while the beat runs."""
        self.scheduler.schedule[name] = self.scheduler.Entry(name=name, app=APP, **entry)

    def remove_entry(self, name: str) -> None:
        """Take it out again."""
        del self.scheduler.schedule[name]

    def close(self) -> None:
        """Stop in order."""
        self.scheduler.close()

    def crash(self) -> None:
        """Lose the process."""
        self.publisher.crash()
        self.supervision.send_log.remove()


class _Guard(ClockGuard):
    """Tells the auditor what the scheduling thread saw of the clock."""

    def __init__(self, auditor: Auditor, reach: Callable[[str], None]) -> None:
        super().__init__()
        self._auditor = auditor
        self._reach = reach

    def read(self, wall_ms: int, monotonic_s: float) -> Reading:
        reading = super().read(wall_ms, monotonic_s)
        self._auditor.looked(wall_ms, monotonic_s, reading)
        self._reach("looked")
        return reading


class _Wake:
    """See ``celery_wheelbeat.runtime.mailbox.Wake``."""

    def __init__(self, rest: Callable[[float], None]) -> None:
        self._rest = rest

    def wait(self, seconds: float) -> None:
        self._rest(seconds)

    def ring(self) -> None:
        """The world looks for news itself."""


class _Sources:
    """The real tail without its thread: the world gives it its turns."""

    def __init__(self, tail: ChangeLogReader, clock: SimClock, auditor: Auditor, reach: Callable[[str], None]) -> None:
        self.tail = tail
        self._clock = clock
        self._auditor = auditor
        self._reach = reach
        self._turn_at_s = 0.0
        self.report, self.finish, self.quarantine, self.reread = tail.report, tail.finish, tail.quarantine, tail.reread
        self.stamp_s, self.status = tail.stamp_s, tail.status

    def start(self) -> None:
        self._turn_at_s = self._clock.monotonic_s()

    def take(self) -> Sequence[SourceMessage]:
        self._reach("take")
        news = self.tail.take()
        self._auditor.took(news)
        return news

    def turn(self) -> bool:
        """Give the I/O thread a turn if it is not resting; says whether there is news for the other thread."""
        if self._clock.monotonic_s() < self._turn_at_s or len(self.tail._messages) > MESSAGES_MAX - 3:
            return False
        self._turn_at_s = self._clock.monotonic_s() + self.tail._turn()
        return not self.tail._messages.empty()

    def close(self, _timeout_s: float) -> None:
        self._reach("close sources")
        self.tail._write()


class _Dispatch(Dispatcher):
    """Tells the auditor which runs the engine handed out."""

    def __init__(
        self, publisher: SimPublisher, auditor: Auditor, engine: Engine, backlog: Backlog, lateness: Lateness
    ) -> None:
        super().__init__([], CeleryLane(engine, backlog, _Watched(publisher, auditor), lateness))
        self._auditor = auditor

    def enqueue(self, due: Iterable[DueBatch]) -> None:
        due = list(due)
        super().enqueue(due)
        self._auditor.offered(due)


class _Watched:
    """A publisher that tells the auditor what goes in and what comes out."""

    ended_by = None

    def __init__(self, publisher: SimPublisher, auditor: Auditor) -> None:
        self._publisher = publisher
        self._auditor = auditor
        self.destination = publisher.destination
        self.start, self.capacity, self.health = publisher.start, publisher.capacity, publisher.health
        self.close = publisher.close

    def submit(self, runs: Sequence[Run]) -> None:
        self._auditor.submitted(runs)
        self._publisher.submit(runs)

    def poll(self) -> Sequence[Confirmed | Failed]:
        asked_ms = self._auditor.clock.elapsed_ms
        outcomes = self._publisher.poll()
        self._auditor.settled(outcomes, asked_ms)
        return outcomes
