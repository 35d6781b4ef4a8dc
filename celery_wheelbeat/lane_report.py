"""Lane report: how many jobs take which lane, and why; said once after each change, and shown in the status.

Looks at the lanes once a second, counts jobs by route, and never touches a run.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from celery_wheelbeat.table import ENABLED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_wheelbeat.engine import Engine
    from celery_wheelbeat.lanes import Lanes

logger = logging.getLogger("celery.beat")

QUIET_S = 2.0
"""Answers come one after the other: the report waits until none has come for this long."""
BEHIND_MS = 60_000
BEHIND_SAID_EVERY_S = 300.0
REASONS_SHOWN = 5


class LaneReport:
    """See the module. Owned by the scheduling thread."""

    def __init__(self, lanes: Lanes, engine: Engine) -> None:
        self.behind = False
        """Whether the celery lane is more than a minute late although its broker is there."""
        self._lanes = lanes
        self._engine = engine
        self._seen_version = -1
        self._changed_s: float | None = None
        self._fast = 0
        self._reasons = Counter[str]()
        self._tools: list[str] = []
        self._behind_said_s: float | None = None

    def look(self, now_s: float, now_ms: int) -> None:
        """Log what has changed; ``now_s`` is monotonic, ``now_ms`` the time of day."""
        version = self._lanes.fast.forms.version
        if version != self._seen_version:
            self._seen_version, self._changed_s = version, now_s
        elif self._changed_s is not None and now_s - self._changed_s >= QUIET_S:
            self._changed_s = None
            self._say()
        self._watch_slow_lane(now_s, now_ms)

    def as_json(self) -> Mapping[str, Any]:
        """Return the lanes for the status document."""
        return {
            "fast": self._fast,
            "celery": dict(self._reasons),
            "observers": self._tools,
            "differences": self._lanes.fast.canary.differences,
            "behind": self.behind,
        }

    def _say(self) -> None:
        fast, reasons = self._count()
        observers = sorted(self._observers())
        if (fast, reasons, observers) == (self._fast, self._reasons, self._tools):
            return
        self._fast, self._reasons, self._tools = fast, reasons, observers
        if observers:
            logger.info("beat: %s seen: the headers are filled in on the fast lane", " and ".join(observers))
        if not reasons:
            logger.info("beat: All %d jobs seen so far take the fast lane", fast)
            return
        causes = "; ".join(f"{jobs} jobs: {reason}" for reason, jobs in reasons.most_common(REASONS_SHOWN))
        logger.info(
            "beat: %d jobs take the fast lane, %d the celery lane (a few thousand runs a second): %s. "
            "docs/howto/lanes.md says what to do about each",
            fast, reasons.total(), causes,
        )  # fmt: skip

    def _count(self) -> tuple[int, Counter[str]]:
        """Return how many jobs take the fast lane, and how many do not, by reason."""
        by_route = Counter[int]()
        for shard in self._engine.shards:
            rows = shard.table.rows
            counts = np.bincount(rows.route[(rows.flags & ENABLED) > 0])
            by_route.update({int(route): int(counts[route]) for route in np.flatnonzero(counts)})
        fast, reasons = 0, Counter[str]()
        told: set[int] = set()
        for index, answer in self._lanes.fast.forms.by_route():
            if index in told:
                continue
            told.add(index)
            if isinstance(answer, str):
                reasons[answer] += by_route[index]
            else:
                fast += by_route[index]
        alone = {
            "their arguments do not render": len(self._lanes.fast.unfit),
            "Sentry checks in for their runs (monitor_beat_tasks)": len(self._lanes.fast.checked_in),
        }
        reasons.update(alone)
        return max(0, fast - sum(alone.values())), +reasons

    def _observers(self) -> set[str]:
        answers = self._lanes.fast.forms.answers()
        return {name for _, answer in answers if not isinstance(answer, str) for name in answer.observers}

    def _watch_slow_lane(self, now_s: float, now_ms: int) -> None:
        slow = self._lanes.slow
        oldest_ms = slow.backlog.oldest_fire_ms() if slow.publisher.health().connected else None
        self.behind = oldest_ms is not None and now_ms - oldest_ms > BEHIND_MS
        if not self.behind:
            self._behind_said_s = None
        elif self._behind_said_s is None or now_s - self._behind_said_s >= BEHIND_SAID_EVERY_S:
            self._behind_said_s = now_s
            logger.error(
                "beat: The celery lane is %.0f s behind with %d runs: fewer jobs must need it (docs/howto/lanes.md), "
                "or set wheelbeat_dispatch = 'fast'",
                (now_ms - (oldest_ms or now_ms)) / 1000,
                slow.backlog.waiting,
            )
