"""The thread that reads one-off runs for a beat: what comes due, what is written late, what was cancelled.

States: idle until ``start``, then polling; away while the database does not answer, or has no table of one-off runs.
Never: touches the engine, or waits for the scheduling thread.
"""

from __future__ import annotations

import logging
from queue import Empty
from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.later.checks import checked
from celery_wheelbeat.later.readers import NO_NEW_SECOND
from celery_wheelbeat.later.ring import DAY_PARTS, DAY_S
from celery_wheelbeat.runtime.mailbox import Mailbox
from celery_wheelbeat.runtime.owned_thread import OwnedThread, ThreadBody

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_wheelbeat.jobs.rows import Limits
    from celery_wheelbeat.later.ahead.meter import StoreCounts, StoreMeter
    from celery_wheelbeat.later.checks import Checked
    from celery_wheelbeat.later.open_seconds import Resume
    from celery_wheelbeat.later.readers import LaterReader
    from celery_wheelbeat.runtime.clock import Clock

logger = logging.getLogger("celery.beat")

POLL_S = 0.25
AHEAD_S = 10
"""How long before its time a second is read: an outage of the database of this length delays nothing."""
AWAY_S = 5.0
"""Pause after a poll that failed."""
REMIND_S = 600.0
"""A lasting failure is logged again after this time."""
READS_MAX = 8
"""Most reads that wait for the scheduling thread, or that it takes at once."""
AHEAD_BYTES = 256 << 20
"""Most memory of runs that were read and are not settled; the rest stays in the database until there is room."""
FULLEST = 1.25
"""Share of the bounds up to which open seconds are followed: cancels count also while no further second is opened."""
READ_BYTES = 8 << 20
"""Memory of the runs of one read: the scheduling thread takes them in one step."""
COMPLAIN_S = 60.0
"""Rows that cannot be sent are logged once in this time."""
KEPT_DAYS = 2
"""A day's rows are dropped this many days after its end."""
DROP_EVERY_S = 3_600.0
MEASURE_EVERY_S = 60.0


class Held(NamedTuple):
    """Runs that were read and are not settled."""

    runs: int
    size: int
    """Bytes of memory."""


class ReadRuns(NamedTuple):
    """A read whose rows were checked."""

    runs: Checked
    state: Resume | None
    """See ``Read.state``."""
    size: int
    """Memory of the runs."""


class LaterFeed:
    """Reads in its own thread; ``take`` returns what it has read."""

    def __init__(
        self,
        open_reader: Callable[[Resume | None], LaterReader],
        clock: Clock,
        wake: Callable[[], None],
        *,
        limits: Limits,
        most_runs: int,
        meter: StoreMeter | None = None,
    ) -> None:
        """``most_runs``: of those that were read, as many may be unsettled; the backlog must have room for them.

        ``meter``: None if the store is not measured.
        """
        self._open_reader = open_reader
        self._clock = clock
        self._wake = wake
        self._limits = limits
        self._most_runs = most_runs
        self._meter = meter
        self._measured_s = -MEASURE_EVERY_S
        self.counts: StoreCounts | None = None
        """The last measurement; None before the first."""
        self._reader: LaterReader | None = None
        self._reads: Mailbox[ReadRuns] = Mailbox()
        self._full = False
        """Whether there was no room; further seconds are opened when half of it is free."""
        self._incomplete = False
        """Whether the last poll goes on with the next call."""
        self._problem = ""
        self._logged_s = 0.0
        self._complained_s = -COMPLAIN_S
        self._refused = 0
        """Rows that cannot be sent, since the last line of the log."""
        self._dropped_s = clock.monotonic_s()
        self.held = Held(0, 0)
        """The runs in the wheel; the scheduling thread sets it."""
        self.settled_s = 0
        """Every second up to this one is settled; the scheduling thread sets it."""
        body = ThreadBody(self._turn, self._failed, end=self._end)
        self._thread = OwnedThread("wheelbeat-later", clock, body)

    def start(self, resume: Resume | None) -> None:
        """Start the thread where an earlier beat stopped; None: with the oldest row there is."""
        self._reader = self._open_reader(resume)
        self._thread.start()

    def take(self) -> Sequence[ReadRuns]:
        """Return the reads since the last call, in order."""
        reads: list[ReadRuns] = []
        try:
            while len(reads) < READS_MAX:
                reads.append(self._reads.get())
        except Empty:
            pass
        return reads

    def close(self, timeout_s: float) -> None:
        """Stop the thread within ``timeout_s``."""
        self._thread.close(timeout_s)

    def _turn(self) -> float:
        if self._reader is None or len(self._reads) >= READS_MAX:
            return POLL_S
        filled = self._filled()
        if self._full and (self._incomplete or filled >= FULLEST):
            self._reader.pause()  # no transaction stays open meanwhile
            return POLL_S
        read = self._reader.poll(NO_NEW_SECOND if self._full else AHEAD_S, READ_BYTES)
        self._incomplete = read.more
        if self._problem:
            logger.info("beat: One-off runs are read again")
            self._problem = ""
        found = checked(read.rows, read.now_s, self._limits)
        self._reads.put(ReadRuns(found, read.state, sum(run.size for run in found.runs)))
        self._complain(found.problems)
        behind = read.more or (read.state is not None and read.state.done_s < read.now_s)
        if read.rows or behind:
            self._wake()
        if not read.more:
            self._drop_old_days(self._reader)
            self._measure(read.now_s)
        return 0.0 if behind and not self._full else POLL_S

    def _filled(self) -> float:
        """Return which share of the bounds is in use, and note whether that is too much."""
        waiting = self._reads.waiting()
        runs = self.held.runs + sum(len(read.runs.runs) for read in waiting)
        size = self.held.size + sum(read.size for read in waiting)
        filled = max(size / AHEAD_BYTES, runs / self._most_runs)
        self._full = filled >= (0.5 if self._full else 1.0)
        return filled

    def _complain(self, problems: Sequence[tuple[str, str]]) -> None:
        self._refused += len(problems)
        now_s = self._clock.monotonic_s()
        if problems and now_s - self._complained_s >= COMPLAIN_S:
            run_id, reason = problems[0]
            logger.error("beat: %d one-off runs cannot be sent. One of them: %r: %s", self._refused, run_id, reason)
            self._complained_s, self._refused = now_s, 0

    def _failed(self, error: Exception) -> float:
        problem, now_s = str(error), self._clock.monotonic_s()
        if problem != self._problem or now_s - self._logged_s >= REMIND_S:
            logger.error("beat: One-off runs cannot be read: %s", problem)
            self._problem, self._logged_s = problem, now_s
        return AWAY_S

    def _drop_old_days(self, reader: LaterReader) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._dropped_s < DROP_EVERY_S:
            return
        self._dropped_s = now_s
        last = self.settled_s // DAY_S - KEPT_DAYS - 1
        try:
            for day in range(last - DAY_PARTS + KEPT_DAYS + 2, last + 1):
                if reader.drop(day):
                    logger.info("beat: Dropped the one-off runs of day %d since 1970", day)
        except SourceError as error:
            logger.warning("beat: One-off runs of past days cannot be dropped: %s", error)

    def _measure(self, now_s: int) -> None:
        if self._meter is None or self._clock.monotonic_s() - self._measured_s < MEASURE_EVERY_S:
            return
        self._measured_s = self._clock.monotonic_s()
        try:
            self.counts = self._meter.measure(now_s)
        except Exception as error:  # of any driver
            logger.warning("beat: The one-off runs ahead cannot be counted: %s", error)

    def _end(self) -> None:
        if self._reader is not None:
            self._reader.close()
