"""Schedules of many jobs as columns: the arithmetic of ``intervals`` and ``cron`` for whole shards at once.

Every result is in closed form or computed once for all jobs of a cron group. Counting never walks the fire times of a
single job, for any length of the stretch and any interval. Pure: knows neither table rows nor the wheel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.schedules.intervals import count_grid_fires, last_grid_fire, next_grid_fire
from celery_wheelbeat.schedules.kinds import NEVER_MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from celery_wheelbeat.schedules.cron import CronTable
    from celery_wheelbeat.schedules.kinds import Int64s, Positions

NOT_CRON = -1
NO_OFFSET: Int64s = np.zeros((), np.int64)
NO_FIRES: Int64s = np.empty(0, np.int64)
NO_POSITIONS: NDArray[np.intp] = np.empty(0, np.intp)
WALK_FIRES = 4
"""Up to this many fire times of a cron are walked; the rest of a stretch is counted."""


class Span(NamedTuple):
    """Number of fire times of ``n`` jobs in a stretch of time, and the newest (arbitrary if there are none)."""

    counts: Int64s
    newest_ms: Int64s


class ScheduleColumns(NamedTuple):
    """Schedules of ``n`` jobs. A job without interval and cron fires once, at ``phase_ms`` (NEVER_MS = never)."""

    interval_ms: Int64s
    """Interval of interval jobs, else 0."""
    phase_ms: Int64s
    """Interval jobs: one point of the grid (anchor + offset). One-time jobs: the instant."""
    cron_index: NDArray[np.int32]
    """Index into the ``CronTable``, else ``NOT_CRON``."""
    offset_ms: Int64s
    """Added to the fire times of a cron; also part of the phase of an incident."""
    start_ms: Int64s
    end_ms: Int64s
    incident_interval_ms: Int64s
    incident_until_ms: Int64s

    def take(self, positions: Positions) -> ScheduleColumns:
        """Return the schedules at ``positions``."""
        return ScheduleColumns(
            self.interval_ms[positions],
            self.phase_ms[positions],
            self.cron_index[positions],
            self.offset_ms[positions],
            self.start_ms[positions],
            self.end_ms[positions],
            self.incident_interval_ms[positions],
            self.incident_until_ms[positions],
        )

    def endless(self) -> ScheduleColumns:
        """Return the same schedules without their end."""
        return self._replace(end_ms=np.full(len(self.end_ms), NEVER_MS))


def next_fires(schedules: ScheduleColumns, after_ms: Int64s, crons: CronTable) -> Int64s:
    """Return the first fire time of each job strictly after its ``after_ms``; NEVER_MS if there is none."""
    after_ms = np.maximum(after_ms, schedules.start_ms - 1)
    incident = np.flatnonzero(schedules.incident_interval_ms)
    fires = _next_base_fires(schedules, after_ms, crons)
    if len(incident):
        within = schedules.take(incident)
        in_incident = _next_incident_fires(within, after_ms[incident])
        fires[incident] = np.where(in_incident <= within.incident_until_ms, in_incident, fires[incident])
    fires[fires >= schedules.end_ms] = NEVER_MS
    return fires


def spans(schedules: ScheduleColumns, after_ms: Int64s, until_ms: Int64s, crons: CronTable) -> Span:
    """Return the number of fire times of each job in (``after_ms``, ``until_ms``], and the newest."""
    low, high, incident = _bounds(schedules, after_ms, until_ms)
    if incident is None:
        return _base_spans(schedules, low, high, crons)
    fast = _grid_span(incident.low, incident.high, incident.interval_ms, incident.phase_ms)
    base = _base_spans(schedules, low, high, crons)
    at = incident.positions
    base.newest_ms[at] = np.where(base.counts[at] > 0, base.newest_ms[at], fast.newest_ms)
    base.counts[at] += fast.counts
    return base


def fires_between(
    schedules: ScheduleColumns, after_ms: Int64s, until_ms: Int64s, crons: CronTable
) -> tuple[Int64s, Int64s]:
    """Return all fire times in (``after_ms``, ``until_ms``] as (positions of jobs, fire times), by fire time.

    Time and memory grow with the result; the caller must bound the stretch.
    """
    low, high, incident = _bounds(schedules, after_ms, until_ms)
    found: list[tuple[Positions, Int64s]] = []
    if incident is not None:
        found.append(_grid_fires(incident))
    interval = np.flatnonzero(schedules.interval_ms)
    if len(interval):
        phase_ms = schedules.phase_ms[interval]
        found.append(
            _grid_fires(_Grid(interval, low[interval], high[interval], schedules.interval_ms[interval], phase_ms))
        )
    cron = np.flatnonzero(schedules.cron_index != NOT_CRON)
    if len(cron):
        offset_ms = schedules.offset_ms[cron]
        of_cron, fires = _cron_listed(schedules.cron_index[cron], low[cron] - offset_ms, high[cron] - offset_ms, crons)
        found.append((cron[of_cron], fires + offset_ms[of_cron]))
    once = np.flatnonzero((schedules.interval_ms == 0) & (schedules.phase_ms > low) & (schedules.phase_ms <= high))
    found.append((once, schedules.phase_ms[once]))
    positions = np.concatenate([part for part, _ in found])
    fires = np.concatenate([part for _, part in found])
    order = np.argsort(fires, kind="stable")
    return positions[order], fires[order]


class _Grid(NamedTuple):
    """Fire times of the grid (``phase_ms``, ``interval_ms``) in (``low``, ``high``] of the jobs at ``positions``."""

    positions: NDArray[np.intp]
    low: Int64s
    high: Int64s
    interval_ms: Int64s
    phase_ms: Int64s


def _bounds(schedules: ScheduleColumns, after_ms: Int64s, until_ms: Int64s) -> tuple[Int64s, Int64s, _Grid | None]:
    """Return (low, high] in which the base schedule of each job fires, and the incidents before it."""
    low = np.maximum(after_ms, schedules.start_ms - 1)
    high = np.minimum(until_ms, schedules.end_ms - 1)
    at = np.flatnonzero(schedules.incident_interval_ms)
    if not len(at):
        return low, high, None
    within = schedules.take(at)
    fast_until = np.minimum(high[at], within.incident_until_ms)
    incident = _Grid(at, low[at], fast_until, within.incident_interval_ms, _incident_phase(within))
    low[at] = np.maximum(low[at], _last_incident_fire(within))
    return low, high, incident


def _incident_phase(schedules: ScheduleColumns) -> Int64s:
    """Return the phase of the incident grid: anchor and offset of the base schedule."""
    return np.where(schedules.interval_ms > 0, schedules.phase_ms, schedules.offset_ms)


def _next_incident_fires(schedules: ScheduleColumns, after_ms: Int64s) -> Int64s:
    return next_grid_fire(after_ms, schedules.incident_interval_ms, _incident_phase(schedules), NO_OFFSET)


def _last_incident_fire(schedules: ScheduleColumns) -> Int64s:
    until_ms = schedules.incident_until_ms
    return last_grid_fire(until_ms, schedules.incident_interval_ms, _incident_phase(schedules), NO_OFFSET)


def _next_base_fires(schedules: ScheduleColumns, after_ms: Int64s, crons: CronTable) -> Int64s:
    interval = schedules.interval_ms > 0
    if interval.all():
        return next_grid_fire(after_ms, schedules.interval_ms, schedules.phase_ms, NO_OFFSET)
    fires = np.where(schedules.phase_ms > after_ms, schedules.phase_ms, NEVER_MS)
    if interval.any():
        fires[interval] = next_grid_fire(
            after_ms[interval], schedules.interval_ms[interval], schedules.phase_ms[interval], NO_OFFSET
        )
    cron = np.flatnonzero(schedules.cron_index != NOT_CRON)
    if len(cron):
        fires[cron] = _next_cron_fires(schedules.cron_index[cron], schedules.offset_ms[cron], after_ms[cron], crons)
    return fires


def _next_cron_fires(indexes: NDArray[np.int32], offset_ms: Int64s, after_ms: Int64s, crons: CronTable) -> Int64s:
    """Return the next fire times of cron jobs: one query for all jobs of a group between two fire times."""
    after_ms = after_ms - offset_ms
    order = np.lexsort((after_ms, indexes))
    indexes, after_ms = indexes[order], after_ms[order]
    group_ends = np.append(np.flatnonzero(indexes[1:] != indexes[:-1]) + 1, len(indexes))
    sorted_fires = np.empty(len(order), np.int64)
    position = 0
    for group_end in group_ends.tolist():
        index = int(indexes[position])
        while position < group_end:
            fire_ms = crons.next_fire(index, int(after_ms[position]))
            if fire_ms is None:
                sorted_fires[position:group_end] = NEVER_MS
                position = group_end
                continue
            shared = int(np.searchsorted(after_ms[position:group_end], fire_ms))
            sorted_fires[position : position + shared] = fire_ms
            position += shared
    fires = np.empty(len(order), np.int64)
    fires[order] = sorted_fires
    return np.where(fires == NEVER_MS, NEVER_MS, fires + offset_ms)


def _base_spans(schedules: ScheduleColumns, low: Int64s, high: Int64s, crons: CronTable) -> Span:
    once = (schedules.phase_ms > low) & (schedules.phase_ms <= high)
    count = once.astype(np.int64)
    newest = schedules.phase_ms.copy()
    interval = np.flatnonzero(schedules.interval_ms)
    if len(interval):
        span = _grid_span(low[interval], high[interval], schedules.interval_ms[interval], schedules.phase_ms[interval])
        count[interval], newest[interval] = span
    cron = np.flatnonzero(schedules.cron_index != NOT_CRON)
    if len(cron):
        offset = schedules.offset_ms[cron]
        span = _cron_spans(schedules.cron_index[cron], low[cron] - offset, high[cron] - offset, crons)
        count[cron] = span.counts
        newest[cron] = span.newest_ms + offset
    return Span(count, newest)


def _grid_span(low: Int64s, high: Int64s, interval_ms: Int64s, phase_ms: Int64s) -> Span:
    count = count_grid_fires(low, high, interval_ms, phase_ms, NO_OFFSET)
    return Span(np.maximum(count, 0), last_grid_fire(high, interval_ms, phase_ms, NO_OFFSET))


def _grid_fires(grid: _Grid) -> tuple[NDArray[np.intp], Int64s]:
    counts = np.maximum(count_grid_fires(grid.low, grid.high, grid.interval_ms, grid.phase_ms, NO_OFFSET), 0)
    first = next_grid_fire(grid.low, grid.interval_ms, grid.phase_ms, NO_OFFSET)
    member = np.repeat(np.arange(len(counts)), counts)
    number = _numbered(counts)
    return grid.positions[member], first[member] + number * grid.interval_ms[member]


def _numbered(counts: Int64s) -> Int64s:
    """Return 0, 1, …, count - 1 for each of ``counts``, concatenated."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def _cron_listed(
    indexes: NDArray[np.int32], low: Int64s, high: Int64s, crons: CronTable
) -> tuple[NDArray[np.intp], Int64s]:
    """Return the fire times of cron jobs; overlapping stretches of a group are walked once."""
    members, fires = [NO_POSITIONS], [NO_FIRES]
    for group in _groups(indexes):
        walked = _walked(int(indexes[group[0]]), low[group], high[group], crons)
        begin = np.searchsorted(walked, low[group], side="right")
        counts = np.maximum(np.searchsorted(walked, high[group], side="right") - begin, 0)
        members.append(np.repeat(group, counts))
        fires.append(walked[np.repeat(begin, counts) + _numbered(counts)])
    return np.concatenate(members), np.concatenate(fires)


def _groups(indexes: NDArray[np.int32]) -> list[NDArray[np.intp]]:
    """Return the positions of the jobs of each cron group."""
    order = np.argsort(indexes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(indexes[order])) + 1)


def _cron_spans(indexes: NDArray[np.int32], low: Int64s, high: Int64s, crons: CronTable) -> Span:
    count = np.zeros(len(indexes), np.int64)
    newest = np.zeros(len(indexes), np.int64)
    for group in _groups(indexes):
        count[group], newest[group] = _cron_span(int(indexes[group[0]]), low[group], high[group], crons)
    return Span(count, newest)


def _cron_span(index: int, low: Int64s, high: Int64s, crons: CronTable) -> Span:
    """Count the fires of one cron group between consecutive bounds of its jobs, once for all jobs."""
    low = np.minimum(low, high)  # an empty stretch has no fires
    bounds = np.unique(np.concatenate((low, high)))
    passed, newest = np.zeros(len(bounds), np.int64), np.zeros(len(bounds), np.int64)
    at = 0
    while (fire_ms := crons.next_fire(index, int(bounds[at]))) is not None:
        reached = int(np.searchsorted(bounds, fire_ms))
        passed[at + 1 : reached], newest[at + 1 : reached] = passed[at], newest[at]
        if reached == len(bounds):
            break
        count, newest[reached] = _cron_fires(index, fire_ms, int(bounds[reached]), crons)
        passed[reached] = passed[at] + count
        at = reached
    else:
        passed[at + 1 :], newest[at + 1 :] = passed[at], newest[at]
    until = np.searchsorted(bounds, high)
    return Span(np.maximum(passed[until] - passed[np.searchsorted(bounds, low)], NO_OFFSET), newest[until])


def _cron_fires(index: int, fire_ms: int, until_ms: int, crons: CronTable) -> tuple[int, int]:
    """Return the number of fire times in [``fire_ms``, ``until_ms``], and the last; ``fire_ms`` is one of them."""
    for count in range(1, WALK_FIRES + 1):
        next_ms = crons.next_fire(index, fire_ms)
        if next_ms is None or next_ms > until_ms:
            return count, fire_ms
        fire_ms = next_ms
    cron = crons[index]
    return WALK_FIRES + 1 + cron.count(fire_ms, until_ms), cron.last_fire(fire_ms, until_ms) or fire_ms


def _walked(index: int, low: Int64s, high: Int64s, crons: CronTable) -> Int64s:
    """Return the fire times of a cron in the union of the stretches (``low``, ``high``], ascending."""
    order = np.argsort(low, kind="stable")
    low, reach = low[order], np.maximum.accumulate(high[order])
    breaks = np.flatnonzero(low[1:] > reach[:-1]) + 1
    fires: list[int] = []
    for after_ms, until_ms in zip(
        low[np.append(0, breaks)].tolist(), reach[np.append(breaks, len(low)) - 1].tolist(), strict=True
    ):
        fire_ms = crons.next_fire(index, after_ms)
        while fire_ms is not None and fire_ms <= until_ms:
            fires.append(fire_ms)
            fire_ms = crons.next_fire(index, fire_ms)
    return np.array(fires, np.int64)
