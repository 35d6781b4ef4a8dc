"""Lane report: the number of jobs per lane with the reasons, and the lag of the celery lane.

Logged once after each change and shown in the status document. The report counts jobs and never touches a run. Jobs of
a kind that was not due yet are counted apart, as unasked: their first run decides.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.dispatch.fast_lane.lane_choice import apart, apart_by_reason, kinds_of
from celery_wheelbeat.dispatch.messages.envelope import Refusal
from celery_wheelbeat.engine.packing import ENABLED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_wheelbeat.dispatch.celery_lane.lane import CeleryLane
    from celery_wheelbeat.dispatch.fast_lane.lane import FastLane
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.engine.packing import Rows
    from celery_wheelbeat.schedules.kinds import Int64s

logger = logging.getLogger("celery.beat")

QUIET_S = 2.0
"""Answers come in series: the report waits until none has come for this long."""
RECOUNT_EVERY_S = 30.0
PATIENCE_S = 60.0
"""Longest wait of the first report for an answer about every job."""
BEHIND_S = 60.0
BEHIND_LOGGED_EVERY_S = 300.0
REASONS_SHOWN = 5


ROWS_PER_CALL = 500_000
SAMPLES_KEPT = 3_600
"""Most samples kept; with more, the lag is measured from the oldest one kept."""


class Counted(NamedTuple):
    """Number of jobs per lane."""

    fast: int = 0
    celery: Counter[str] = Counter()
    """Reason → jobs."""
    observers: tuple[str, ...] = ()
    """Tracing tools whose headers the fast lane fills in."""
    unasked: int = 0
    """Jobs of a kind that has not been due yet."""

    @property
    def kind(self) -> tuple[object, ...]:
        """Return the part whose change is logged again: lanes in use, reasons and observers, without numbers."""
        return (self.fast > 0, sorted(self.celery), self.observers)

    @property
    def is_empty(self) -> bool:
        """Whether no job was counted for either lane."""
        return not self.fast and not self.celery


class LaneReport:
    """Counts jobs per lane, logs changes, and watches the lag of the celery lane."""

    def __init__(self, fast: FastLane, slow: CeleryLane, engine: Engine) -> None:
        self.behind = False
        """Whether runs have waited for the celery lane for more than a minute while its broker is connected."""
        self._fast = fast
        self._slow = slow
        self._engine = engine
        self._census = LaneCensus(engine)
        self._lag = QueueLag()
        self._seen_version = -1
        self._changed_s: float | None = None
        self._recount_s = 0.0
        self._patient_until_s: float | None = None
        self._counted = Counted()
        self._logged: Counted | None = None
        self._behind_logged_s: float | None = None

    def update(self, now_s: float, *, loading: bool = False) -> None:
        """Count jobs and log changes; ``now_s`` is monotonic. Nothing is logged while ``loading``."""
        self._census.count_next()
        if loading or self._patient_until_s is None:
            self._patient_until_s = now_s + PATIENCE_S
        forms = self._fast.forms
        if forms.version != self._seen_version:
            self._seen_version, self._changed_s = forms.version, now_s
        changed = self._changed_s is not None and now_s - self._changed_s >= QUIET_S
        if self._census.rounds and (changed or now_s >= self._recount_s):
            self._changed_s = None if changed else self._changed_s
            self._recount_s = now_s + RECOUNT_EVERY_S
            self._counted = self._count()
            if loading or (self._logged is None and self._counted.unasked and now_s < self._patient_until_s):
                self._recount_s = now_s
            elif self._changed_s is None and not self._counted.is_empty:
                self._log_count(changed=changed)
        self._watch_slow_lane(now_s)

    def as_json(self) -> Mapping[str, Any]:
        """Return the lanes part of the status document."""
        return {
            "fast": self._counted.fast,
            "celery": dict(self._counted.celery),
            "observers": list(self._counted.observers),
            "differences": self._fast.canary.differences,
            "behind": self.behind,
        }

    def _log_count(self, *, changed: bool) -> None:
        """Log the count; if no answer has ``changed``, only if its ``kind`` differs from the last one logged."""
        counted, logged = self._counted, self._logged
        if logged is not None and counted.kind == logged.kind and (not changed or counted == logged):
            return
        self._logged = counted
        if counted.observers and (logged is None or logged.observers != counted.observers):
            logger.info("beat: %s seen: the headers are filled in on the fast lane", " and ".join(counted.observers))
        if not counted.celery:
            logger.info("beat: All %d jobs seen so far take the fast lane", counted.fast)
            return
        logger.info(
            "beat: %d jobs take the fast lane, %d the celery lane (a few thousand runs a second): %s. "
            "docs/howto/lanes.md says what to do about each",
            counted.fast, counted.celery.total(), _causes(counted.celery, REASONS_SHOWN),
        )  # fmt: skip

    def _count(self) -> Counted:
        forms, reasons = self._fast.forms, self._census.apart()
        fast, unasked = 0, 0
        observers: set[str] = set()
        for answer, jobs in forms.tally(*self._census.by_kind()):
            if answer is None:
                unasked += jobs
            elif isinstance(answer, str):
                reasons[answer] += jobs
            elif not isinstance(answer, Refusal):  # refused jobs take no lane
                fast += jobs
                observers.update(answer.observers)
        for reason, ids in self._fast.choice.by_reason().items():
            kinds = self._kinds_of(np.fromiter(ids, np.int64, len(ids)))
            for answer, jobs in forms.tally(kinds, np.ones(len(kinds), np.int64)):
                if isinstance(answer, (str, Refusal)):
                    continue  # counted with the rest of its kind
                reasons[reason] += jobs
                if answer is None:
                    unasked -= jobs
                else:
                    fast -= jobs
        return Counted(max(0, fast), +reasons, tuple(sorted(observers)), max(0, unasked))

    def _kinds_of(self, ids: Int64s) -> Int64s:
        """Return the kinds of the enabled ``ids`` whose definition leaves them on the lane of their kind."""
        jobs = self._engine.shards.columns_of(ids)
        stays = jobs.enabled & ~apart(ids, jobs.flags)
        return kinds_of(jobs.route[stays], jobs.flags[stays])

    def _watch_slow_lane(self, now_s: float) -> None:
        slow = self._slow
        if slow.rendering is None or not slow.publisher.health().connected:
            self._lag.forget()  # a lane that cannot send at all is not behind
        backlog = slow.backlog
        lag_s = self._lag.sample(now_s, left=backlog.left_queue, waiting=backlog.waiting)
        self.behind = lag_s > BEHIND_S
        if not self.behind:
            self._behind_logged_s = None
        elif self._behind_logged_s is None or now_s - self._behind_logged_s >= BEHIND_LOGGED_EVERY_S:
            self._behind_logged_s = now_s
            logger.error(
                "beat: The celery lane is %.0f s behind with %d runs: fewer jobs must need it, now %s. "
                "docs/howto/lanes.md says what to do; wheelbeat_dispatch = 'fast' bypasses signals and patches",
                lag_s, backlog.waiting, _causes(self._counted.celery, 1) or "unknown ones",
            )  # fmt: skip


def _causes(reasons: Counter[str], shown: int) -> str:
    return "; ".join(f"{jobs} job{'s' * (jobs != 1)}: {reason}" for reason, jobs in reasons.most_common(shown))


class ByKind(NamedTuple):
    """Number of jobs per kind (``lane_choice.kinds_of``), for jobs that take the lane of their kind."""

    kinds: Int64s
    """Ascending per shard; a kind occurs once per shard that has it."""
    jobs: Int64s


class _Counts(NamedTuple):
    by_kind: ByKind
    apart: Counter[str]
    """Reason → jobs that do not take the lane of their kind."""


class LaneCensus:
    """Counts the jobs of all shards by kind, a few shards per call."""

    def __init__(self, engine: Engine) -> None:
        self.rounds = 0
        """Number of complete counts of all shards."""
        self._engine = engine
        self._counted: dict[int, _Counts] = {}
        """Shard number → its counts."""
        self._at = 0
        """Number of the next shard to count."""

    def count_next(self) -> None:
        """Count the next shards, up to about ``ROWS_PER_CALL`` rows, each shard at most once."""
        shards, rows = self._engine.shards, 0
        for _ in range(len(shards)):
            number = self._at % len(shards)
            counted = shards[number].table.rows
            self._counted[number] = _count(counted)
            rows += len(counted.ids)
            self._at = (number + 1) % len(shards)
            self.rounds += self._at == 0
            if rows >= ROWS_PER_CALL:
                break

    def by_kind(self) -> ByKind:
        """Return the jobs that take the lane of their kind, concatenated over the shards."""
        counts = [counts.by_kind for counts in self._counted.values()] or [_NOBODY]
        return ByKind(*(np.concatenate(column) for column in zip(*counts, strict=True)))

    def apart(self) -> Counter[str]:
        """Return reason → jobs whose definition needs the celery lane."""
        total = Counter[str]()
        for counts in self._counted.values():
            total.update(counts.apart)
        return +total


_NOBODY = ByKind(np.empty(0, np.int64), np.empty(0, np.int64))


def _count(rows: Rows) -> _Counts:
    stays = (rows.flags & ENABLED) > 0
    apart = Counter[str]()
    for reason, found in apart_by_reason(rows.ids, rows.flags):
        apart[reason] = int(np.count_nonzero(stays & found))
        stays &= ~found
    return _Counts(_by_kind(kinds_of(rows.route[stays], rows.flags[stays])), apart)


def _by_kind(found: Int64s) -> ByKind:
    if found.max(initial=0) > 4 * len(found):  # sparse kinds: a bincount would be far longer than the jobs
        return ByKind(*np.unique(found, return_counts=True))
    jobs = np.bincount(found)
    there = np.flatnonzero(jobs)
    return ByKind(there, jobs[there])


class QueueLag:
    """Age of the oldest waiting run of a queue, from counters only.

    Sample N saw E runs enqueued in total. Once E runs have left the queue, everything seen by sample N is gone.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES_KEPT)
        """(time, runs enqueued by then); only samples with more enqueued runs than have left."""

    def sample(self, now_s: float, *, left: int, waiting: int) -> float:
        """Take a sample and return the seconds since the oldest sample that still has waiting runs; 0 if none.

        ``left``: number of runs that ever left the queue.
        """
        samples = self._samples
        while samples and samples[0][1] <= left:
            samples.popleft()
        entered = left + waiting
        if waiting and (not samples or entered > samples[-1][1]):
            samples.append((now_s, entered))
        return now_s - samples[0][0] if samples else 0.0

    def forget(self) -> None:
        """Start over: no run could leave the queue."""
        self._samples.clear()
