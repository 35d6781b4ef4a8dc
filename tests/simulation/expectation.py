"""Which runs a beat has to offer, turn by turn: the rules of the architecture in the plainest words.

No wheel, no column, no closed form: a dict of jobs, walked fire time by fire time. One instance follows one process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from simulation.fire_times import NEVER_MS

if TYPE_CHECKING:
    from simulation.fire_times import Plan


class Rules(NamedTuple):
    """The numbers in the rules, in ms."""

    tick_ms: int
    stall_limit_ms: int
    backlog_max: int
    misfire_gap_ms: int
    lookback_ms: int
    deadline_ms: int | None
    all_max: int = 1_000


class Job(NamedTuple):
    """A job as it is in force."""

    id: int
    key: str
    plan: Plan
    enabled: bool
    misfire: str
    one_off: bool
    effective_from_ms: int
    version: int | None = None
    """Version of the monitor's row; None for entries."""

    @property
    def arming(self) -> tuple[bool, int]:
        """What tells a one-off from what the same monitor was before: its instant, else since when it is defined."""
        once = self.plan.kind == "once"
        return once, self.plan.phase_ms if once else self.effective_from_ms


class Offered(NamedTuple):
    """One run that has to be offered."""

    job_id: int
    fire_ms: int
    step: int = 0
    reoffered: bool = False


@dataclass
class Expectation:
    """See the module."""

    rules: Rules
    cursor_ms: int = 0
    mark_ms: int | None = None
    """Mark that the start goes by; None = nothing is offered of what passed."""
    shard_marks: list[int] = field(default_factory=list)
    """The same for each shard; empty = ``mark_ms`` for all."""
    first_start: bool = False
    """The mark is where this process began: nobody can have sent what came after it."""
    relived_until_ms: int = 0
    """What came due up to here is lived a second time."""
    settled_until_ms: int = 0
    """Crons and onces are not offered a second time up to here."""
    step: int = 0
    jobs: dict[int, Job] = field(default_factory=dict)
    due: list[Offered] = field(default_factory=list)
    expected: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    _next: dict[int, int] = field(default_factory=dict)
    _late_once: dict[int, int] = field(default_factory=dict)

    def start(self, now_ms: int, mark_ms: int | None, step: int, relived_until_ms: int, settled_until_ms: int) -> None:
        """Begin with nothing armed."""
        self.cursor_ms = self._tick(now_ms)
        self.mark_ms, self.step = mark_ms, step
        self.relived_until_ms, self.settled_until_ms = relived_until_ms, settled_until_ms

    def load(self, job: Job) -> None:
        """Add a job at the start and settle what it missed since the mark."""
        self._note_once(job, after_ms=self.cursor_ms)
        self._set(job)
        if self.mark_ms is None or not job.enabled:
            return
        mark_ms = self.shard_marks[job.id % len(self.shard_marks)] if self.shard_marks else self.mark_ms
        begin = max(mark_ms, job.effective_from_ms - 1)
        if job.plan.kind != "interval":
            begin = max(begin, self.settled_until_ms)
        if job.plan.kind == "once" and job.misfire != "skip":
            begin = -NEVER_MS  # late rather than never
        certain_from = min(mark_ms + self.rules.lookback_ms, self.cursor_ms)
        again = job.plan.fires(begin, certain_from)
        self.expected += len(again) if self.first_start else 0
        reoffered = not self.first_start
        self.due += [Offered(job.id, fire, self._step_of(job, fire), reoffered=reoffered) for fire in again]
        missed = job.plan.fires(max(begin, certain_from), self.cursor_ms)
        self._settle(job, missed, self.cursor_ms, "restart")

    def put(self, job: Job) -> None:
        """Insert or replace a job; a once that is late already is owed."""
        self._note_once(job, after_ms=-NEVER_MS)
        self._set(job)

    def delete(self, job_id: int) -> None:
        """Delete a job, if there is one."""
        self.jobs.pop(job_id, None)
        self._next.pop(job_id, None)

    def finish(self, job_id: int) -> None:
        """Switch a one-off off: it is done."""
        if job_id in self.jobs:
            self._set(self.jobs[job_id]._replace(enabled=False))

    def step_back(self, now_ms: int, number: int, right_ms: int | None) -> None:
        """Follow a clock that was set back; what came due after ``right_ms`` came due by a wrong clock."""
        self.relived_until_ms = max(self.relived_until_ms, self.cursor_ms)
        settled_ms = self.cursor_ms if right_ms is None or right_ms > self.cursor_ms else right_ms
        self.settled_until_ms = max(self.settled_until_ms, settled_ms)
        self.cursor_ms = self._tick(now_ms)
        self.step = number
        for job in self.jobs.values():
            self._arm(job)

    def advance(self, now_ms: int, cause: str) -> None:
        """Move the cursor to the last tick at or before ``now_ms``."""
        target_ms = self._tick(now_ms)
        if target_ms > self.cursor_ms:
            self._move_on(target_ms, cause)
        late = [(job_id, at_ms) for job_id, at_ms in self._late_once.items() if at_ms <= self.cursor_ms]
        for job_id, _ in late:
            del self._late_once[job_id]
        due = [(self.jobs[job_id], at_ms) for job_id, at_ms in late if self._has_once(job_id, at_ms)]
        owed = [Offered(job.id, at_ms, self._step_of(job, at_ms)) for job, at_ms in due]
        self.expected += len(owed)
        self.due += owed

    def _move_on(self, target_ms: int, cause: str) -> None:
        passed = {
            job_id: self.jobs[job_id].plan.fires(self._after(self.jobs[job_id]), target_ms)
            for job_id, next_ms in self._next.items()
            if next_ms <= target_ms
        }
        gap_ms = target_ms - self.cursor_ms
        few = gap_ms == self.rules.tick_ms or sum(map(len, passed.values())) <= self.rules.backlog_max
        replayed = gap_ms <= self.rules.stall_limit_ms and few
        for job_id, fires in passed.items():
            if replayed:
                self.expected += len(fires)
                self.due += [Offered(job_id, fire, self._step_of(self.jobs[job_id], fire)) for fire in fires]
            else:
                self._settle(self.jobs[job_id], fires, target_ms, cause)
        self.cursor_ms = target_ms
        for job_id in passed:
            self._arm(self.jobs[job_id])

    def _note_once(self, job: Job, *, after_ms: int) -> None:
        """Owe a run to a once whose instant the wheel will not come to, or not again."""
        plan, at_ms = job.plan, job.plan.phase_ms
        if plan.kind != "once" or not job.enabled or self._has_once(job.id, at_ms):
            return
        earliest_ms = max(job.effective_from_ms if job.misfire == "skip" else -NEVER_MS, after_ms + 1)
        if earliest_ms <= at_ms <= max(self.cursor_ms, self.settled_until_ms) and plan.fires(at_ms - 1, at_ms):
            self._late_once[job.id] = at_ms

    def _has_once(self, job_id: int, at_ms: int) -> bool:
        job = self.jobs.get(job_id)
        return job is not None and job.enabled and job.plan.kind == "once" and at_ms in job.plan.fires(at_ms - 1, at_ms)

    def _set(self, job: Job) -> None:
        self.jobs[job.id] = job
        self._arm(job)

    def _arm(self, job: Job) -> None:
        self._next.pop(job.id, None)
        after_ms, reach_ms = self._after(job), 4_000
        while job.enabled and reach_ms < 400 * 86_400_000:
            fires = job.plan.fires(after_ms, after_ms + reach_ms)
            if fires:
                self._next[job.id] = fires[0]
                return
            reach_ms *= 30

    def _after(self, job: Job) -> int:
        return self.cursor_ms if job.plan.kind == "interval" else max(self.cursor_ms, self.settled_until_ms)

    def _step_of(self, job: Job, fire_ms: int) -> int:
        """Return n for what is lived again after the n-th step, -n where the id stays that of the first time."""
        if fire_ms > self.relived_until_ms:
            return 0
        return self.step if job.plan.kind == "interval" else -self.step

    def _tick(self, now_ms: int) -> int:
        return now_ms // self.rules.tick_ms * self.rules.tick_ms

    def _settle(self, job: Job, missed: list[int], until_ms: int, reason: str) -> None:
        if job.misfire == "all":
            offered = missed[-self.rules.all_max :]
        else:
            offered = missed[-1:] if missed and self._offers_newest(job, missed[-1], until_ms) else []
        self.expected += len(missed)
        self.skipped[reason] += len(missed) - len(offered)
        self.due += [Offered(job.id, fire, self._step_of(job, fire)) for fire in offered]

    def _offers_newest(self, job: Job, newest_ms: int, until_ms: int) -> bool:
        if job.misfire == "latest":
            deadline_ms = self.rules.deadline_ms
            return job.plan.kind != "cron" or deadline_ms is None or until_ms - newest_ms <= deadline_ms
        return job.misfire == "auto" and job.plan.successor(newest_ms) - newest_ms >= self.rules.misfire_gap_ms
