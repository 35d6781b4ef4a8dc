"""Construct and wire the objects of a beat. Nothing is started, connected or read here."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from celery.signals import after_task_publish, task_sent

from celery_wheelbeat.beat.assembly.fast_lane import assemble_fast
from celery_wheelbeat.beat.assembly.later_feed import later_feed
from celery_wheelbeat.beat.assembly.membership import DueRuns, SendGuard, assemble_member
from celery_wheelbeat.beat.assembly.sources import assemble_sources
from celery_wheelbeat.beat.beat import Beat
from celery_wheelbeat.beat.entry_changes import EntryChanges
from celery_wheelbeat.beat.schedule_view import MonitorEntries
from celery_wheelbeat.beat.startup import Naming
from celery_wheelbeat.beat.status_report import StatusReport
from celery_wheelbeat.beat.supervision import Supervision
from celery_wheelbeat.dispatch.backlog import Backlog
from celery_wheelbeat.dispatch.broker import driver_type, open_connection
from celery_wheelbeat.dispatch.celery_lane.lane import SUBMIT_MAX, CeleryLane
from celery_wheelbeat.dispatch.celery_lane.publisher import CeleryPublisher
from celery_wheelbeat.dispatch.celery_lane.run_sender import CeleryLaneCallbacks
from celery_wheelbeat.dispatch.dispatcher import Dispatcher
from celery_wheelbeat.dispatch.fast_lane.lane import FastLane
from celery_wheelbeat.dispatch.lane import Rendering
from celery_wheelbeat.dispatch.lane_report import LaneReport
from celery_wheelbeat.dispatch.messages.claim_headers import ClaimHeaders, visibility_timeout_s
from celery_wheelbeat.dispatch.messages.run_ids import RunIds
from celery_wheelbeat.dispatch.messages.subscriptions import unsubscribed
from celery_wheelbeat.dispatch.reports.lateness import Lateness
from celery_wheelbeat.dispatch.reports.send_log import SendLog
from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.engine.poll_lane import PolledJobs
from celery_wheelbeat.jobs.definitions import Misfire, misfire_of, overlap_of
from celery_wheelbeat.later.in_wheel import LaterRuns
from celery_wheelbeat.observe.liveness import Liveness
from celery_wheelbeat.runtime.clock import Clock, ClockGuard, SystemClock
from celery_wheelbeat.runtime.mailbox import Wake
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.sources.beat_schedule.celery_zones import NAMELESS, timezone_of
from celery_wheelbeat.sources.beat_schedule.entries import Entries
from celery_wheelbeat.sources.databases.open import database_of
from celery_wheelbeat.sources.namespaces import namespace_of
from celery_wheelbeat.worker.broker_dedup import name_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from celery_wheelbeat.engine.shards import JobView
    from celery_wheelbeat.schedules.kinds import Int64s
    from celery_wheelbeat.settings import Settings
    from celery_wheelbeat.sources.messages import SourceIO

logger = logging.getLogger("celery.beat")


@dataclass(frozen=True, slots=True)
class BeatEdges:
    """Replacements for the edges of a beat, for tests; None = the real one."""

    guard: ClockGuard | None = None
    wake: Wake | None = None
    sources: Callable[[SourceIO], SourceIO] | None = None
    """Wraps the real I/O."""
    dispatcher: Callable[[Engine, Backlog, Lateness], Dispatcher] | None = None


_REAL = BeatEdges()


def assemble(
    scheduler: Any, settings: Settings, clock: Clock | None = None, edges: BeatEdges = _REAL
) -> tuple[Beat, Supervision]:
    """Construct the beat of ``scheduler`` (a ``WheelScheduler``) and its supervision."""
    app, clock, wake, send_log = scheduler.app, clock or SystemClock(), edges.wake or Wake(), SendLog()
    guard = SendGuard(shares_work=bool(settings.rolls))
    crons, lateness = CronTable(), Lateness()
    engine = Engine(_engine_config(app, settings), crons, Ledger(), PolledJobs(clock.monotonic_s))
    monitor_entries = MonitorEntries(app, scheduler.Entry, engine)
    if edges.dispatcher is None:
        dispatcher = _dispatcher(
            scheduler, settings, clock, wake,
            engine=engine, monitor_entries=monitor_entries, log=(lateness, send_log), guard=guard,
        )  # fmt: skip
    else:
        dispatcher = edges.dispatcher(engine, _backlog(settings, engine), lateness)
    database = database_of(app, settings)
    sources = assemble_sources(scheduler, database, settings=settings, clock=clock, wake=wake, crons=crons, guard=guard)
    if edges.sources is not None:
        sources = edges.sources(sources)
    entries = EntryChanges(scheduler.schedule, Entries(_timezone(app), crons), monitor_entries)
    run_ids: dict[int, str] = {}
    feed = later_feed(app, database, settings, clock, wake)
    scheduler.schedule.monitors = monitor_entries
    beat = Beat(
        sources,
        engine,
        dispatcher,
        entries,
        listeners=(dispatcher, monitor_entries),
        naming=_naming(app, settings, entries, run_ids),
        later=LaterRuns(
            feed,
            DueRuns(dispatcher, engine.share.followed),
            engine.ledger,
            run_ids,
            room=lambda: settings.max_jobs - len(engine),
        ),
        clock=clock,
        guard=edges.guard or ClockGuard(),
        wake=wake,
        member=assemble_member(
            app,
            settings,
            guard,
            database,
            path=scheduler.schedule_filename or app.conf.beat_schedule_filename,
            clock=clock,
            wake=wake.ring,
            engine=engine,
            dispatcher=dispatcher,
        ),
    )
    liveness = _liveness(app, settings, dispatcher, sources)
    lane_report = _lane_report(dispatcher, engine)
    status = StatusReport(beat, settings, liveness=liveness, lateness=lateness, lane_report=lane_report)
    return beat, Supervision(
        beat,
        settings,
        liveness=liveness,
        status=status,
        send_log=send_log,
        lane_report=lane_report,
        beat_id=guard.beat_id,
    )


def _dispatcher(
    scheduler: Any,
    settings: Settings,
    clock: Clock,
    wake: Wake,
    *,
    engine: Engine,
    monitor_entries: MonitorEntries,
    log: tuple[Lateness, SendLog],
    guard: SendGuard,
) -> Dispatcher:
    lateness, send_log = log
    broker = driver_type(scheduler.app)
    options = {"mandatory": True} if broker == "amqp" and settings.amqp_mandatory else {}
    publisher = _celery_publisher(
        scheduler, settings, clock, wake, send_log=send_log, options=options, may_send=guard.question or (lambda: True)
    )
    if settings.broker_dedup:
        name_runs(broker)
    slow = CeleryLane(engine, _backlog(settings, engine), publisher, lateness)
    fast = assemble_fast(
        scheduler,
        settings,
        clock,
        wake,
        engine=engine,
        backlog=_backlog(settings, engine),
        lateness=lateness,
        monitor_entries=monitor_entries,
        slow=slow,
        options=options,
        send_log=send_log,
        guard=guard,
    )
    return Dispatcher([] if fast is None else [fast], slow)


def _lane_report(dispatcher: Dispatcher, engine: Engine) -> LaneReport | None:
    match dispatcher.lanes:
        case (FastLane() as fast, CeleryLane() as slow):
            return LaneReport(fast, slow, engine)
    return None


def _backlog(settings: Settings, engine: Engine) -> Backlog:
    return Backlog(engine.ledger, limit=settings.backlog_max, keep_all=partial(_keeps_all, engine))


def _liveness(app: Any, settings: Settings, dispatcher: Dispatcher, sources: SourceIO) -> Liveness:
    liveness = Liveness(settings.live_timeout)
    eager = bool(app.conf.task_always_eager)  # tasks then run in the lane's thread, without a time limit
    liveness.watch("publisher", lambda: dispatcher.health().stamp_s, patient=eager)
    liveness.watch("sources", sources.stamp_s)
    return liveness


def _naming(app: Any, settings: Settings, entries: EntryChanges, run_ids: Mapping[int, str]) -> Naming:
    def rendering_of(namespace: str) -> Rendering:
        claims = ClaimHeaders(namespace, int(settings.dedup_ttl), visibility_timeout_s(app))

        def headers_of(job: JobView, entry: Any) -> Mapping[str, Any]:
            overlap = overlap_of(job.flags).name.lower()
            return claims.of(entries.key_of(job.id), overlap, entry.schedule, entry.options.get("expires"))

        return Rendering(RunIds(namespace, run_ids), entries.key_of, entries.entry_for, headers_of)

    return Naming(bool(settings.namespace), partial(namespace_of, app, settings), rendering_of)


def _celery_publisher(
    scheduler: Any,
    settings: Settings,
    clock: Clock,
    wake: Wake,
    *,
    send_log: SendLog,
    options: Mapping[str, Any],
    may_send: Callable[[], bool],
) -> CeleryPublisher:
    app = scheduler.app

    def apply_entry(entry: Any, producer: Any) -> None:
        with unsubscribed(app):
            scheduler.apply_entry(entry, producer=producer)

    return CeleryPublisher(
        CeleryLaneCallbacks(
            apply_entry=apply_entry,
            open_connection=lambda: open_connection(app),
            make_producer=lambda connection: scheduler.Producer(connection, auto_declare=False),
            wake=wake.ring,
            clock=clock,
            quiet=send_log.of,
            options=options,
            may_send=may_send,
            may_batch=lambda: not _is_observed(app),
        ),
        window=min(settings.window, SUBMIT_MAX),
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
        logger.warning(
            "beat: Crontabs in the time zone %r do not make up for runs missed while no beat runs. %s",
            app.timezone,
            NAMELESS,
        )
    return name


def _is_observed(app: Any) -> bool:
    """Return whether a signal or event reports each publish; in a batch, its time would be wrong."""
    return bool(after_task_publish.receivers or task_sent.receivers or app.conf.task_send_sent_event)
