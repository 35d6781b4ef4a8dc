"""A whole beat on a real database, without threads: the test moves the clock, and each thread has its turn in between.

Real are the scheduler and all of its parts, the I/O thread's work and the database; simulated are clock and broker.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from celery import Celery
from simulation.sim_broker import SimBroker, SimPublisher
from simulation.sim_clock import SimClock

from celery_wheelbeat import sources
from celery_wheelbeat.beat.assembly import BeatEdges, assemble
from celery_wheelbeat.beat.scheduler import WheelScheduler
from celery_wheelbeat.dispatch.celery_lane.lane import CeleryLane
from celery_wheelbeat.dispatch.dispatcher import Dispatcher
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.sources.changelog.reader import MESSAGES_MAX
from celery_wheelbeat.sources.messages import Changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from celery_wheelbeat.sources import MonitorDatabase
    from celery_wheelbeat.sources.messages import SourceMessage

STEP_MS = 250
PATIENCE_MS = 120_000


class SteppedBeat:
    """See the module. Monitors must say a version as their first argument; messages carry it."""

    def __init__(self, database: MonitorDatabase, *, start_ms: int, **settings: Any) -> None:
        app = Celery("stepped", set_as_current=False, broker="memory://")
        app.conf.result_expires = None  # else Celery adds an entry of its own
        self.clock = SimClock(start_ms)
        self.broker = SimBroker()
        self.database = database
        # One-off runs are read by a thread that follows the real clock.
        sources.register(lambda _app: database._replace(connect=None))
        self.publisher = SimPublisher(
            self.broker,
            self.clock,
            random.Random(0),
            life=1,
            window=1_000_000,
            reach=lambda _place: None,
            disturb=lambda: None,
        )
        edges = BeatEdges(
            wake=_NoRest(),
            sources=SteppedSources,
            dispatcher=lambda engine, backlog, lateness: Dispatcher(
                [], CeleryLane(engine, backlog, self.publisher, lateness)
            ),
        )
        try:
            self.scheduler = scheduler = WheelScheduler(app)
            scheduler.settings = Settings(**{"shards": 16, "namespace": "stepped", **settings})
            beat, supervision = assemble(scheduler, scheduler.settings, self.clock, edges)
        finally:
            sources.register(None)
        scheduler._beat, scheduler._supervision = beat, supervision
        self.engine, self.sources, self.dispatcher = beat.engine, beat.sources, beat.dispatcher
        self.database_answers = True
        """While it does not, the I/O thread waits for it."""
        self._io_at_s = 0.0
        beat.start()

    def step(self, ms: int = STEP_MS) -> None:
        """Let time pass and give every thread one turn."""
        self.clock.let_pass(ms)
        if self.database_answers and self.clock.monotonic_s() >= self._io_at_s and self.sources.has_room:
            self._io_at_s = self.clock.monotonic_s() + self.sources.tail._turn()
        self.publisher.step()
        self.scheduler.tick()

    def run(self, seconds: float) -> SteppedBeat:
        """Let so much time pass."""
        for _ in range(int(seconds * 1000 / STEP_MS)):
            self.step()
        return self

    def until(self, condition: Callable[[], object], what: str) -> SteppedBeat:
        """Step until ``condition`` holds, up to two simulated minutes."""
        for _ in range(PATIENCE_MS // STEP_MS):
            if condition():
                return self
            self.step()
        raise AssertionError(f"{what}: not within {PATIENCE_MS / 1000:g} s; {self.status}")

    @property
    def status(self) -> Mapping[str, Any]:
        """What the I/O thread says about the database."""
        return self.sources.status()

    @property
    def current(self) -> bool:
        """Whether the table has been read and nothing known is waiting."""
        status = self.status
        return status["loaded"] and status["reading"] == "reconcile" and not status["behind"] and self.sources.empty

    def jobs(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the arguments of those of ``ids`` that the engine holds."""
        views = self.engine.lookup(list(ids))
        return {view.id: view.payload.decode() for view in views if view is not None}

    def sent(self, job_id: int, version: int | None = None) -> list[int]:
        """Fire times of one monitor's messages, in the order in which the broker took them."""
        return [
            message.fire_ms
            for message in self.broker.messages
            if message.job_id == job_id and version in (None, message.version)
        ]

    def fires(self) -> dict[int, list[int]]:
        """Fire times of all messages, by monitor."""
        found: dict[int, list[int]] = {}
        for message in self.broker.messages:
            found.setdefault(message.job_id, []).append(message.fire_ms)
        return found

    @property
    def difference(self) -> int:
        """Runs that the account misses; 0 is the only good value."""
        return self.engine.ledger.difference(self.dispatcher.pending)

    @property
    def account(self) -> Counter[str]:
        """Runs by what became of them."""
        ledger = self.engine.ledger
        return Counter({"expected": ledger.expected, "sent": ledger.sent, **ledger.skipped})

    def close(self) -> None:
        """Stop in good order."""
        self.scheduler.close()


class SteppedSources:
    """The real I/O thread's work; the test gives it its turns. ``slices`` are the sizes of the changes handed over."""

    def __init__(self, tail: Any) -> None:
        self.tail = tail
        self.slices: list[int] = []
        self.taken: deque[int] = deque(maxlen=1_000)
        """How many items each turn of the scheduling thread took."""
        self.report, self.finish, self.quarantine, self.reread = tail.report, tail.finish, tail.quarantine, tail.reread
        self.stamp_s, self.status = tail._clock.monotonic_s, tail.status  # never stuck: a test may withhold its turns

    @property
    def has_room(self) -> bool:
        """Whether a turn cannot have to wait for the scheduling thread."""
        return bool(len(self.tail._messages) <= MESSAGES_MAX - 3)

    @property
    def empty(self) -> bool:
        """Whether the scheduling thread has taken everything."""
        return bool(self.tail._messages.empty())

    def start(self) -> None:
        """There is no thread."""

    def take(self) -> Sequence[SourceMessage]:
        """See ``celery_wheelbeat.sources.messages.SourceIO``."""
        news = self.tail.take()
        self.taken.append(len(news))
        self.slices += [
            len(one.changes.upserts) + len(one.changes.deleted_ids) for one in news if isinstance(one, Changed)
        ]
        return news

    def close(self, _timeout_s: float) -> None:
        """Write what is waiting and drop the connections."""
        self.tail._write()
        self.tail._follower.close()
        self.tail._database.source.close()


class _NoRest:
    """See ``celery_wheelbeat.runtime.mailbox.Wake``."""

    def wait(self, seconds: float) -> None:
        """The test lets time pass."""

    def ring(self) -> None:
        """Nobody waits."""
