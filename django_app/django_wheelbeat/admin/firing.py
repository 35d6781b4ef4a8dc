"""Finds the monitors that fire within a given second or minute: computed from their rows, never stored.

Bounded: one call reads a few columns of at most SCANNED_MAX rows in primary key order and returns where to continue.
Column arithmetic rules out most of them; the engine's own schedule decides for the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.jobs.identity import interval_offset_ms
from celery_wheelbeat.jobs.validation import cron_of
from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.intervals import next_grid_fire
from django_wheelbeat.admin.change_list import TEXTS
from django_wheelbeat.admin.preview import next_fire_ms
from django_wheelbeat.monitors.rows import row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_wheelbeat.settings import Settings
    from django_wheelbeat.models import Monitor

SCANNED_MAX = 200_000
CHUNK_ROWS = 20_000
FOUND_MAX = 100

_NARROW = ("pk", "interval_ms", "jitter_s", "start_at", "incident_until", "cron", "timezone", "day_rule")


class Firing(NamedTuple):
    """One future run."""

    monitor: Monitor
    fire_ms: int


class Found(NamedTuple):
    """Result of one call."""

    firings: list[Firing]
    go_on_after: int | None
    """Primary key after which the next call continues; None at the end."""


def monitors_firing(monitors: Any, from_ms: int, until_ms: int, settings: Settings, after: int | None = None) -> Found:
    """Return up to FOUND_MAX of ``monitors`` (a queryset) with a fire time in [``from_ms``, ``until_ms``).

    ``after``: primary key to continue after; None starts at the beginning.
    """
    candidates = monitors.filter(enabled=True, finished_at__isnull=True).order_by("pk")
    found: list[Firing] = []
    scanned = 0
    while scanned < SCANNED_MAX:
        ahead = candidates if after is None else candidates.filter(pk__gt=after)
        rows = list(ahead.values_list(*_NARROW)[:CHUNK_ROWS])
        scanned += len(rows)
        likely = _likely(rows, from_ms, until_ms, settings)
        for monitor in monitors.filter(pk__in=likely).defer(*TEXTS).order_by("pk"):
            after = monitor.pk
            fire_ms = next_fire_ms(row_of(monitor), from_ms - 1, settings)
            if fire_ms is not None and fire_ms < until_ms:
                found.append(Firing(monitor, fire_ms))
                if len(found) == FOUND_MAX:
                    return Found(found, after)
        if len(rows) < CHUNK_ROWS:
            return Found(found, None)
        after = rows[-1][0]
    return Found(found, after)


def _likely(rows: Sequence[tuple[Any, ...]], from_ms: int, until_ms: int, settings: Settings) -> list[int]:
    """Return primary keys of monitors that may fire in the window: all that do, and few others."""
    plain = [row for row in rows if _is_plain(*row[1:5])]
    keys = list(_unusual(rows, from_ms, until_ms, settings))
    if plain:
        ids = np.array([row[0] for row in plain], np.int64)
        interval = np.array([row[1] for row in plain], np.int64)
        jitter = np.array([-1 if row[2] is None else row[2] for row in plain], np.int64)
        offset = interval_offset_ms(ids, interval, jitter)
        fire_ms = next_grid_fire(np.full(len(ids), from_ms - 1), interval, np.zeros(len(ids), np.int64), offset)
        keys += ids[fire_ms < until_ms].tolist()
    return sorted(keys)


def _is_plain(interval_ms: Any, jitter_s: Any, start_at: Any, incident_until: Any) -> bool:
    """Whether column arithmetic can decide the row; checks types because SQLite stores any value in any column."""
    numbers = isinstance(interval_ms, int) and interval_ms > 0 and isinstance(jitter_s, int | None)
    return numbers and start_at is None and incident_until is None


def _may_fire(group: tuple[str, str, str, int], from_ms: int, until_ms: int) -> bool:
    """Whether monitors of a cron group may fire in the window; True if unknown, so that each is checked by itself."""
    *schedule_of_group, window_s = group
    try:
        schedule = cron_of(*schedule_of_group)
        first = schedule.next_fire(from_ms - window_s * 1000 - 1) if isinstance(schedule, Cron) else None
    except Exception:
        return True
    return first is not None and first < until_ms


def _unusual(rows: Sequence[tuple[Any, ...]], from_ms: int, until_ms: int, settings: Settings) -> Iterator[int]:
    slots: dict[tuple[str, str, str, int], bool] = {}
    for pk, interval_ms, jitter_s, start_at, incident_until, cron, timezone, day_rule in rows:
        if not cron or incident_until is not None:
            if interval_ms is None or start_at is not None or incident_until is not None:
                yield pk
            continue
        window_s = settings.cron_jitter if jitter_s is None else jitter_s
        group = (cron, timezone, day_rule, window_s)
        if group not in slots:
            slots[group] = _may_fire(group, from_ms, until_ms)
        if slots[group]:
            yield pk
