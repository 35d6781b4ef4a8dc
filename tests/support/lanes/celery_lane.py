"""A celery lane on its own, with Celery's scheduler behind it: for tests against any broker."""

from __future__ import annotations

from contextlib import nullcontext
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from celery.beat import ScheduleEntry, Scheduler

from celery_wheelbeat.dispatch import Confirmed, Failed, Run
from celery_wheelbeat.dispatch.broker import open_connection
from celery_wheelbeat.dispatch.celery_lane.publisher import CeleryPublisher
from celery_wheelbeat.dispatch.celery_lane.run_sender import CeleryLaneCallbacks
from celery_wheelbeat.dispatch.messages.attempt import current
from celery_wheelbeat.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery


class RecordingScheduler(Scheduler):
    """Celery's own scheduler with our two lines in ``apply_async``."""

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = False, **kwargs: Any) -> Any:
        attempt = current()
        assert attempt is not None
        with attempt.message():
            return super().apply_async(attempt.stamp(entry), producer=producer, advance=False, **kwargs)


class StartedLane:
    """A started lane and what it woke us for."""

    def __init__(self, app: Celery, scheduler: Scheduler | None = None, **callbacks: Any) -> None:
        self.woken: SimpleQueue[None] = SimpleQueue()
        self.scheduler = scheduler or RecordingScheduler(app, lazy=True)
        known = {
            "apply_entry": self.scheduler.apply_entry,
            "open_connection": lambda: open_connection(app),
            "make_producer": lambda connection: app.amqp.Producer(connection, auto_declare=False),
            "wake": lambda: self.woken.put(None),
            "clock": SystemClock(),
            "quiet": lambda _: nullcontext(),
            "options": {},
        }
        self.lane = CeleryPublisher(CeleryLaneCallbacks(**{**known, **callbacks}), window=1000)
        self.lane.start()

    def outcomes(self, count: int) -> Sequence[Confirmed | Failed]:
        found: list[Confirmed | Failed] = []
        while len(found) < count:
            self.woken.get(timeout=60)
            found += self.lane.poll()
        return found

    def when_connected(self) -> CeleryPublisher:
        while not self.lane.capacity():
            self.woken.get(timeout=60)
        return self.lane


def a_run(app: Celery, token: int = 0, *, task: str = "lane.note", args: Any = (1,), **options: Any) -> Run:
    entry = ScheduleEntry(name=f"job {token}", task=task, schedule=10.0, args=args, options=options, app=app)
    return Run(7, "monitor:7", entry.name, 1_700_000_000_000, f"id-{token}", entry, token)
