"""Why a job fires when it does, and what keeps it from being sent: ``celery -A proj wheelbeat explain NAME``.

Pure, except that it inspects this process's own hooks. Everything is computed from the definition; facts that only a
running beat knows (quarantine, skipped runs) come from the rows that beats have stored.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from celery.beat import Scheduler

from celery_wheelbeat.dispatch.broker import driver_type
from celery_wheelbeat.dispatch.fast_lane.lane_choice import reason_apart
from celery_wheelbeat.dispatch.lane_rules import CHECKED_IN, EXPIRES_NEXT
from celery_wheelbeat.dispatch.messages.hooks import configuration_reasons, entry_reasons, hooks
from celery_wheelbeat.dispatch.messages.tracing import check_ins, only_observers
from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.errors import InvalidMonitor, InvalidSetting
from celery_wheelbeat.jobs.definitions import Misfire
from celery_wheelbeat.jobs.identity import run_id, shard_of
from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.durations import format_duration
from celery_wheelbeat.schedules.fire_times import fires
from celery_wheelbeat.schedules.intervals import Interval, Once
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS
from celery_wheelbeat.schedules.solar import SolarSchedule
from celery_wheelbeat.sources.beat_schedule.celery_schedules import nameless
from celery_wheelbeat.sources.beat_schedule.celery_zones import NAMELESS, timezone_of
from celery_wheelbeat.sources.lookup import definition_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery_wheelbeat.schedules.intervals import Bounded
    from celery_wheelbeat.settings import Settings
    from celery_wheelbeat.sources.lookup import Definition, Stored

FIRES_SHOWN = 3
LOOK_BACK_MS = 10 * 366 * 86_400_000
"""Fire times further back than this are not searched."""
OVERDUE = "as soon as a beat runs: its time has passed, and no run has been confirmed"
_FAST_TRANSPORTS = ("redis", "amqp")
_DAY_MS = 86_400_000


class Beats(NamedTuple):
    """Status rows of beats, and the namespace of their run ids."""

    namespace: str
    reports: Sequence[Mapping[str, Any]]
    """Status rows with their age in seconds."""


def explanation(app: Any, settings: Settings, stored: Stored, beats: Beats, now_ms: int) -> Iterator[tuple[str, str]]:
    """Yield (label, text) pairs; lines of one label are consecutive."""
    try:
        definition = definition_of(app, settings, stored)
    except InvalidMonitor as problem:
        yield "state", f"quarantined, never sent: {problem}"
        yield from _conflict(stored)
        return
    yield "job", f"{definition.key}, task {definition.entry.task}"
    yield from _state(stored, now_ms)
    yield from _conflict(stored)
    yield from _schedule(app, stored, definition, settings)
    yield "shard", f"{shard_of(definition.job_id, settings.shards)} of {settings.shards}"
    if definition.schedule is not None:
        after = OVERDUE if _is_overdue(stored, definition, now_ms) else "never again"
        zone = _zone_of(definition.schedule)
        yield from _fire_times(definition, definition.schedule, beats.namespace, zone, now_ms, after=after)
    yield "misfire", _misfire(app, definition, settings, now_ms)
    yield "overlap", definition.overlap.name.lower().replace("_", " ")
    yield from _lane(app, definition, settings)
    yield from _skips(definition, beats)


def last_fires(schedule: Bounded, until_ms: int, not_before_ms: int, count: int) -> list[int]:
    """Return the last ``count`` fire times in [``not_before_ms``, ``until_ms``], ascending; looks back ten years."""
    span_ms = 1_000
    while True:
        begin_ms = max(until_ms - span_ms, not_before_ms)
        found: deque[int] = deque(maxlen=count)
        for fire_ms in fires(schedule, begin_ms - 1):
            if fire_ms > until_ms:
                break
            found.append(fire_ms)
        if len(found) == count or begin_ms == not_before_ms or span_ms > LOOK_BACK_MS:
            return list(found)
        span_ms *= 4


def _state(stored: Stored, now_ms: int) -> Iterator[tuple[str, str]]:
    row = stored.row if stored.given is None else None
    if row is None:
        yield "state", "an entry of beat_schedule: always enabled"
    elif row.finished_at_ms is not None:
        yield "state", f"finished: its only run was confirmed at {_utc(row.finished_at_ms)}"
    elif not row.enabled:
        yield "state", "disabled: nothing is sent until it is enabled"
    elif row.end_at_ms is not None and row.end_at_ms <= now_ms:
        yield "state", f"ended at {_utc(row.end_at_ms)}"
    else:
        yield "state", f"enabled; in force since {_utc(row.effective_from_ms)}"
    if stored.quarantine is not None:
        yield "quarantine", f"not sent: {stored.quarantine}"


def _conflict(stored: Stored) -> Iterator[tuple[str, str]]:
    if stored.given is not None and stored.row is not None:
        yield (
            "conflict",
            f"monitor {stored.row.id} of the same name is quarantined; the entry of beat_schedule is shown here",
        )


def _schedule(app: Any, stored: Stored, definition: Definition, settings: Settings) -> Iterator[tuple[str, str]]:
    schedule = definition.schedule
    if schedule is None:
        kind = type(definition.entry.schedule)
        yield (
            "schedule",
            f"{kind.__module__}.{kind.__qualname__}: polled at run time, its fire times are not known in advance",
        )
        yield "", "without guarantees about restarts and drift"
        if nameless(definition.entry.schedule, timezone_of(app)):
            yield "", NAMELESS
        return
    yield "schedule", _in_words(schedule)
    yield "offset", _offset(stored, definition, settings)
    if schedule.start_ms != ALWAYS_MS:
        yield "start", f"{_utc(schedule.start_ms)}, inclusive"
    if schedule.end_ms != NEVER_MS:
        yield "end", f"{_utc(schedule.end_ms)}, exclusive"
    if schedule.incident_interval_ms:
        every, until = format_duration(schedule.incident_interval_ms), _utc(schedule.incident_until_ms)
        yield "incident", f"every {every} until {until}, instead of the schedule above"


def _in_words(schedule: Bounded) -> str:
    base = schedule.base
    if isinstance(base, Interval):
        return f"every {format_duration(base.interval_ms)}"
    if isinstance(base, Cron):
        days = "" if base.day_rule == "and" else f", day rule {base.day_rule!r}"
        return f"{base.describe()}, time zone {base.timezone} ({base.expression}{days})"
    if isinstance(base, Once):
        return f"once at {_utc(base.at_ms)}"
    if isinstance(base, SolarSchedule):
        return f"{base.event.replace('_', ' ')} at latitude {base.latitude}, longitude {base.longitude}"
    return repr(base)


def _offset(stored: Stored, definition: Definition, settings: Settings) -> str:
    offset_ms = definition.offset_ms
    row = stored.row if stored.given is None else None
    if row is not None and row.jitter_s is not None:
        why = "exactly on its grid" if row.jitter_s == 0 else f"its own jitter of {row.jitter_s} s"
    elif row is not None and row.cron:
        why = f"wheelbeat_cron_jitter is {settings.cron_jitter} s"
    elif row is not None and row.start_at_ms is not None:
        why = "start_at names the phase"
    elif isinstance(definition.schedule and definition.schedule.base, Interval):
        why = "derived from its id, never changes"
    else:
        why = "exactly on its slot"
    return f"{format_duration(offset_ms)} ({why})"


def _fire_times(
    definition: Definition, schedule: Bounded, namespace: str, zone: str, now_ms: int, *, after: str
) -> Iterator[tuple[str, str]]:
    label = "next"
    for number, fire_ms in enumerate(fires(schedule, now_ms)):
        if number == FIRES_SHOWN:
            break
        yield label, f"{_in_zone(fire_ms, zone)}  run {run_id(definition.key, fire_ms, namespace)}"
        label = ""
    if label:
        yield label, after
    label = "last"
    for fire_ms in reversed(last_fires(schedule, now_ms, definition.effective_from_ms, FIRES_SHOWN)):
        yield label, f"{_in_zone(fire_ms, zone)}  run {run_id(definition.key, fire_ms, namespace)} (computed)"
        label = ""
    if label:
        yield label, "never with the current definition"


def _is_overdue(stored: Stored, definition: Definition, now_ms: int) -> bool:
    """Return whether a one-time run is overdue; it still runs, however late, unless its misfire policy skips it."""
    row = stored.row if stored.given is None else None
    if row is None or row.once_at_ms is None or not row.enabled or row.finished_at_ms is not None:
        return False
    return row.once_at_ms + definition.offset_ms <= now_ms and definition.misfire is not Misfire.SKIP


def _misfire(app: Any, definition: Definition, settings: Settings, now_ms: int) -> str:
    policy, schedule = definition.misfire, definition.schedule
    name = policy.name.lower()
    if schedule is None:
        return "none: runs missed while no beat is running are lost"
    if policy is Misfire.SKIP:
        return f"{name}: runs missed over a restart or a long stall are not sent"
    if policy is Misfire.ALL:
        return f"{name}: every missed run is sent, at most the newest {EngineConfig().all_max:,}"
    if policy is Misfire.LATEST:
        deadline_s = app.conf.beat_cron_starting_deadline
        limit = f", that of a cron schedule only within {deadline_s} s" if deadline_s is not None else ""
        return f"{name}: the newest missed run is sent{limit}"
    first = schedule.next_fire(now_ms)
    second = None if first is None else schedule.next_fire(first)
    gap = format_duration(settings.misfire_gap_ms)
    if first is not None and second is not None and second - first < settings.misfire_gap_ms:
        return f"{name}: missed runs are skipped, as the next one is less than {gap} away (wheelbeat_misfire_gap)"
    return f"{name}: the newest missed run is sent, as the one after it is at least {gap} away (wheelbeat_misfire_gap)"


def _lane(app: Any, definition: Definition, settings: Settings) -> Iterator[tuple[str, str]]:
    try:
        transport = driver_type(app)
    except InvalidSetting as problem:
        yield "lane", f"none: {problem}"
        return
    if settings.dispatch == "celery":
        reasons = ["wheelbeat_dispatch is 'celery'"]
    elif transport not in _FAST_TRANSPORTS:
        reasons = [f"the broker's transport is {transport!r}; the fast lane supports {' and '.join(_FAST_TRANSPORTS)}"]
    else:
        found = hooks(app, Scheduler(app, lazy=True), definition.entry.task)
        reasons = [] if settings.dispatch == "fast" or only_observers(found) else [hook.what for hook in found]
        reasons += configuration_reasons(app) + entry_reasons(app, definition.entry)
        sentry = check_ins() if settings.dispatch != "fast" else None
        every_ms = np.array([_interval_ms(definition.schedule)])
        if sentry is not None and sentry.of([definition.entry.name], every_ms).any():
            reasons.append(CHECKED_IN)
        if definition.expires_next:
            reasons.append(EXPIRES_NEXT)
        apart = reason_apart(definition.job_id, definition.flags)
        reasons = [apart, *reasons] if apart is not None else reasons
    if not reasons:
        yield (
            "lane",
            "fast, as far as this process can tell; `lanes` in the status of the beat shows the lane in use",
        )
    for label, reason in zip(["lane", *[""] * len(reasons)], reasons, strict=False):
        yield label, f"celery: {reason}"


def _interval_ms(schedule: Bounded | None) -> int:
    """Return the interval; 0 if the schedule is not one."""
    return schedule.base.interval_ms if schedule is not None and isinstance(schedule.base, Interval) else 0


def _skips(definition: Definition, beats: Beats) -> Iterator[tuple[str, str]]:
    if not beats.reports:
        yield "beats", "none has reported"
    for report in beats.reports:
        runs = report["status"]["runs"]
        counts = ", ".join(f"{reason} {count:,}" for reason, count in runs["skipped"].items()) or "none"
        age = "now" if report["age_s"] < 10 else f"{report['age_s']:.0f} s ago"
        yield "beat", f"{report['host']} pid {report['pid']}, {report['status']['state']}, reported {age}"
        yield "", f"skipped, all jobs: {counts}"
        for skip in report["status"].get("skips", ()):
            text = _skip(definition, skip)
            if text:
                yield "skipped", text


def _skip(definition: Definition, skip: Mapping[str, Any]) -> str:
    """Describe one period of skipped runs for this job; empty if the job is not affected."""
    from_ms, until_ms = skip["from_ms"], skip["until_ms"]
    span = _utc(from_ms) if from_ms == until_ms else f"{_utc(from_ms)} to {_utc(until_ms)}"
    if definition.key in skip["jobs"]:
        return f"{skip['reason']}: {span}, runs of this job; {skip['runs']:,} runs in total"
    if definition.schedule is None or skip["jobs"]:
        return ""
    begin_ms = max(from_ms, definition.effective_from_ms)
    first = definition.schedule.next_fire(begin_ms - 1)
    if first is None or first > until_ms:
        return ""
    return f"{skip['reason']}: {span}, {skip['runs']:,} runs of all jobs; this job had fire times in that time"


def _zone_of(schedule: Bounded) -> str:
    return schedule.base.timezone if isinstance(schedule.base, Cron) else "UTC"


def _utc(instant_ms: int) -> str:
    return _in_zone(instant_ms, "UTC")


def _in_zone(instant_ms: int, zone: str) -> str:
    """Return ``2026-03-29 03:00:17 CEST (01:00:17Z)``."""
    try:
        instant = datetime.fromtimestamp(instant_ms / 1000, UTC)
    except (OverflowError, ValueError):
        return f"{instant_ms} ms"
    timespec = "milliseconds" if instant_ms % 1000 else "seconds"
    if zone == "UTC":
        return instant.isoformat(" ", timespec).replace("+00:00", "Z")
    local = instant.astimezone(ZoneInfo(zone))
    return f"{local.replace(tzinfo=None).isoformat(' ', timespec)} {local:%Z} ({instant:%Y-%m-%dT%H:%M:%SZ})"
