"""The engine by brute force: a dict of jobs, walked fire time by fire time with the scalar schedules.

Slow on purpose and without a wheel, a column or a closed form, so that it shares no mistake with the engine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.jobs.definitions import Misfire, Offer
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, Kind

if TYPE_CHECKING:
    from celery_wheelbeat.engine import EngineConfig
    from support.engine.definitions import Job


class OfferedRun(NamedTuple):
    """A run that the engine has to hand out."""

    job_id: int
    fire_ms: int
    offer: Offer
    step: int = 0


@dataclass
class EngineModel:
    """What the engine must do, in the plainest words."""

    config: EngineConfig
    cursor_ms: int
    jobs: dict[int, Job] = field(default_factory=dict)
    owed: dict[int, int] = field(default_factory=dict)
    relived_until_ms: int = 0
    """Handed out before the clock was stepped back: lived a second time up to here."""
    settled_until_ms: int = 0
    """Crons and onces are not handed out a second time up to here."""
    step: int = 0
    expected: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def load(self, job: Job, mark_ms: int | None, *, first_start: bool = False) -> list[OfferedRun]:
        """Add a job and settle what it missed after ``mark_ms``."""
        self._owe(job, after_ms=self.cursor_ms)
        self.jobs[job.id] = job
        if mark_ms is None or not job.enabled:
            return []
        begin = max(mark_ms, job.effective_from_ms - 1)
        if job.kind != Kind.INTERVAL:
            begin = max(begin, self.settled_until_ms)
        if job.kind == Kind.ONCE and job.misfire != Misfire.SKIP:
            begin = ALWAYS_MS
        certain_from = min(mark_ms + self.config.lookback_ms, self.cursor_ms)
        offer = Offer.MISFIRE if first_start else Offer.REOFFERED
        early = [OfferedRun(job.id, fire, offer, self._step_of(job, fire)) for fire in fires(job, begin, certain_from)]
        self.expected += len(early) if first_start else 0
        return early + self._settle(
            job, fires(job, max(begin, certain_from), self.cursor_ms), self.cursor_ms, "restart"
        )

    def put(self, job: Job) -> None:
        """Insert or replace a job."""
        self._owe(job, after_ms=ALWAYS_MS)
        self.jobs[job.id] = job

    def delete(self, job_id: int) -> None:
        """Delete a job, if there is one."""
        self.jobs.pop(job_id, None)

    def advance(self, now_ms: int, cause: str = "stall") -> list[OfferedRun]:
        """Move the cursor to the last tick at or before ``now_ms``."""
        runs = self._move_on(now_ms // self.config.tick_ms * self.config.tick_ms, cause)
        late = [(job_id, at_ms) for job_id, at_ms in self.owed.items() if at_ms <= self.cursor_ms]
        for job_id, _ in late:
            del self.owed[job_id]
        owed = [
            OfferedRun(job_id, at_ms, Offer.MISFIRE, self._step_of(self.jobs[job_id], at_ms))
            for job_id, at_ms in late
            if self._fires_at(job_id, at_ms)
        ]
        self.expected += len(owed)
        return owed + runs

    def _move_on(self, target_ms: int, cause: str) -> list[OfferedRun]:
        if target_ms <= self.cursor_ms:
            return []
        passed = {job: fires(job, self._after(job), target_ms) for job in self.jobs.values() if job.enabled}
        gap_ms = target_ms - self.cursor_ms
        few = gap_ms == self.config.tick_ms or sum(map(len, passed.values())) <= self.config.backlog_max
        if gap_ms <= self.config.stall_limit_ms and few:
            runs = [
                OfferedRun(job.id, fire, Offer.DUE, self._step_of(job, fire))
                for job, times in passed.items()
                for fire in times
            ]
            self.expected += len(runs)
        else:
            runs = [run for job, times in passed.items() for run in self._settle(job, times, target_ms, cause)]
        self.cursor_ms = target_ms
        return runs

    def step_back(self, now_ms: int, number: int, right_ms: int) -> None:
        """Follow a clock that was stepped back and was wrong after ``right_ms``."""
        self.relived_until_ms = max(self.relived_until_ms, self.cursor_ms)
        self.settled_until_ms = max(self.settled_until_ms, min(right_ms, self.cursor_ms))
        self.cursor_ms = now_ms // self.config.tick_ms * self.config.tick_ms
        self.step = number

    def next_fire(self, job: Job) -> int | None:
        """The fire time that the job waits for."""
        return job.schedule.next_fire(self._after(job)) if job.enabled else None

    def _owe(self, job: Job, *, after_ms: int) -> None:
        at_ms = job.at_ms
        if at_ms is None or not job.enabled or self._fires_at(job.id, at_ms):
            return
        earliest_ms = max(job.start_ms, after_ms + 1)
        if job.misfire == Misfire.SKIP:
            earliest_ms = max(earliest_ms, job.effective_from_ms)
        if earliest_ms <= at_ms <= max(self.cursor_ms, self.settled_until_ms) and at_ms < job.end_ms:
            self.owed[job.id] = at_ms

    def _fires_at(self, job_id: int, at_ms: int) -> bool:
        job = self.jobs.get(job_id)
        return job is not None and job.enabled and job.at_ms == at_ms and job.start_ms <= at_ms < job.end_ms

    def _after(self, job: Job) -> int:
        return self.cursor_ms if job.kind == Kind.INTERVAL else max(self.cursor_ms, self.settled_until_ms)

    def _step_of(self, job: Job, fire_ms: int) -> int:
        if fire_ms > self.relived_until_ms:
            return 0
        return self.step if job.kind == Kind.INTERVAL else -self.step

    def _settle(self, job: Job, missed: list[int], until_ms: int, reason: str) -> list[OfferedRun]:
        if job.misfire == Misfire.ALL:
            offered = missed[-self.config.all_max :]
        else:
            offered = missed[-1:] if self._offers_newest(job, missed, until_ms) else []
        self.expected += len(missed)
        self.skipped[reason] += len(missed) - len(offered)
        return [OfferedRun(job.id, fire, Offer.MISFIRE, self._step_of(job, fire)) for fire in offered]

    def _offers_newest(self, job: Job, missed: list[int], until_ms: int) -> bool:
        if not missed:
            return False
        if job.misfire == Misfire.LATEST:
            deadline_ms = self.config.starting_deadline_ms
            return job.cron is None or deadline_ms is None or until_ms - missed[-1] <= deadline_ms
        if job.misfire == Misfire.AUTO:
            successor = endless(job).next_fire(missed[-1])
            return successor is None or successor - missed[-1] >= self.config.misfire_gap_ms
        return False


def endless(job: Job) -> object:
    """The schedule without its end."""
    from dataclasses import replace

    from celery_wheelbeat.schedules.kinds import NEVER_MS

    return replace(job, end_ms=NEVER_MS).schedule


def fires(job: Job, after_ms: int, until_ms: int) -> list[int]:
    """List the fire times of a job in (``after_ms``, ``until_ms``], one by one."""
    schedule = job.schedule
    found = []
    fire_ms = schedule.next_fire(after_ms)
    while fire_ms is not None and fire_ms <= until_ms:
        found.append(fire_ms)
        fire_ms = schedule.next_fire(fire_ms)
    return found
