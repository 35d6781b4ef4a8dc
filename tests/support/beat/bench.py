"""A beat on the memory transport whose clock the test moves and whose turns it takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_wheelbeat.beat.assembly import assemble
from celery_wheelbeat.beat.scheduler import WheelScheduler

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE_S = 120


class Moved:
    """The real clock, moved by hand."""

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.passed_s = 0.0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + round((self.wall_s + self.passed_s) * 1000)

    def monotonic_s(self) -> float:
        return time.monotonic() + self.passed_s


class Bench:
    """A beat on the memory transport whose turns the test takes."""

    def __init__(self, folder: Path, later_s: float = 0, **conf: Any) -> None:
        self.app = Celery("beat", broker="memory://", set_as_current=False)
        entries = {"a": {"task": "t", "schedule": 1.0}}
        self.app.conf.update({"wheelbeat_namespace": "tests", "beat_schedule": entries, "result_expires": None, **conf})
        self.scheduler = WheelScheduler(app=self.app, schedule_filename=str(folder / "schedule"))
        self.clock = Moved()
        self.clock.passed_s = later_s
        self.beat, self.supervision = assemble(self.scheduler, self.scheduler.settings, self.clock)
        self.engine, self.dispatcher = self.beat.engine, self.beat.dispatcher
        self.ledger = self.engine.ledger
        self.beat.start()
        self.supervision.start()

    def turn_until(self, condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            self.scheduler._turn(self.beat, self.supervision)
            if condition():
                return
            self.beat.wake.wait(0.02)
        raise AssertionError(f"{PATIENCE_S} s were not enough")

    def close(self) -> None:
        self.scheduler._stop(self.beat, self.supervision)
        self.app.close()
