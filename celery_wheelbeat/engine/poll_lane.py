"""Poll lane: the few jobs whose fire times nobody can compute ahead, asked one by one beside the wheel.

Solar events and custom Celery schedules. A schedule here is foreign code: it may raise, lie or be slow, and only its
own job may feel it. Whatever it answers, a run is never early and the fire times of one job increase strictly. Jobs
whose instant has come take turns, one question each: a job that is behind makes no other one wait longer than a round.
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
    from collections.abc import Callable, Mapping

    from celery_wheelbeat.engine.packing import Rows
    from celery_wheelbeat.schedules.kinds import Int64s, Polled

BUDGET_S: Final = 0.002
"""Time of one ``advance``; the jobs that are left come first in the next one."""
STEPS: Final = 10_000
"""Questions of one ``advance``."""
RETRY_MS: Final = 60_000
"""A job whose schedule raised is asked again after this long."""
STALE_MAX: Final = 1_000
"""Instants of former definitions that heap and line may hold, beside one for each job."""
IDLE_MS: Final = 1_000
"""A schedule that wants to be asked again at once, though nothing was due, waits this long."""


class LaneFailure(NamedTuple):
    """A schedule that raised."""

    job_id: int
    error: Exception


@dataclass(slots=True)
class LaneTurn:
    """What one ``advance`` found."""

    due: list[tuple[int, int]] = field(default_factory=list)
    """(job id, fire time in ms), in the order of fire times."""
    failures: list[LaneFailure] = field(default_factory=list)
    behind: bool = False
    """The budget ended before every job was asked; the next ``advance`` goes on, whether or not time has passed."""


@dataclass(slots=True)
class _Member:
    schedule: Polled
    version: int
    fired_ms: int


class PollLane:
    """The polled jobs, by the instant at which each is to be asked. Owned by the scheduling thread."""

    def __init__(self, monotonic_s: Callable[[], float], *, budget_s: float = BUDGET_S, steps: int = STEPS) -> None:
        """``monotonic_s`` measures the budget; the lane knows no other clock."""
        self._monotonic_s = monotonic_s
        self._budget_s = budget_s
        self._steps = steps
        self._members: dict[int, _Member] = {}
        self._ahead: list[tuple[int, int, int]] = []
        """A heap of (instant, job id, version): jobs whose instant is still to come."""
        self._line: deque[tuple[int, int, int]] = deque()
        """The same of jobs whose instant has come, in the order in which they are asked."""
        self._version = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._members

    def put(self, job_id: int, schedule: Polled, *, ask_ms: int, after_ms: int = -NEVER_MS) -> None:
        """Add a job, or replace its schedule; it is asked at ``ask_ms`` first and fires only after ``after_ms``."""
        self._version += 1
        self._members[job_id] = _Member(schedule, self._version, after_ms)
        self._wait(ask_ms, job_id, self._version)
        if len(self._ahead) + len(self._line) > 2 * len(self._members) + STALE_MAX:
            self._line = deque(waiting for waiting in self._line if self._is_current(*waiting))
            self._ahead = [waiting for waiting in self._ahead if self._is_current(*waiting)]
            heapq.heapify(self._ahead)

    def remove(self, job_id: int) -> bool:
        """Forget a job; says whether it was there."""
        return self._members.pop(job_id, None) is not None

    def next_ask_ms(self) -> int:
        """Return the earliest instant at which a job is to be asked, NEVER_MS if none; the mark stays before it."""
        while self._ahead and not self._is_current(*self._ahead[0]):
            heapq.heappop(self._ahead)
        in_line = (waiting[0] for waiting in self._line if self._is_current(*waiting))
        return min(min(in_line, default=NEVER_MS), self._ahead[0][0] if self._ahead else NEVER_MS)

    def advance(self, now_ms: int) -> LaneTurn:
        """Ask jobs whose instant has come, one after the other and one question each, within the budget."""
        turn = LaneTurn()
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

    def _ask(self, turn: LaneTurn, job_id: int, ask_ms: int, now_ms: int) -> int:
        """Ask one job; returns when to ask it again."""
        member = self._members[job_id]
        try:
            fire_ms, again_ms = member.schedule.ask(now_ms)
            again_ms = int(again_ms)
            fire_ms = None if fire_ms is None else int(fire_ms)
        except Exception as error:  # foreign code: whatever it raises is its own job's affair
            turn.failures.append(LaneFailure(job_id, error))
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


class LaneJobs:
    """Keeps the members of one ``PollLane`` in step with the tables."""

    def __init__(self, polled: PollLane) -> None:
        self.polled = polled
        self.turn = LaneTurn()
        """What the last turn of the lane found."""
        self._failures: list[LaneFailure] = []

    def put(self, rows: Rows, schedules: Mapping[int, Polled], *, ask_ms: int, after_ms: int) -> None:
        """Take in those of ``rows`` that belong here: asked at ``ask_ms`` first, due only after ``after_ms``."""
        for job_id in rows.ids[(rows.flags & (ENABLED | POLLED)) == ENABLED | POLLED].tolist():
            self.polled.put(job_id, schedules[job_id], ask_ms=ask_ms, after_ms=after_ms)

    def remove(self, rows: Rows) -> None:
        """Forget the jobs of ``rows`` that are members."""
        if len(self.polled):
            for job_id in rows.ids[(rows.flags & POLLED) > 0].tolist():
                self.polled.remove(job_id)

    def due(self, until_ms: int) -> tuple[Int64s, Int64s]:
        """Ask the lane; returns job ids and fire times, by fire time."""
        self.turn = self.polled.advance(until_ms)
        self._failures += self.turn.failures
        ids, fires = np.array(self.turn.due, np.int64).reshape(-1, 2).T
        return ids, fires

    def take_failures(self) -> list[LaneFailure]:
        """Return the schedules that have raised since the last call: each is to be reported once."""
        failures, self._failures = self._failures, []
        return failures
