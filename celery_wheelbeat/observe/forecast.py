"""What a status document shows beside counters: the load ahead, the last hour by minutes, the entries.

Each turn takes at most TURN_S of the scheduling thread, however many jobs there are; more jobs make the survey older,
not longer. Owned by the scheduling thread.
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


DAY_S = 86_400
HOUR_S = 3_600
BLOCK_ROWS = 16_384
SPECIAL_MAX = 200


class LoadAhead(NamedTuple):
    """Runs due from ``from_s`` (seconds since the Unix epoch) on."""

    from_s: int
    seconds: Int64s
    """Of the next hour."""
    minutes: Int64s
    """Of the next day."""


class Survey:
    """Counts the day that begins at ``from_s``, a second ahead of the engine; ``pieces()`` does it, ``result()`` is
    what it came to."""

    def __init__(self, shards: Iterable[Shard], crons: CronTable, from_s: int) -> None:
        self._shards = shards
        self._crons = crons
        self._from_s = from_s
        self._counts = np.zeros(DAY_S, np.int64)
        self._even = 0.0
        """Runs per second of jobs that are spread evenly."""
        self._phases: dict[int, NDArray[np.int64]] = {}
        """Interval in seconds, below an hour → jobs by the second in which they fire first."""
        self._cron_offsets: dict[int, NDArray[np.int64]] = {}
        """Index of a cron → jobs by their offset in seconds."""

    def pieces(self) -> Iterator[None]:
        """Count, and pause after every piece."""
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
        """Return the counts; complete after the last piece."""
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
        """Find the jobs that do not simply go on from their next fire time, and count those."""
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
