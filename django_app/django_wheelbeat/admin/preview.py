"""The preview of a monitor: its schedule in words and its next fire times.

Exact: uses the schedule object that the engine builds from the row. Never raises for a row that cannot run; the
preview contains its problems. Bounded: ``FIRES`` fire times, each in bounded steps.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils.translation import gettext as _
from kombu.utils.json import loads

from celery_wheelbeat.jobs.compile import schedule_of
from celery_wheelbeat.jobs.rows import Limits
from celery_wheelbeat.jobs.validation import check, cron_of, kinds_of
from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.durations import format_duration
from celery_wheelbeat.schedules.fire_times import fires, last_fire
from celery_wheelbeat.schedules.intervals import Bounded
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS
from celery_wheelbeat.schedules.solar import SolarSchedule
from django_wheelbeat.admin.known_tasks import registered_tasks
from django_wheelbeat.admin.local_times import site_zone
from django_wheelbeat.admin.schedule_text import schedule_in_words
from django_wheelbeat.monitors.row_errors import computed, problem_of
from django_wheelbeat.monitors.rows import UNSAVED_ID
from django_wheelbeat.monitors.settings import beat_settings
from django_wheelbeat.monitors.times import in_zone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_wheelbeat.jobs.rows import MonitorRow
    from celery_wheelbeat.settings import Settings
    from django_wheelbeat.active_periods import ActivePeriod

FIRES = 10
_FAST_MS = 1_000

SCHEDULE_FIELDS = (
    "interval_ms", "cron", "timezone", "day_rule", "once_at", "solar_event", "solar_latitude", "solar_longitude",
    "jitter_s", "start_at", "end_at", "incident_interval_ms", "incident_until",
)  # fmt: skip
"""Columns that determine the fire times."""

PREVIEW_FIELDS = ("task", *SCHEDULE_FIELDS)
"""Form fields of the preview; the task only for the note that it is not registered here."""

_REQUIRED_ANYWAY = ("name", "task")
"""Columns that are empty in a new form; the form reports them when it is submitted."""


class Fire(NamedTuple):
    """One fire time as text."""

    fire_ms: int
    in_zone: str
    utc: str
    on_site: str
    """In the zone in which Django shows instants; a script replaces it by the browser's zone."""


class Preview(NamedTuple):
    """Content of the preview panel."""

    words: str
    zone: str
    fires: list[Fire]
    notes: list[str]
    """Notes: second of the minute, skipped local times, resulting days."""
    problems: list[str]
    """Why the monitor cannot run; fire times are shown anyway if the schedule is valid."""

    def as_json(self) -> dict[str, Any]:
        """Return the document for the form's script."""
        return self._asdict() | {"fires": [fire._asdict() for fire in self.fires]}


def preview_of(row: MonitorRow, now_ms: int) -> Preview:
    """Return the preview of ``row`` from ``now_ms`` on, regardless of whether it is enabled."""
    if not kinds_of(row):
        return Preview("", row.timezone, [], [_("Enter a schedule to see its next runs.")], [])
    settings = beat_settings()
    found = [
        problem for problem in check(row, limits=Limits.of(settings, loads)) if problem.field not in _REQUIRED_ANYWAY
    ]
    problems = [f"{_in_words(problem.field)}: {problem.reason}" for problem in found]
    times: list[int] = []
    notes: list[str] = []
    try:
        if not any(problem.field in SCHEDULE_FIELDS for problem in found):
            times = list(islice(_fire_times(row, now_ms, settings), FIRES))
        if times or not problems:
            notes = list(_notes(row, times, now_ms, settings))
    except Exception as error:
        problems.append(problem_of(row, error).reason)
    shown = [Fire(ms, in_zone(ms, row.timezone), in_zone(ms, "UTC"), in_zone(ms, site_zone())) for ms in times]
    return Preview(schedule_in_words(row), row.timezone, shown, notes, problems)


def _in_words(column: str) -> str:
    return column.removesuffix("_ms").replace("_", " ")


def next_fire_ms(row: MonitorRow, now_ms: int, settings: Settings) -> int | None:
    """Return the next fire time of a row in ms; None if it does not fire, for any reason."""
    if not row.enabled or row.finished_at_ms is not None or check(row, limits=Limits.of(settings, loads)):
        return None
    return computed(row, lambda: next(_fire_times(row, now_ms, settings), None), None)


def last_fire_ms(row: MonitorRow, periods: Iterable[ActivePeriod], settings: Settings) -> int | None:
    """Return the last fire time in ``periods`` (newest first) in ms; None if none, or the row is finished."""
    if row.finished_at_ms is not None or check(row, limits=Limits.of(settings, loads)):
        return None
    return computed(row, lambda: _last_fire_in(_schedule_of(row, settings), periods), None)


def _last_fire_in(schedule: Bounded, periods: Iterable[ActivePeriod]) -> int | None:
    found = (last_fire(schedule, period.end_ms, period.begin_ms) for period in periods)
    return next((fire_ms for fire_ms in found if fire_ms is not None), None)


def _fire_times(row: MonitorRow, now_ms: int, settings: Settings) -> Iterator[int]:
    if row.id == UNSAVED_ID:
        row = row._replace(jitter_s=0)  # the jitter offset depends on the id, which is not assigned yet
    return fires(_schedule_of(row, settings), now_ms)


def _schedule_of(row: MonitorRow, settings: Settings) -> Bounded:
    return schedule_of(row, cron_jitter_s=settings.cron_jitter) or _solar_schedule(row)


def _solar_schedule(row: MonitorRow) -> Bounded:
    """Return the schedule of a valid solar row; raises ``InvalidSchedule`` if ephem is not installed."""
    events = SolarSchedule(row.solar_event or "", float(row.solar_latitude or 0), float(row.solar_longitude or 0))
    return Bounded(
        events,
        start_ms=ALWAYS_MS if row.start_at_ms is None else row.start_at_ms,
        end_ms=NEVER_MS if row.end_at_ms is None else row.end_at_ms,
    )


def _notes(row: MonitorRow, times: list[int], now_ms: int, settings: Settings) -> Iterator[str]:
    yield from _state_notes(row, now_ms)
    if not times and _is_late(row):
        yield _("Its time has passed: it runs as soon as a beat reads it.")
    elif not times:
        yield _("It never runs again.")
    elif len(times) < FIRES:
        yield _("There are no further runs.")
    yield from _landing_notes(row, times, settings)
    if len(times) > 1 and times[1] - times[0] < _FAST_MS:
        yield _("An interval below one second: %(count)s messages a day.") % {
            "count": f"{86_400_000 // (times[1] - times[0]):,}"
        }
    if row.cron:
        cron = cron_of(row.cron, row.timezone, row.day_rule)
        yield from cron.warnings(now_ms) if isinstance(cron, Cron) else ()
    known = registered_tasks()
    if row.task and known and row.task not in known:
        yield _("No task “%(task)s” is registered in this process; workers may know it.") % {"task": row.task}


def _state_notes(row: MonitorRow, now_ms: int) -> Iterator[str]:
    if not row.enabled:
        yield _("It is disabled: nothing is sent until it is enabled.")
    if row.finished_at_ms is not None:
        yield _("It is finished: its only run was confirmed.")
    if row.incident_interval_ms and row.incident_until_ms is not None and row.incident_until_ms > now_ms:
        yield _("Incident: every %(span)s until %(end)s, then back to its schedule.") % {
            "span": format_duration(row.incident_interval_ms),
            "end": in_zone(row.incident_until_ms, row.timezone),
        }


def _is_late(row: MonitorRow) -> bool:
    """Whether a one-time monitor whose instant has passed will still run, late."""
    return row.once_at_ms is not None and row.finished_at_ms is None and row.misfire != "skip"


def _landing_notes(row: MonitorRow, times: list[int], settings: Settings) -> Iterator[str]:
    spread = row.jitter_s != 0 and (settings.cron_jitter if row.cron else row.interval_ms and row.start_at_ms is None)
    if row.id == UNSAVED_ID and (row.jitter_s or (row.jitter_s is None and spread)):
        yield _(
            "Shown without its jitter: a fixed number of seconds, derived from the id that it gets when it is saved."
        )
        return
    seconds = {ms // 1000 % 60 for ms in times}
    if len(seconds) == 1:
        yield _("Runs at second :%(second)02d.") % {"second": seconds.pop()}
