"""Logs other beats of the same namespace that run beside this one: workers without claims execute every run twice.

A restart with a short overlap is not logged: a beat counts after two looks, with a report just before each.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from celery_wheelbeat.runtime.clock import Clock
    from celery_wheelbeat.sources import BeatStore

logger = logging.getLogger("celery.beat")

LOOK_EVERY_S = 30.0
SEEN_S = 10.0
"""A beat that reported longer ago does not run, or cannot write; a beat reports every two seconds."""


class Neighbours:
    """The other beats that one beat has seen at its last look."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._look_at_s = clock.monotonic_s()
        self._before: AbstractSet[str] = frozenset()
        self._logged: AbstractSet[str] = frozenset()

    def look(self, store: BeatStore, namespace: str, own_id: str) -> None:
        """If it is time, read who reports beside ``own_id``; log, once for each, who did so last time, too."""
        if self._clock.monotonic_s() < self._look_at_s:
            return
        self._look_at_s = self._clock.monotonic_s() + LOOK_EVERY_S
        running = {seen.beat_id: seen for seen in store.reporting(namespace, SEEN_S) if seen.beat_id != own_id}
        for beat_id in (running.keys() & self._before) - self._logged:
            logger.warning(
                "beat: Another beat with the same namespace is running: pid %d on %s. Both send every run, and only "
                "workers with claims drop the copies (docs/howto/drop-copies-of-runs.md)",
                running[beat_id].pid,
                running[beat_id].host,
            )
        self._logged = (self._logged | self._before) & running.keys()
        self._before = running.keys()
