"""Look up one definition by name, in the database or in ``beat_schedule``; for commands and forms, not for the beat.

The result is compiled exactly as a beat compiles the definition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from celery.beat import ScheduleEntry, Scheduler
from kombu.utils.json import loads

from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.definitions import misfire_of, overlap_of
from celery_wheelbeat.jobs.rows import Limits
from celery_wheelbeat.jobs.rows import key_of as monitor_key
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.schedules.intervals import Bounded, Interval, Once
from celery_wheelbeat.schedules.kinds import Kind
from celery_wheelbeat.schedules.solar import SolarSchedule
from celery_wheelbeat.sources.beat_schedule.celery_objects import celery_schedule_of
from celery_wheelbeat.sources.beat_schedule.celery_zones import timezone_of
from celery_wheelbeat.sources.beat_schedule.entries import Entries, given_schedule, problem_of
from celery_wheelbeat.sources.beat_schedule.entries import key_of as entry_key
from celery_wheelbeat.sources.databases.open import database_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_wheelbeat.jobs.definitions import DefinitionBatch, Misfire, Overlap
    from celery_wheelbeat.jobs.rows import MonitorRow
    from celery_wheelbeat.settings import Settings


class Definition(NamedTuple):
    """One job, compiled."""

    job_id: int
    flags: int
    """Bits of ``jobs.Flag``."""
    key: str
    entry: ScheduleEntry
    """Task, arguments and options to send; a private object that the caller may modify."""
    schedule: Bounded | None
    """None = a custom Celery schedule that can only be polled at run time."""
    offset_ms: int
    misfire: Misfire
    overlap: Overlap
    expires_next: bool
    effective_from_ms: int


class Stored(NamedTuple):
    """The definitions with one name; a beat runs at most one of ``row`` and ``given``."""

    name: str
    row: MonitorRow | None
    given: ScheduleEntry | Mapping[str, Any] | None
    """Entry of ``beat_schedule``, or one of Celery's default entries."""
    installation: str | None
    quarantine: str | None
    """Reason stored by a beat."""


def look_up(app: Any, settings: Settings, name: str) -> Stored:
    """Return the definitions named ``name``; raises ``InvalidMonitor`` if there are none."""
    app.finalize(auto=True)
    given = app.conf.beat_schedule.get(name)
    row, installation, recorded = None, None, {}
    database = database_of(app, settings)
    if database is not None:
        try:
            installation = database.store.namespace()
            job_id = database.store.id_of(name)
            row = next(iter([] if job_id is None else database.source.fetch([job_id])), None)
            recorded = dict(database.store.quarantined())
        finally:
            database.source.close()
    if given is None and row is None:
        given = _default_entry(app, name)
    if given is None and row is None:
        known = "no entry of beat_schedule" if database is None else "neither a monitor nor an entry of beat_schedule"
        raise InvalidMonitor("name", f"{known} has the name {name!r}")
    key = entry_key(name) if row is None else monitor_key(row.id)
    _, reason = recorded.get(key, ("", None))
    return Stored(name, row, given, installation, reason)


def definition_of(app: Any, settings: Settings, stored: Stored) -> Definition:
    """Compile the definition: the entry if there is one; raises ``InvalidMonitor`` if it cannot run."""
    if stored.given is not None:
        return _of_entry(app, stored.name, stored.given)
    assert stored.row is not None  # noqa: S101 - look_up has found one of the two
    return definition_of_row(app, settings, stored.row)


def definition_of_row(app: Any, settings: Settings, row: MonitorRow) -> Definition:
    """Compile a monitor, enabled or not; raises ``InvalidMonitor`` if it cannot run."""
    crons = CronTable()
    limits = Limits.of(settings, loads)
    compiled = compile_rows([row], crons=crons, cron_jitter_s=settings.cron_jitter, limits=limits, solar=SolarSchedule)
    for problem in compiled.refused.values():
        raise problem
    schedule = _schedule(compiled.batch, crons)
    args, kwargs = loads(compiled.batch.payload)  # type: ignore[no-untyped-call]
    route = compiled.batch.route_at(0)
    entry = ScheduleEntry(
        name=row.name,
        task=route.task,
        args=args,
        kwargs=kwargs,
        options=loads(route.options),  # type: ignore[no-untyped-call]
        schedule=celery_schedule_of(schedule),
        app=app,
    )
    return _definition(compiled.batch, monitor_key(row.id), entry, schedule, expires_next=route.expires_next)


def _of_entry(app: Any, name: str, given: ScheduleEntry | Mapping[str, Any]) -> Definition:
    crons = CronTable()
    entries = Entries(timezone_of(app), crons)
    try:
        entry = Scheduler(app, lazy=True)._maybe_entry(name, given)
    except Exception as error:  # Celery raises various errors for invalid entries
        raise problem_of(given_schedule(given), error) from error
    batch = entries.changes({name: entry}, 0).upserts
    for problem in entries.refused.values():
        raise problem
    return _definition(batch, entry_key(name), entry, _schedule(batch, crons), expires_next=False)


def _default_entry(app: Any, name: str) -> ScheduleEntry | None:
    scheduler = Scheduler(app, lazy=True)
    scheduler.install_default_entries(scheduler.data)
    return scheduler.data.get(name)


def _definition(
    batch: DefinitionBatch, key: str, entry: ScheduleEntry, schedule: Bounded | None, *, expires_next: bool
) -> Definition:
    flags = int(batch.flags[0])
    return Definition(
        job_id=int(batch.ids[0]),
        flags=flags,
        key=key,
        entry=entry,
        schedule=schedule,
        offset_ms=int(batch.offset_ms[0]),
        misfire=misfire_of(flags),
        overlap=overlap_of(flags),
        expires_next=expires_next,
        effective_from_ms=int(batch.effective_from_ms[0]),
    )


def _schedule(batch: DefinitionBatch, crons: CronTable) -> Bounded | None:
    """Return the schedule of a batch of one."""
    kind = batch.kind[0]
    base: Any
    offset_ms = int(batch.offset_ms[0])
    if kind == Kind.INTERVAL:
        base = Interval(int(batch.interval_ms[0]) / 1000, offset_ms=offset_ms, anchor_ms=int(batch.anchor_ms[0]))
        offset_ms = 0
    elif kind == Kind.CRON:
        base = crons[int(batch.cron_index[0])]
    elif kind == Kind.ONCE:
        base = Once(int(batch.anchor_ms[0]))
    else:
        base = batch.polled[int(batch.ids[0])]
        if not isinstance(base, SolarSchedule):
            return None
    return Bounded(
        base,
        offset_ms,
        int(batch.start_ms[0]),
        int(batch.end_ms[0]),
        int(batch.incident_interval_ms[0]),
        int(batch.incident_until_ms[0]),
    )
