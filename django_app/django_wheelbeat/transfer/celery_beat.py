"""Periodic tasks of django-celery-beat as records. Reads its tables and never writes them.

Preserved: name; task, arguments, headers and route; the rule that both day fields must match; the second at which an
interval fires, counted from its last run, or from its last change if it has never run; ``expires`` as the end of the
schedule; one-offs, disabled if they have run; ``enabled``. Imported monitors have no jitter and make up once for missed
runs, as django-celery-beat does.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery import current_app
from celery.schedules import ParseException, crontab
from django.conf import settings
from django.utils import timezone

from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.jobs.validation import cron_of
from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.cron_fields import FIELDS, render
from celery_wheelbeat.schedules.durations import format_duration
from celery_wheelbeat.sources.beat_schedule.celery_zones import NAMELESS, timezone_of
from django_wheelbeat.database.chunks import chunks_of_ids
from django_wheelbeat.models import Monitor
from django_wheelbeat.transfer.celery_beat_tables import PeriodicTask
from django_wheelbeat.transfer.imports import problem_of
from django_wheelbeat.transfer.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from django_wheelbeat.transfer.imports import Given

OWN_ENTRY = "celery.backend_cleanup"
"""Celery's own entry, which django-celery-beat stores in its table; wheelbeat has it without a monitor."""
KINDS = ("interval", "crontab", "solar", "clocked")
READ_ROWS = 1_000
CRON_MAX = Monitor._meta.get_field("cron").max_length


_NO_SCHEDULE = dict.fromkeys(("interval", "cron", "once_at", "solar_event", "solar_latitude", "solar_longitude"), None)


def periodic_tasks(
    using: str, entry_names: Collection[str], note: Callable[[str, str], None], now: datetime
) -> Iterator[Given]:
    """Yield primary key and record of every periodic task; calls ``note(name, text)`` for each remark.

    Rows with a name in ``entry_names``, the names of ``beat_schedule``, are noted instead of imported: the entry in
    code keeps running.
    """
    tasks = PeriodicTask.objects.using(using).exclude(name=OWN_ENTRY)
    for keys in chunks_of_ids(tasks, READ_ROWS):
        for task in tasks.filter(pk__in=keys).select_related(*KINDS).order_by("pk"):
            if task.name in entry_names:
                note(task.name, "is an entry of beat_schedule, so it is not imported: the entry keeps running")
                continue
            try:
                yield task.pk, record_of(task, note, now)
            except Exception as error:  # rows are not validated and may hold anything
                problem = problem_of(error)
                yield task.pk, InvalidMonitor(problem.field, f"{task.name}: {problem.reason}")


def source(using: str, entry_names: Collection[str]) -> Source:
    """Return the ``Source`` for these periodic tasks."""

    def present(names: AbstractSet[str]) -> set[str]:
        found = PeriodicTask.objects.using(using).filter(name__in=names).values_list("name", flat=True)
        return set(found) - set(entry_names) - {OWN_ENTRY}

    return Source(f"django-celery-beat {using}", present)


def record_of(task: Any, note: Callable[[str, str], None], now: datetime) -> dict[str, Any]:
    """Return the record of one periodic task; raises ``InvalidMonitor`` if django-celery-beat cannot run it either."""
    kinds = [kind for kind in KINDS if getattr(task, kind) is not None]
    if len(kinds) != 1:
        raise InvalidMonitor("schedule", f"expected one schedule, got {' and '.join(kinds) or 'none'}")
    has_run = task.one_off and task.total_run_count > 0
    record = {
        "name": task.name,
        "task": task.task,
        "args": task.args,
        "kwargs": task.kwargs,
        "headers": task.headers,
        "queue": task.queue,
        "exchange": task.exchange,
        "routing_key": task.routing_key,
        "priority": task.priority,
        "expires": task.expire_seconds,
        "description": task.description,
        "one_off": task.one_off,
        "enabled": task.enabled and not has_run,
        "start_at": _text(task.start_time),
        "end_at": _text(task.expires),
        "jitter_s": 0,
        "misfire": "latest",
        "day_rule": "and",
        **_NO_SCHEDULE,
        **_SCHEDULES[kinds[0]](task, note),
    }
    if kinds[0] == "solar":
        record["jitter_s"] = None
    if has_run and task.enabled:
        note(task.name, "is a one-off that has run: it is imported disabled, as django-celery-beat would disable it")
    if task.expires is not None:
        note(task.name, "ends at its expires; in django-celery-beat its last messages also expired at that time")
    if kinds[0] == "clocked":
        _refuse_or_note_clocked(task, record, note, now)
    return record


def _refuse_or_note_clocked(
    task: Any, record: Mapping[str, Any], note: Callable[[str, str], None], now: datetime
) -> None:
    clocked_time = _aware(task.clocked.clocked_time)
    if task.expires is not None and _aware(task.expires) <= clocked_time:
        raise InvalidMonitor("expires", "is before its clocked time: it would never run")
    if record["enabled"] and not task.last_run_at and clocked_time <= now:
        note(task.name, "its clocked time has passed without a run: it will not run unless you run it by hand")


def _interval(task: Any, note: Callable[[str, str], None]) -> dict[str, Any]:
    every = timedelta(**{task.interval.period: task.interval.every})
    every_ms = max(1, round(every / timedelta(milliseconds=1)))
    if timedelta(milliseconds=every_ms) != every:
        note(task.name, f"its interval of {every.total_seconds():g} s is rounded to {format_duration(every_ms)}")
    counted_from = task.last_run_at
    if counted_from is None and task.start_time is None and task.date_changed is not None:
        counted_from = task.date_changed
        note(task.name, "has never run: its interval counts from its last change, as in django-celery-beat")
    if counted_from is None:
        return {"interval": format_duration(every_ms)}
    begin = _aware(counted_from) + timedelta(milliseconds=every_ms)
    begin = begin.replace(microsecond=begin.microsecond // 1000 * 1000)
    if task.start_time is not None and _aware(task.start_time) > begin:
        begin = _aware(task.start_time)
    return {"interval": format_duration(every_ms), "start_at": _text(begin)}


def _crontab(task: Any, note: Callable[[str, str], None]) -> dict[str, Any]:
    cron = task.crontab
    fields = (cron.minute, cron.hour, cron.day_of_month, cron.month_of_year, cron.day_of_week)
    text, zone = cron_text(fields), str(cron.timezone)
    if not getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True):
        given, app_zone = zone, timezone_of(current_app)
        if app_zone is None:
            raise InvalidMonitor("timezone", NAMELESS)
        zone = app_zone
        if given != zone:
            note(task.name, f"gets the zone {zone}: with DJANGO_CELERY_BEAT_TZ_AWARE = False its own zone is not used")
    if len(text) > CRON_MAX or not isinstance(cron_of(text, zone, "and"), Cron):
        text = _rewritten(fields) or text
        note(task.name, f"its cron expression is rewritten as “{text}”")
    return {"cron": text, "timezone": zone}


def _rewritten(fields: Sequence[str]) -> str | None:
    """Return the expression with the values that Celery parses from it, as ranges; None if it cannot parse it.

    A field that starts with a star still does: the star means that the job follows the wall clock.
    """
    minute, hour, day_of_month, month_of_year, day_of_week = fields
    try:
        schedule = crontab(minute, hour, day_of_week, day_of_month, month_of_year)
    except (ParseException, ValueError, TypeError):
        return None
    values = (schedule.minute, schedule.hour, schedule.day_of_month, schedule.month_of_year, schedule.day_of_week)
    return " ".join(
        render(field, found, star=field.low in found and written.lstrip().startswith("*"))
        for field, found, written in zip(FIELDS, values, fields, strict=True)
    )


def cron_text(fields: Iterable[object]) -> str:
    """Return the expression of five fields in crontab(5) order; blanks within a field are removed."""
    return " ".join("".join(str(field).split()) for field in fields)


def _solar(task: Any, _note: Callable[[str, str], None]) -> dict[str, Any]:
    solar = task.solar
    return {
        "solar_event": solar.event,
        "solar_latitude": float(solar.latitude),
        "solar_longitude": float(solar.longitude),
    }


def _clocked(task: Any, _note: Callable[[str, str], None]) -> dict[str, Any]:
    return {"once_at": _text(task.clocked.clocked_time), "start_at": None, "one_off": False}


def _text(instant: Any) -> str | None:
    return None if instant is None else _aware(instant).astimezone(UTC).isoformat()


def _aware(instant: datetime) -> datetime:
    """Return the instant with a zone; naive values (``USE_TZ = False``) are UTC, as in django-celery-beat."""
    return instant.replace(tzinfo=UTC) if timezone.is_naive(instant) else instant


_SCHEDULES: dict[str, Callable[[Any, Callable[[str, str], None]], dict[str, Any]]] = {
    "interval": _interval,
    "crontab": _crontab,
    "solar": _solar,
    "clocked": _clocked,
}
