"""The tasks that monitors run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery import shared_task
from celery.utils.log import get_task_logger
from django.db import transaction
from django.utils import timezone

from django_wheelbeat.models import Monitor

from .alerts import note_change, send_alert, send_reminder  # noqa: F401 - Celery looks for tasks in this module
from .incidents import follow
from .models import Check, Site
from .probe import Probe, probe

if TYPE_CHECKING:
    from celery import Task

CHECK_RETENTION = timedelta(hours=6)
logger = get_task_logger(__name__)


@shared_task(bind=True)
def check_url(self: Task, url: str) -> dict[str, Any]:
    """Check ``url`` and store the result for the monitor that sent this run."""
    started = timezone.now()
    found = probe(url)
    headers = self.request.headers or {}
    monitor = Monitor.objects.filter(name=headers.get("periodic_task_name")).first()
    fire_ms = headers.get("wheelbeat_fire_ms")
    if monitor is not None and fire_ms is not None:
        record(monitor, datetime.fromtimestamp(fire_ms / 1000, UTC), started, found)
    return found._asdict()


def record(monitor: Monitor, fire_at: datetime, started: datetime, found: Probe) -> None:
    """Store one check, update the state of the site, and open or end its incident."""
    error = found.error[:200]
    with transaction.atomic():
        _, is_new = Check.objects.get_or_create(
            monitor=monitor,
            fire_at=fire_at,
            defaults={
                "late_ms": round((started - fire_at).total_seconds() * 1000),
                "up": found.up,
                "latency_ms": found.latency_ms,
                "error": error,
            },
        )
        if not is_new:
            return
        before = Site.objects.filter(monitor=monitor).first()
        changed = before is None or before.up != found.up
        failures = 0 if found.up else (before.failures if before else 0) + 1
        Site.objects.update_or_create(
            monitor=monitor,
            defaults={
                "up": found.up,
                "since": started if changed else before.since,
                "failures": failures,
                "checked_at": started,
                "latency_ms": found.latency_ms,
                "error": error,
            },
        )
        follow(monitor, failures, up=found.up)
        if changed and (before is not None or not found.up):
            note_change(monitor, up=found.up, error=error)
    if changed:
        logger.info("%s is %s: %s", monitor.name, "up" if found.up else "down", error or f"{found.latency_ms} ms")


@shared_task
def forget_old_checks() -> int:
    """Delete checks that are older than ``CHECK_RETENTION``."""
    deleted, _ = Check.objects.filter(fire_at__lt=timezone.now() - CHECK_RETENTION).delete()
    return deleted
