"""One-off runs through real lanes: store, the feed's thread, wheel, fast lane and broker, without a scheduler."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from support.lanes.bench import WAIT_S, FastBench

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from celery_wheelbeat.later.open_seconds import Resume


class LaterBench(FastBench):
    """A ``FastBench`` that follows the clock and reads one-off runs from ``database_url``."""

    def __init__(self, app: Celery, database_url: str | None, resume: Resume | None = None, **settings: Any) -> None:
        super().__init__(app, start_ms=round(time.time() * 1000), database_url=database_url, **settings)
        self.later = self.beat.later
        self.lanes.name_runs(self.beat.startup._naming.rendering_of("tests"))
        self.later.start(resume)

    def __exit__(self, *exc_info: object) -> None:
        self.later.close(5)
        super().__exit__()

    def tick(self) -> None:
        """One turn of a scheduling thread."""
        self.now_ms = round(time.time() * 1000)
        self.later.apply_reads(self.beat._apply)
        self.beat.submit_due(self.engine.advance(self.now_ms))
        self.lanes.collect_outcomes(time.monotonic())
        self.later.remove_settled(self.engine.cursor_ms, time.monotonic(), self.beat._apply)

    def settle(self, condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
        """Turn until ``condition`` holds; the account has to be right after each turn."""
        deadline = time.monotonic() + wait_s
        while not condition():
            self.tick()
            assert self.ledger.difference(self.lanes.pending) == 0
            assert time.monotonic() < deadline, f"{what} did not happen: {self.lanes.last_error}"
            if not self.lanes.can_submit():
                self.beat.wake.wait(0.01)

    def __enter__(self) -> Self:
        return self
