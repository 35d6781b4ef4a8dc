"""What a status document shows beside counters: the load ahead, the last hour by minutes, the entries.

Each turn takes at most TURN_S of the scheduling thread, however many jobs there are; more jobs make the survey older,
not longer. Owned by the scheduling thread.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.load_ahead import LoadAhead, Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_wheelbeat.engine import Engine
    from celery_wheelbeat.observe.lateness import Quantiles

TURN_S = 0.01
SURVEY_EVERY_MS = 60_000
MINUTES_KEPT = 60


class Minute(NamedTuple):
    """One minute that has passed."""

    at_s: int
    """Its end, seconds since the Unix epoch."""
    sent: int
    """Runs confirmed in it."""
    lateness: Quantiles


class Surveyor:
    """See the module. ``monotonic_s`` only measures how long a turn takes."""

    def __init__(self, engine: Engine, monotonic_s: Callable[[], float]) -> None:
        self.load: LoadAhead | None = None
        """The last complete survey."""
        self.minutes: deque[Minute] = deque(maxlen=MINUTES_KEPT)
        self._engine = engine
        self._monotonic_s = monotonic_s
        self._survey: Survey | None = None
        self._pieces: Iterator[None] = iter(())
        self._next_ms: int | None = None
        self._minute: int | None = None
        self._sent = 0

    def turn(self, now_ms: int) -> None:
        """Go on with the survey, or begin the next one when it is time."""
        if self._survey is None:
            if self._next_ms is not None and now_ms < self._next_ms <= now_ms + SURVEY_EVERY_MS:
                return
            self._next_ms = now_ms + SURVEY_EVERY_MS
            self._survey = Survey(self._engine.shards, self._engine.crons, now_ms // 1000 + 1)
            self._pieces = self._survey.pieces()
        until_s = self._monotonic_s() + TURN_S
        for _ in self._pieces:
            if self._monotonic_s() >= until_s:
                return
        self.load = self._survey.result()
        self._survey = None

    def note_minute(self, now_ms: int, sent: int, lateness: Callable[[], Quantiles]) -> None:
        """Keep what the minute brought, once a minute; ``sent`` is the counter of the process."""
        minute = now_ms // 60_000
        if minute == self._minute:
            return
        if self._minute is not None:
            self.minutes.append(Minute(minute * 60, sent - self._sent, lateness()))
        self._minute, self._sent = minute, sent

    def as_json(self) -> dict[str, Any]:
        """Return the parts of the status document: counts as one text, so that nobody has to scroll over them."""
        load = self.load
        return {
            "load": None
            if load is None
            else {
                "from_s": load.from_s,
                "seconds": " ".join(map(str, load.seconds.tolist())),
                "minutes": " ".join(map(str, load.minutes.tolist())),
            },
            "minutes": [
                [minute.at_s, minute.sent, round(minute.lateness.p50_s, 3), round(minute.lateness.p99_s, 3)]
                for minute in self.minutes
            ],
        }
