"""Construct and wire the objects of the fast lane; None if transport or settings leave all jobs to the celery lane."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery.schedules import schedule
from kombu.utils.json import loads

from celery_wheelbeat.dispatch.broker import driver_type, open_connection
from celery_wheelbeat.dispatch.fast_lane.amqp_wire import AmqpWire
from celery_wheelbeat.dispatch.fast_lane.envelope_registry import EnvelopeRegistry
from celery_wheelbeat.dispatch.fast_lane.lane import BLOCK_RUNS, FastLane
from celery_wheelbeat.dispatch.fast_lane.lane_choice import FastLaneCallbacks, LaneChoice
from celery_wheelbeat.dispatch.fast_lane.places.placing import Placing
from celery_wheelbeat.dispatch.fast_lane.places.queue_registry import QueueRegistry
from celery_wheelbeat.dispatch.fast_lane.publisher import FastPublisher
from celery_wheelbeat.dispatch.fast_lane.redis_wire import RedisWire
from celery_wheelbeat.dispatch.fast_lane.rendering import JobMessages
from celery_wheelbeat.dispatch.messages.claim_headers import ClaimHeaders, visibility_timeout_s
from celery_wheelbeat.dispatch.messages.envelope_maker import EnvelopeMaker
from celery_wheelbeat.dispatch.messages.hooks import Guard, all_hooks, settings_token
from celery_wheelbeat.dispatch.messages.patterns import with_own
from celery_wheelbeat.dispatch.messages.plain_queues import plain_queues
from celery_wheelbeat.dispatch.messages.tracing import check_ins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_wheelbeat.beat.assembly.membership import SendGuard
    from celery_wheelbeat.beat.schedule_view import MonitorEntries
    from celery_wheelbeat.dispatch.backlog import Backlog
    from celery_wheelbeat.dispatch.celery_lane.lane import CeleryLane
    from celery_wheelbeat.dispatch.fast_lane.batches import Wire
    from celery_wheelbeat.dispatch.fast_lane.envelope_registry import HeadersOf
    from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.dispatch.reports.lateness import Lateness
    from celery_wheelbeat.dispatch.reports.send_log import SendLog
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.jobs.definitions import Overlap
    from celery_wheelbeat.runtime.clock import Clock
    from celery_wheelbeat.runtime.mailbox import Wake
    from celery_wheelbeat.settings import Settings

logger = logging.getLogger("celery.beat")

_EVERY = schedule(timedelta(seconds=30))
"""Placeholder schedule while a message is recorded: it adds nothing to the message, and Sentry sends no check-in."""
_loads: Callable[[str], Any] = loads


def assemble_fast(
    scheduler: Any,
    settings: Settings,
    clock: Clock,
    wake: Wake,
    *,
    engine: Engine,
    backlog: Backlog,
    lateness: Lateness,
    monitor_entries: MonitorEntries,
    slow: CeleryLane,
    options: Mapping[str, Any],
    send_log: SendLog,
    guard: SendGuard,
) -> FastLane | None:
    """Construct the fast lane beside ``slow``. ``options``: send options that the celery lane adds to every message."""
    app = scheduler.app
    kind = driver_type(app)
    if settings.dispatch == "celery" or kind not in ("redis", "amqp") or app.conf.task_always_eager:
        return None
    if settings.dispatch == "fast":
        for hook in all_hooks(app, scheduler):
            logger.warning("beat: wheelbeat_dispatch is 'fast': the fast lane ignores this hook: %s", hook.what)

    def namespace() -> str:
        return slow.rendering.run_ids.namespace if slow.rendering is not None else ""

    def make_maker(recorder: Any) -> EnvelopeMaker:
        bypass = settings.dispatch == "fast"
        make_entry = _entry_maker(scheduler)
        return EnvelopeMaker(scheduler, recorder, make_entry, options, quiet=send_log.none, bypass_hooks=bypass)

    destination = slow.publisher.destination
    wire = _wire(scheduler, kind, make_maker, clock, namespace=namespace, destination=destination, guard=guard)
    forms = EnvelopeRegistry(engine.routes, _claim_headers(app, settings, namespace), is_plain=plain_queues(app))
    engine.routes.freed = forms.forget_routes
    messages = JobMessages(engine, limit_bytes=settings.envelope_bytes)
    block_runs = min(BLOCK_RUNS, settings.window)
    window = settings.window // block_runs
    publisher = FastPublisher("fast-lane", wire, clock, wake.ring, window=window, may_send=guard.question)
    queues = QueueRegistry(publisher.declare, lasting=kind == "redis" or settings.amqp_mandatory)
    return FastLane(
        engine,
        backlog,
        publisher,
        lateness,
        next_backlog=slow.backlog,
        quarantined=slow.quarantined,
        forms=forms,
        messages=messages,
        choice=LaneChoice(
            forms,
            messages,
            Placing(engine.routes, queues),
            slow.quarantined,
            handed_out=monitor_entries.handed_out,
            check_ins=lambda: None if settings.dispatch == "fast" else check_ins(),
        ),
        queues=queues,
        callbacks=FastLaneCallbacks(
            app.now,
            Guard(app, scheduler),
            lambda: settings_token(app),
            send_log.admit,
        ),
        block_runs=block_runs,
    )


def _wire(
    scheduler: Any,
    kind: str,
    make_maker: Callable[[Any], EnvelopeMaker],
    clock: Clock,
    *,
    namespace: Callable[[], str],
    destination: str,
    guard: SendGuard,
) -> Wire:
    app = scheduler.app

    def connection() -> Any:
        return open_connection(app)

    def producer(channel: Any) -> Any:
        return scheduler.Producer(channel, auto_declare=False)

    if kind == "redis":
        return RedisWire(
            connection, producer, make_maker, clock,
            namespace=namespace, destination=destination, beat_id=guard.beat_id,
        )  # fmt: skip
    return AmqpWire(connection, producer, make_maker, clock, heartbeat_s=float(app.conf.broker_heartbeat or 0))


def _entry_maker(scheduler: Any) -> Callable[[Form, str, Arguments], Any]:
    def make_entry(form: Form, name: str, arguments: Arguments) -> Any:
        return scheduler.Entry(
            name=name,
            task=form.task,
            args=list(arguments.args),
            kwargs=dict(arguments.kwargs),
            options=with_own(_loads(form.route.options), arguments.own),
            schedule=_EVERY,
            app=scheduler.app,
        )

    return make_entry


def _claim_headers(app: Any, settings: Settings, namespace: Callable[[], str]) -> HeadersOf:
    """Return the function that makes the claim headers of monitors, without the job key."""
    remembered_s, timeout_s = int(settings.dedup_ttl), visibility_timeout_s(app)

    def headers_of(interval_ms: int | None, expires: Any, overlap: Overlap) -> Mapping[str, Any]:
        every = None if interval_ms is None else schedule(timedelta(milliseconds=interval_ms))
        claims = ClaimHeaders(namespace(), remembered_s, timeout_s)
        return claims.of("", overlap.name.lower(), every, expires)

    return headers_of
