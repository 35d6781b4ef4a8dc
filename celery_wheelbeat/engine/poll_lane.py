"""Poll lane: jobs whose fire times cannot be computed ahead, asked one by one instead of filed in the wheel.

These are solar events and custom Celery schedules. Their code is foreign: it may raise, return nonsense or be slow, and
only its own job may suffer. Invariant: for any answer, a run is never early and the fire times of a job increase
strictly. Jobs to be asked take turns, one question each: a job that is behind delays the others by one round at most.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from celery_wheelbeat.engine.packing import ENABLED, POLLED
from celery_wheelbeat.schedules.kinds import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from celery_wheelbeat.engine.packing import Rows
    from celery_wheelbeat.engine.sharing.share import Share
    from celery_wheelbeat.schedules.kinds import Int64s, Polled

BUDGET_S: Final = 0.002
"""Time budget of one ``advance``; the remaining jobs come first in the next."""
STEPS: Final = 10_000
"""Greatest number of questions in one ``advance``."""
RETRY_MS: Final = 60_000
"""Pause before a schedule that raised is asked again."""
STALE_MAX: Final = 1_000
"""Heap and queue are cleaned once they hold more than two items a job plus this many."""
IDLE_MS: Final = 1_000
"""Pause before a schedule is asked again that demands it at once although nothing was due."""


class PollFailure(NamedTuple):
    """A schedule that raised."""

    job_id: int
    error: Exception


class Unasked(NamedTuple):
    """A job whose schedule is not asked."""

    schedule: Polled
    fired_ms: int
    """Its last fire time, or the instant after which it may fire."""


@dataclass(slots=True)
class PollTurn:
    """The result of one ``advance``."""

    due: list[tuple[int, int]] = field(default_factory=list)
    """(job id, fire time in ms), ascending by fire time."""
    failures: list[PollFailure] = field(default_factory=list)
    behind: bool = False
    """The budget ended before every job was asked; the next ``advance`` continues, even at the same instant."""


@dataclass(slots=True)
class _Member:
    schedule: Polled
    version: int
    fired_ms: int


class PolledJobs:
    """The polled jobs, ordered by the instant at which each is to be asked."""

    def __init__(self, monotonic_s: Callable[[], float], *, budget_s: float = BUDGET_S, steps: int = STEPS) -> None:
        """``monotonic_s``: clock of the budget; the lane uses no other."""
        self._monotonic_s = monotonic_s
        self._budget_s = budget_s
        self._steps = steps
        self._members: dict[int, _Member] = {}
        self._ahead: list[tuple[int, int, int]] = []
        """Heap of (instant, job id, version): jobs to be asked later."""
        self._line: deque[tuple[int, int, int]] = deque()
        """Queue of the same items: jobs to be asked now, in this order."""
        self._version = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._members

    def put(self, job_id: int, schedule: Polled, *, ask_ms: int, after_ms: int = -NEVER_MS) -> None:
        """Add a job or replace its schedule; it is first asked at ``ask_ms`` and fires only after ``after_ms``."""
        self._version += 1
        self._members[job_id] = _Member(schedule, self._version, after_ms)
        self._wait(ask_ms, job_id, self._version)
        if len(self._ahead) + len(self._line) > 2 * len(self._members) + STALE_MAX:
            self._line = deque(waiting for waiting in self._line if self._is_current(*waiting))
            self._ahead = [waiting for waiting in self._ahead if self._is_current(*waiting)]
            heapq.heapify(self._ahead)

    def remove(self, job_id: int) -> bool:
        """Remove a job; returns whether it was present."""
        return self._members.pop(job_id, None) is not None

    def job_ids(self) -> Iterable[int]:
        """Return the jobs of the lane."""
        return self._members.keys()

    def take_out(self, job_id: int) -> Unasked:
        """Remove a job and return what is needed to add it again."""
        member = self._members.pop(job_id)
        return Unasked(member.schedule, member.fired_ms)

    def next_ask_ms(self) -> int:
        """Return the earliest instant at which a job is to be asked, NEVER_MS if none. The mark stays before it."""
        while self._ahead and not self._is_current(*self._ahead[0]):
            heapq.heappop(self._ahead)
        in_line = (waiting[0] for waiting in self._line if self._is_current(*waiting))
        return min(min(in_line, default=NEVER_MS), self._ahead[0][0] if self._ahead else NEVER_MS)

    def advance(self, now_ms: int) -> PollTurn:
        """Ask the jobs due to be asked by ``now_ms``, in turn and one question each, within the budget."""
        turn = PollTurn()
        end_s = self._monotonic_s() + self._budget_s
        while self._ahead and self._ahead[0][0] <= now_ms:
            self._line.append(heapq.heappop(self._ahead))
        for _step in range(self._steps):
            while self._line and not self._is_current(*self._line[0]):
                self._line.popleft()
            if not self._line:
                break
            ask_ms, job_id, version = self._line.popleft()
            again_ms = self._ask(turn, job_id, ask_ms, now_ms)
            if again_ms <= now_ms:
                self._line.append((again_ms, job_id, version))
            else:
                self._wait(again_ms, job_id, version)
            if self._monotonic_s() >= end_s:
                break
        turn.due.sort(key=lambda run: run[1])
        turn.behind = any(self._is_current(*waiting) for waiting in self._line)
        return turn

    def _ask(self, turn: PollTurn, job_id: int, ask_ms: int, now_ms: int) -> int:
        """Ask one job; returns the instant to ask it again."""
        member = self._members[job_id]
        try:
            fire_ms, again_ms = member.schedule.ask(now_ms)
            again_ms = int(again_ms)
            fire_ms = None if fire_ms is None else int(fire_ms)
        except Exception as error:  # foreign code may raise anything; only its own job may suffer
            turn.failures.append(PollFailure(job_id, error))
            return now_ms + RETRY_MS
        if fire_ms is not None and member.fired_ms < fire_ms <= now_ms:
            member.fired_ms = fire_ms
            turn.due.append((job_id, fire_ms))
            return again_ms if again_ms > ask_ms else now_ms + IDLE_MS
        return again_ms if again_ms > now_ms else now_ms + IDLE_MS

    def _wait(self, ask_ms: int, job_id: int, version: int) -> None:
        if ask_ms < NEVER_MS:
            heapq.heappush(self._ahead, (ask_ms, job_id, version))

    def _is_current(self, _ask_ms: int, job_id: int, version: int) -> bool:
        member = self._members.get(job_id)
        return member is not None and member.version == version


class PollLane:
    """Keeps the members of one ``PolledJobs`` consistent with the tables."""

    def __init__(self, jobs: PolledJobs, share: Share) -> None:
        """Only the schedules of jobs of ``share`` are asked: they are foreign code, which may act when asked."""
        self.jobs = jobs
        self._share = share
        self._followed: dict[int, Unasked] = {}
        """Jobs of the other shards."""
        self.turn = PollTurn()
        """The result of the last ``advance`` of the lane."""
        self._failures: list[PollFailure] = []

    def put(self, rows: Rows, schedules: Mapping[int, Polled], *, ask_ms: int, after_ms: int) -> None:
        """Add the enabled polled jobs of ``rows``; they are first asked at ``ask_ms`` and fire after ``after_ms``."""
        ids = rows.ids[(rows.flags & (ENABLED | POLLED)) == ENABLED | POLLED]
        for job_id, owned in zip(ids.tolist(), self._share.has(ids).tolist(), strict=True):
            if owned:
                self.jobs.put(job_id, schedules[job_id], ask_ms=ask_ms, after_ms=after_ms)
            else:
                self._followed[job_id] = Unasked(schedules[job_id], after_ms)

    def divide(self, floor_ms: Int64s | None = None, *, ask_ms: int = 0) -> None:
        """Ask the schedules of the share, which has changed, and no others.

        Jobs that it gains fire after ``floor_ms`` (by shard) and are first asked at ``ask_ms``.
        """
        for job_id in [one for one in self.jobs.job_ids() if not self._share.owns(one)]:
            self._followed[job_id] = self.jobs.take_out(job_id)
        for job_id in [one for one in self._followed if self._share.owns(one)]:
            schedule, fired_ms = self._followed.pop(job_id)
            if floor_ms is not None:
                fired_ms = max(fired_ms, int(floor_ms[job_id & (len(floor_ms) - 1)]))
            self.jobs.put(job_id, schedule, ask_ms=ask_ms, after_ms=fired_ms)

    def __contains__(self, job_id: int) -> bool:
        return job_id in self.jobs or job_id in self._followed

    def remove(self, rows: Rows) -> None:
        """Remove the polled jobs of ``rows``."""
        if len(self.jobs) or self._followed:
            for job_id in rows.ids[(rows.flags & POLLED) > 0].tolist():
                self.jobs.remove(job_id)
                self._followed.pop(job_id, None)

    def due(self, until_ms: int) -> tuple[Int64s, Int64s]:
        """Advance the lane to ``until_ms``; returns job ids and fire times, ascending by fire time."""
        self.turn = self.jobs.advance(until_ms)
        self._failures += self.turn.failures
        ids, fires = np.array(self.turn.due, np.int64).reshape(-1, 2).T
        return ids, fires

    def take_failures(self) -> list[PollFailure]:
        """Return the failures since the last call, so that each is reported once."""
        failures, self._failures = self._failures, []
        return failures
