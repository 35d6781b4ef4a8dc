"""Forecast of the load of the next 24 hours, and the sent runs of the last hour by minute.

A survey counts the runs that the engine's jobs will have. Each tick spends about ``TURN_S`` of the scheduling thread on
it, regardless of the number of jobs; with more jobs a survey takes more ticks and is older when it completes.
Jobs with bounds or an incident are sampled: up to about ``SPECIAL_MAX`` per block are simulated and weighted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.engine.packing import ENABLED, OFFSET_BITS, RARE, widened
from celery_wheelbeat.schedules.kinds import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.reports.lateness import Quantiles
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.engine.packing import Rare, Rows
    from celery_wheelbeat.engine.shard import Shard
    from celery_wheelbeat.schedules.cron import CronTable
    from celery_wheelbeat.schedules.kinds import Int64s

TURN_S = 0.01
SURVEY_EVERY_MS = 60_000
MINUTES_KEPT = 60


DAY_S = 86_400
HOUR_S = 3_600
BLOCK_ROWS = 16_384
SPECIAL_MAX = 200


class Minute(NamedTuple):
    """One past minute."""

    at_s: int
    """End of the minute, seconds since the Unix epoch."""
    sent: int
    """Runs confirmed in the minute."""
    lateness: Quantiles


class Surveyor:
    """Runs surveys in slices and keeps the last hour's minutes. ``monotonic_s`` only measures the slices."""

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
        """Continue the survey, or start the next one when it is due (every ``SURVEY_EVERY_MS``)."""
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
        """Record the past minute, once a minute; ``sent`` is the process's total so far."""
        minute = now_ms // 60_000
        if minute == self._minute:
            return
        if self._minute is not None:
            self.minutes.append(Minute(minute * 60, sent - self._sent, lateness()))
        self._minute, self._sent = minute, sent

    def as_json(self) -> dict[str, Any]:
        """Return ``load`` and ``minutes`` of the status document; each series of counts is one space-separated text."""
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


class LoadAhead(NamedTuple):
    """Number of runs due from ``from_s`` (seconds since the Unix epoch) on."""

    from_s: int
    seconds: Int64s
    """Per second of the next hour, shape (3600,)."""
    minutes: Int64s
    """Per minute of the next day, shape (1440,)."""


class Survey:
    """Counts the runs of the day that starts at ``from_s``; exhaust ``pieces()``, then call ``result()``."""

    def __init__(self, shards: Iterable[Shard], crons: CronTable, from_s: int) -> None:
        self._shards = shards
        self._crons = crons
        self._from_s = from_s
        self._counts = np.zeros(DAY_S, np.int64)
        self._even = 0.0
        """Runs per second of intervals that are not whole seconds, taken as spread evenly."""
        self._phases: dict[int, NDArray[np.int64]] = {}
        """Interval in seconds (below an hour) → number of jobs per second of first fire."""
        self._cron_offsets: dict[int, NDArray[np.int64]] = {}
        """Cron index → number of jobs per offset in seconds."""

    def pieces(self) -> Iterator[None]:
        """Count, and yield after every piece of work."""
        for shard in self._shards:
            for begin in range(0, shard.table.row_count, BLOCK_ROWS):
                rows = shard.table.rows
                self._add_block(rows.take(slice(begin, begin + BLOCK_ROWS)), shard.table.rare)
                yield
        for phases in self._phases.values():
            self._counts += np.resize(phases, DAY_S)
            yield
        for index, offsets in self._cron_offsets.items():
            self._add_cron(index, offsets)
            yield

    def result(self) -> LoadAhead:
        """Return the counts; they are complete after the last piece."""
        counts = self._counts + round(self._even)
        return LoadAhead(self._from_s, counts[:HOUR_S], counts.reshape(-1, 60).sum(axis=1))

    def _add_block(self, rows: Rows, rare: dict[int, Rare]) -> None:
        rows = rows._replace(interval=widened(rows.interval))
        armed = ((rows.flags & ENABLED) > 0) & (rows.next_fire < NEVER_MS)
        special = self._special(rows, armed, rare)
        plain = armed & ~special
        self._add_intervals(rows, plain & (rows.interval > 0))
        crons = rows.interval[plain & (rows.interval < 0)]
        self._note_crons(~widened(crons))
        self._add_at(self._second_of(rows.next_fire[plain & (rows.interval == 0)]))

    def _special(self, rows: Rows, armed: NDArray[np.bool_], rare: dict[int, Rare]) -> NDArray[np.bool_]:
        """Return a mask of jobs with bounds or an incident within the day, and count a weighted sample of them."""
        special = armed & (rows.flags & RARE > 0)
        positions = np.flatnonzero(special)
        from_ms, end_ms = self._from_s * 1000, (self._from_s + DAY_S) * 1000
        follow = np.zeros(len(positions), np.bool_)
        for place, job_id in enumerate(rows.ids[positions].tolist()):
            job = rare.get(job_id)
            follow[place] = job is not None and (
                job.start_ms > from_ms
                or job.end_ms < end_ms
                or (job.incident_interval_ms > 0 and job.incident_until_ms > from_ms)
            )
        special[positions[~follow]] = False
        chosen = np.flatnonzero(follow)
        step = -(-len(chosen) // SPECIAL_MAX) or 1
        for row in positions[chosen[::step]].tolist():
            job = rare[int(rows.ids[row])]
            self._follow(int(rows.interval[row]), int(rows.next_fire[row]), job, weight=step)
        return special

    def _follow(self, interval_ms: int, fire_ms: int, job: Rare, *, weight: int) -> None:
        end_ms = min(job.end_ms, (self._from_s + DAY_S) * 1000)
        if job.incident_interval_ms and job.incident_until_ms >= fire_ms:
            until_ms = min(job.incident_until_ms + 1, end_ms)
            self._progression(fire_ms, job.incident_interval_ms, until_ms, weight)
            fire_ms = until_ms
        if interval_ms >= 0:
            step_ms = interval_ms or DAY_S * 1000
            if interval_ms:
                fire_ms += (job.phase_ms - fire_ms) % interval_ms
            self._progression(fire_ms, step_ms, end_ms, weight)
        else:
            index, offset_ms = ~interval_ms >> OFFSET_BITS, ~interval_ms & ((1 << OFFSET_BITS) - 1)
            fires = self._cron_fires(index, fire_ms - offset_ms - 1, end_ms - offset_ms) + offset_ms
            self._add_at(self._second_of(fires), weight)

    def _progression(self, fire_ms: int, interval_ms: int, end_ms: int, weight: int) -> None:
        if interval_ms >= 1000:
            self._add_at(self._second_of(np.arange(fire_ms, end_ms, interval_ms, dtype=np.int64)), weight)
            return
        edges_ms = np.clip(np.arange(self._from_s, self._from_s + DAY_S + 1) * 1000, fire_ms, max(fire_ms, end_ms))
        self._counts += weight * np.diff(-((fire_ms - edges_ms) // interval_ms))

    def _add_intervals(self, rows: Rows, where: NDArray[np.bool_]) -> None:
        intervals = rows.interval[where]
        first = rows.next_fire[where] // 1000 - self._from_s
        whole = (intervals % 1000 == 0) & (intervals >= 1000)
        self._even += float((1000 / intervals[~whole]).sum())
        intervals_s, first = intervals[whole] // 1000, first[whole]
        often = intervals_s < HOUR_S
        for interval_s in np.unique(intervals_s[often]).tolist():
            members = first[intervals_s == interval_s] % interval_s
            phases = self._phases.setdefault(interval_s, np.zeros(interval_s, np.int64))
            phases += np.bincount(members, minlength=interval_s)
        seldom, first = intervals_s[~often], first[~often]
        while len(first):
            self._add_at(first)
            first = first + seldom
            within = first < DAY_S
            seldom, first = seldom[within], first[within]

    def _note_crons(self, packed: Int64s) -> None:
        indexes, offsets_s = packed >> OFFSET_BITS, (packed & ((1 << OFFSET_BITS) - 1)) // 1000
        for index in np.unique(indexes).tolist():
            added = np.bincount(offsets_s[indexes == index])
            known = self._cron_offsets.get(index)
            if known is not None:
                added = np.pad(added, (0, max(0, len(known) - len(added))))
                added[: len(known)] += known
            self._cron_offsets[index] = added

    def _add_cron(self, index: int, offsets: NDArray[np.int64]) -> None:
        from_ms, widest_ms = self._from_s * 1000, len(offsets) * 1000
        slots = self._cron_fires(index, from_ms - widest_ms, from_ms + DAY_S * 1000)
        used = np.flatnonzero(offsets)
        seconds = ((slots - from_ms) // 1000)[:, np.newaxis] + used
        within = (seconds >= 0) & (seconds < DAY_S)
        np.add.at(self._counts, seconds[within], np.broadcast_to(offsets[used], seconds.shape)[within])

    def _cron_fires(self, index: int, after_ms: int, end_ms: int) -> Int64s:
        cron, fires = self._crons[index], []
        fire_ms = cron.next_fire(after_ms)
        while fire_ms is not None and fire_ms < end_ms:
            fires.append(fire_ms)
            fire_ms = cron.next_fire(fire_ms)
        return np.array(fires, np.int64)

    def _second_of(self, fire_ms: Int64s) -> Int64s:
        return fire_ms // 1000 - self._from_s

    def _add_at(self, seconds: Int64s, weight: int = 1) -> None:
        self._counts += weight * np.bincount(seconds[(seconds >= 0) & (seconds < DAY_S)], minlength=DAY_S)
