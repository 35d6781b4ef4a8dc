"""One definition by its name, from the database or from ``beat_schedule``: for commands, not for the beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.beat import ScheduleEntry

from celery_wheelbeat.cron import CronTable
from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.jobs import DefinitionBatch, Kind, RouteTable
from celery_wheelbeat.monitors import Limits, compile_rows
from celery_wheelbeat.schedules import Bounded, Interval, Once
from celery_wheelbeat.sources.databases import database_of
from celery_wheelbeat.sources.entries import Entries, timezone_of

if TYPE_CHECKING:
    from celery_wheelbeat.settings import Settings


def find(app: Any, settings: Settings, name: str) -> Bounded:
    """Return the schedule of the entry or monitor called ``name``; raises ``InvalidMonitor`` with the reason."""
    crons = CronTable()
    given = app.conf.beat_schedule.get(name)
    if given is not None:
        return _schedule(_entry_batch(app, name, given, crons), crons)
    database = database_of(app, settings)
    if database is None:
        raise InvalidMonitor("name", f"no entry of beat_schedule is called {name!r}, and this app has no monitors")
    try:
        job_id = database.store.id_of(name)
        rows = [] if job_id is None else database.source.fetch([job_id])
    finally:
        database.source.close()
    if not rows:
        raise InvalidMonitor("name", f"neither a monitor nor an entry of beat_schedule is called {name!r}")
    compiled = compile_rows(
        rows, crons=crons, routes=RouteTable(), cron_jitter_s=settings.cron_jitter, limits=Limits.of(settings)
    )
    for problem in compiled.refused.values():
        raise problem
    return _schedule(compiled.batch, crons)


def _entry_batch(app: Any, name: str, given: Any, crons: CronTable) -> DefinitionBatch:
    entries = Entries(timezone_of(app), crons, RouteTable())
    entry = ScheduleEntry(**dict(given, name=name, app=app))
    changes = entries.changes({name: entry}, 0)
    for problem in entries.refused.values():
        raise problem
    return changes.upserts


def _schedule(batch: DefinitionBatch, crons: CronTable) -> Bounded:
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
        raise InvalidMonitor("schedule", "is asked at run time: its fire times are not known in advance")
    return Bounded(
        base,
        offset_ms,
        int(batch.start_ms[0]),
        int(batch.end_ms[0]),
        int(batch.incident_interval_ms[0]),
        int(batch.incident_until_ms[0]),
    )
