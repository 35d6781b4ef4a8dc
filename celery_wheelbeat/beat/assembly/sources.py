"""Construct the I/O of definitions and marks: a database with its change log, or a file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.utils.json import loads

from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.compile_columns import Shapes
from celery_wheelbeat.jobs.rows import Limits
from celery_wheelbeat.schedules.solar import SolarSchedule
from celery_wheelbeat.sources.changelog.reader import ChangeLogReader
from celery_wheelbeat.sources.changelog.translator import Translator
from celery_wheelbeat.sources.files.file_io import FileIO
from celery_wheelbeat.sources.files.installation_file import InstallationFile
from celery_wheelbeat.sources.files.mark_file import MarkFile

if TYPE_CHECKING:
    from celery_wheelbeat.beat.assembly.membership import SendGuard
    from celery_wheelbeat.runtime.clock import Clock
    from celery_wheelbeat.runtime.mailbox import Wake
    from celery_wheelbeat.schedules.cron import CronTable
    from celery_wheelbeat.settings import Settings
    from celery_wheelbeat.sources import MonitorDatabase
    from celery_wheelbeat.sources.messages import SourceIO


def assemble_sources(
    scheduler: Any,
    database: MonitorDatabase | None,
    *,
    settings: Settings,
    clock: Clock,
    wake: Wake,
    crons: CronTable,
    guard: SendGuard,
) -> SourceIO:
    """Construct the source of a beat; without a database it only keeps the mark."""
    path = scheduler.schedule_filename or scheduler.app.conf.beat_schedule_filename
    if database is None:
        return FileIO(MarkFile(path), clock, wake.ring)
    compile_all = partial(
        compile_rows,
        crons=crons,
        cron_jitter_s=settings.cron_jitter,
        limits=Limits.of(settings, loads),
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
        beat_id=guard.beat_id,
        shares_work=guard.shares_work,
    )
