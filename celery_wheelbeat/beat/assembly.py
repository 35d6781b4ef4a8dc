"""Construct and wire the objects of a beat. Nothing is started, connected or read here."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from celery.signals import after_task_publish, task_sent

from celery_wheelbeat.beat.fast_assembly import assemble_fast
from celery_wheelbeat.beat.marks import Mark
from celery_wheelbeat.beat.schedule_view import MonitorEntries
from celery_wheelbeat.dispatch.backlog import Backlog
from celery_wheelbeat.dispatch.broker import driver_type, open_connection
from celery_wheelbeat.dispatch.celery_lane.lane import CeleryLane
from celery_wheelbeat.dispatch.celery_lane.publisher import CeleryPublisher
from celery_wheelbeat.dispatch.celery_lane.run_sender import LaneEdges
from celery_wheelbeat.dispatch.dispatcher import Dispatcher
from celery_wheelbeat.dispatch.lane_report import LaneReport
from celery_wheelbeat.dispatch.messages.subscriptions import unsubscribed
from celery_wheelbeat.dispatch.reports.lateness import Lateness
from celery_wheelbeat.dispatch.reports.send_log import SendLog
from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.engine.poll_lane import PollLane
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.compile_columns import Shapes
from celery_wheelbeat.jobs.definitions import Misfire, misfire_of
from celery_wheelbeat.jobs.rows import Limits
from celery_wheelbeat.observe.liveness import Liveness
from celery_wheelbeat.runtime.clock import Clock, ClockGuard, SystemClock
from celery_wheelbeat.runtime.wake import Wake
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.schedules.solar import SolarSchedule
from celery_wheelbeat.sources.beat_schedule.celery_zones import NAMELESS, timezone_of
from celery_wheelbeat.sources.beat_schedule.entries import Entries
from celery_wheelbeat.sources.changelog.reader import ChangeLogReader
from celery_wheelbeat.sources.changelog.translator import Translator
from celery_wheelbeat.sources.databases.open import database_of
from celery_wheelbeat.sources.files.file_io import FileIO
from celery_wheelbeat.sources.files.installation_file import InstallationFile
from celery_wheelbeat.sources.files.mark_file import MarkFile
from celery_wheelbeat.sources.namespaces import namespace_of
from celery_wheelbeat.worker.broker_dedup import name_runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from celery_wheelbeat.beat.schedule_view import ScheduleView
    from celery_wheelbeat.schedules.kinds import Int64s
    from celery_wheelbeat.settings import Settings
    from celery_wheelbeat.sources.messages import SourceIO

logger = logging.getLogger("celery.beat")

DESTINATION = "broker"


@dataclass(frozen=True, slots=True)
class Parts:
    """The collaborators of a beat. ``dispatch`` and ``desk`` have threads of their own."""

    app: Any
    settings: Settings
    clock: Clock
    guard: ClockGuard
    wake: Wake
    ledger: Ledger
    engine: Engine
    mark: Mark
    dispatch: Dispatcher
    desk: SourceIO
    entries: Entries
    monitor_entries: MonitorEntries
    view: ScheduleView
    lateness: Lateness
    liveness: Liveness
    lines: SendLog
    lane_report: LaneReport | None
    """None without a fast lane."""

    def namespace_of(self, installation: str | None) -> str:
        """Return the namespace of run ids: the setting, else the installation's UUID, else the app's name."""
        return namespace_of(self.app, self.settings, installation)


def assemble(scheduler: Any, settings: Settings, clock: Clock | None = None) -> Parts:
    """Construct the parts for ``scheduler`` (a ``WheelScheduler``)."""
    app, clock, wake, lines = scheduler.app, clock or SystemClock(), Wake(), SendLog()
    crons, ledger, lateness = CronTable(), Ledger(), Lateness()
    engine = Engine(_engine_config(app, settings), crons, ledger, PollLane(clock.monotonic_s))
    keep_all = partial(_keeps_all, engine)
    backlog = Backlog(ledger, limit=settings.backlog_max, keep_all=keep_all)
    broker = driver_type(app)
    options = {"mandatory": True} if broker == "amqp" and settings.amqp_mandatory else {}
    celery_lane = _celery_lane(scheduler, settings, clock, wake, lines=lines, options=options)
    if settings.broker_dedup:
        name_runs(broker)
    monitor_entries = MonitorEntries(app, scheduler.Entry, engine)
    slow = CeleryLane(engine, backlog, celery_lane, lateness)
    fast = assemble_fast(
        scheduler,
        settings,
        clock,
        wake,
        engine=engine,
        ledger=ledger,
        lateness=lateness,
        monitor_entries=monitor_entries,
        slow=slow,
        keep_all=keep_all,
        options=options,
        lines=lines,
    )
    dispatch = Dispatcher([] if fast is None else [fast], slow)
    entries = Entries(_timezone(app), crons)
    entries.broken = scheduler.schedule.broken
    desk = _desk(scheduler, settings=settings, clock=clock, wake=wake, crons=crons)
    liveness = Liveness(settings.live_timeout)
    eager = bool(app.conf.task_always_eager)  # tasks then run in the lane's thread, without a time limit
    liveness.watch("publisher", lambda: dispatch.health().stamp_s, patient=eager)
    liveness.watch("desk", desk.stamp_s)
    return Parts(
        app=app,
        settings=settings,
        clock=clock,
        guard=ClockGuard(),
        wake=wake,
        ledger=ledger,
        engine=engine,
        mark=Mark(),
        dispatch=dispatch,
        desk=desk,
        entries=entries,
        monitor_entries=monitor_entries,
        view=scheduler.schedule,
        lateness=lateness,
        liveness=liveness,
        lines=lines,
        lane_report=None if fast is None else LaneReport(fast, slow, engine),
    )


def _celery_lane(
    scheduler: Any, settings: Settings, clock: Clock, wake: Wake, *, lines: SendLog, options: Mapping[str, Any]
) -> CeleryPublisher:
    app = scheduler.app

    def apply_entry(entry: Any, producer: Any) -> None:
        with unsubscribed(app):
            scheduler.apply_entry(entry, producer=producer)

    return CeleryPublisher(
        LaneEdges(
            apply_entry=apply_entry,
            open_connection=lambda: open_connection(app),
            make_producer=lambda connection: scheduler.Producer(connection, auto_declare=False),
            wake=wake.ring,
            clock=clock,
            quiet=lines.of,
            options=options,
            may_batch=lambda: not _is_observed(app),
        ),
        window=settings.window,
    )


def _desk(scheduler: Any, *, settings: Settings, clock: Clock, wake: Wake, crons: CronTable) -> SourceIO:
    database = database_of(scheduler.app, settings)
    path = scheduler.schedule_filename or scheduler.app.conf.beat_schedule_filename
    if database is None:
        return FileIO(MarkFile(path), clock, wake.ring)
    compile_all = partial(
        compile_rows,
        crons=crons,
        cron_jitter_s=settings.cron_jitter,
        limits=Limits.of(settings),
        solar=SolarSchedule,
    )
    definitions = Translator(
        partial(compile_all, entry_names=scheduler.schedule.names),
        Shapes(
            compile_all,
            cron_jitter_s=settings.cron_jitter,
            max_payload_bytes=settings.max_payload_bytes,
            min_interval_ms=settings.min_interval_ms,
        ),
        taken_names=scheduler.schedule.names,
    )
    return ChangeLogReader(
        database,
        definitions,
        clock,
        wake.ring,
        namespace=settings.namespace,
        reconcile_period_s=settings.reconcile_period,
        memory=InstallationFile(path),
    )


def _engine_config(app: Any, settings: Settings) -> EngineConfig:
    deadline_s = app.conf.beat_cron_starting_deadline
    return EngineConfig(
        shards=settings.shards,
        tick_ms=settings.tick_ms,
        stall_limit_ms=settings.stall_limit_ms,
        backlog_max=settings.backlog_max,
        misfire_gap_ms=settings.misfire_gap_ms,
        lookback_ms=settings.restart_lookback_ms,
        starting_deadline_ms=None if deadline_s is None else round(deadline_s * 1000),
        max_jobs=settings.max_jobs,
    )


def _keeps_all(engine: Engine, ids: Int64s) -> NDArray[np.bool_]:
    views = engine.lookup(ids)
    return np.array([view is not None and misfire_of(view.flags) is Misfire.ALL for view in views], np.bool_)


def _timezone(app: Any) -> str | None:
    name = timezone_of(app)
    if name is None:
        logger.warning("beat: Crontabs in %r lose what they miss while no beat runs. %s", app.timezone, NAMELESS)
    return name


def _is_observed(app: Any) -> bool:
    """Return whether a signal or event reports each publish; in a batch, its time would be wrong."""
    return bool(after_task_publish.receivers or task_sent.receivers or app.conf.task_send_sent_event)
