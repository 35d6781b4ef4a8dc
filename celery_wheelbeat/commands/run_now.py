"""Run now: one message of a job, sent by the requesting process (command line, web, code), not by a beat.

A request is a UUID of version 7 (RFC 9562). Its timestamp is the fire time, so run id and fire time follow from the
request, and workers treat a request sent twice (a double click) as one run. No beat's ledger counts it, and it must
never change the schedule of its job.
"""

from __future__ import annotations

import logging
import secrets
import uuid
from typing import TYPE_CHECKING, Any

from celery.beat import Scheduler, SchedulingError

from celery_wheelbeat.dispatch import Run
from celery_wheelbeat.dispatch.broker import driver_type
from celery_wheelbeat.dispatch.messages.attempt import Attempt
from celery_wheelbeat.dispatch.messages.claim_headers import ClaimHeaders, visibility_timeout_s
from celery_wheelbeat.errors import InvalidRequest, SendFailed
from celery_wheelbeat.jobs.identity import run_id
from celery_wheelbeat.schedules.fire_times import instant
from celery_wheelbeat.worker.broker_dedup import name_runs

if TYPE_CHECKING:
    from celery_wheelbeat.settings import Settings
    from celery_wheelbeat.sources.lookup import Definition

logger = logging.getLogger(__name__)

REQUEST_MAX_AGE_MS = 3_600_000
"""Maximum age of a request: workers may have forgotten older ones, so a form opened earlier needs a new request."""
_CLOCKS_APART_MS = 60_000
_RANDOM_BITS = 62


def new_request(now_ms: int) -> uuid.UUID:
    """Return a request made at ``now_ms``."""
    high, low = secrets.randbits(12), secrets.randbits(_RANDOM_BITS)
    return uuid.UUID(int=now_ms << 80 | 7 << 76 | high << 64 | 0b10 << _RANDOM_BITS | low)


def read_request(text: str, now_ms: int) -> uuid.UUID:
    """Read a request that came back from a form or a command line.

    Raises ``InvalidRequest`` for anything but a UUID of version 7 that was made within the last hour.
    """
    try:
        request = uuid.UUID(text)
    except ValueError:
        raise InvalidRequest(f"request {text!r:.80}: expected a UUID of version 7") from None
    if request.version != 7:
        raise InvalidRequest(f"request {request}: a UUID of version {request.version}, expected version 7")
    age_ms = now_ms - fire_ms_of(request)
    if not -_CLOCKS_APART_MS <= age_ms <= REQUEST_MAX_AGE_MS:
        raise InvalidRequest(
            f"request {request} was made {age_ms / 60_000:.0f} minutes ago, expected at most an hour: nothing was sent"
        )
    return request


def fire_ms_of(request: uuid.UUID) -> int:
    """Return the instant of a request: the fire time of its run."""
    return request.int >> 80


def send_now(
    app: Any,
    settings: Settings,
    definition: Definition,
    *,
    namespace: str,
    request: uuid.UUID,
    producer: Any = None,
) -> str:
    """Send one run of ``definition`` with all of its options and headers; returns the run id.

    Uses Celery's ``apply_async`` with its retries. The job's state does not matter: paused, finished and ended jobs run
    as well. An ``expires`` of ``next`` is the first fire time after the request. Raises ``SendFailed``, and
    ``InvalidSetting`` if the broker's transport cannot be loaded.
    """
    fire_ms = fire_ms_of(request)
    entry, key = definition.entry, definition.key
    claims = ClaimHeaders(namespace, int(settings.dedup_ttl), visibility_timeout_s(app))
    headers = claims.of(key, definition.overlap.name.lower(), entry.schedule, entry.options.get("expires"))
    suffix = f"!{request}"
    sent_as = run_id(key, fire_ms, namespace, suffix)
    run = Run(definition.job_id, key, entry.name, fire_ms, sent_as, entry, 0, headers, namespace, suffix)
    stamped = Attempt(run).stamp(entry)
    if "retry" not in entry.options:
        del stamped.options["retry"]  # no lane retries this run, so Celery's own retries apply
    if definition.expires_next and definition.schedule is not None:
        next_ms = definition.schedule.next_fire(fire_ms)
        if next_ms is not None:
            stamped.options.setdefault("expires", instant(next_ms))
    if settings.broker_dedup:
        name_runs(driver_type(app))
    try:
        Scheduler(app, lazy=True).apply_async(stamped, producer=producer, advance=False)
    except SchedulingError as error:
        raise SendFailed(str(error)) from error
    logger.info("wheelbeat: %s (%s) was sent by hand as %s", entry.name, entry.task, sent_as)
    return sent_as
