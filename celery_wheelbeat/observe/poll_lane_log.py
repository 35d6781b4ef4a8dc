"""Log lines about the poll lane, each condition once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.engine.engine import Engine

logger = logging.getLogger("celery.beat")

LATE_MS: Final = 5_000
"""A lane further behind than this is reported."""


class PollLaneLog:
    """Logs errors and delays of the poll lane."""

    def __init__(self, engine: Engine, key_of: Callable[[int], str]) -> None:
        """``key_of``: job id → text key, also for a job deleted since."""
        self._engine = engine
        self._key_of = key_of
        self._late = False
        """True from the report of a late lane until it has caught up."""

    def update(self) -> None:
        """Report schedules that have raised, and a lane that is late."""
        lane = self._engine.poll_lane
        for failure in lane.take_failures():
            (view,) = self._engine.lookup([failure.job_id])
            name = view.name if view else self._key_of(failure.job_id)
            logger.error("beat: The schedule of %s failed; polling it again in a minute: %r", name, failure.error)
        if not lane.turn.behind:
            self._late = False
            return
        late_ms = self._engine.cursor_ms - lane.jobs.next_ask_ms()
        if late_ms > LATE_MS and not self._late:
            self._late = True
            logger.warning(
                "beat: The poll lane is %.0f s behind: its %d solar and custom schedules take too long to answer",
                late_ms / 1000,
                len(lane.jobs),
            )
