"""Validates one monitor: finds every reason why its row cannot run exactly as written.

The admin form, the API and the change-log reader call the same ``check``, so the engine can run every row that a form
accepts. ``check`` must never raise, because rows can also be written with SQL. An unforeseen exception becomes a
problem of its row.
"""

from __future__ import annotations

import logging
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, get_args, get_type_hints

from celery_wheelbeat.errors import InvalidMonitor, InvalidSchedule
from celery_wheelbeat.jobs import json_fields as json_texts
from celery_wheelbeat.jobs import names, send_options
from celery_wheelbeat.jobs.definitions import Misfire, Overlap
from celery_wheelbeat.jobs.identity import LATER_IDS_FROM
from celery_wheelbeat.jobs.names import matches
from celery_wheelbeat.jobs.rows import Limits, MonitorRow
from celery_wheelbeat.jobs.send_options import sent_besides
from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.durations import format_duration
from celery_wheelbeat.schedules.intervals import INTERVAL_MAX_MS
from celery_wheelbeat.schedules.zones import zone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_wheelbeat.jobs.json_fields import Decoder
    from celery_wheelbeat.jobs.send_options import SendOptions

logger = logging.getLogger(__name__)

MAX_TEXT: Final = 200
"""Greatest length of a name and of a task, in characters."""
MAX_JITTER_S: Final = 86_400
"""Widest jitter of a cron or once monitor; for interval monitors it is the interval."""
FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
"""Range of Python's ``datetime``: years 1 to 9999."""

MISFIRES: Final = {"auto": Misfire.AUTO, "skip": Misfire.SKIP, "latest": Misfire.LATEST, "all": Misfire.ALL}
OVERLAPS: Final = {"allow": Overlap.ALLOW, "skip": Overlap.SKIP, "queue_one": Overlap.QUEUE_ONE}
DAY_RULES: Final = ("and", "or")
SOLAR_EVENTS: Final = (
    "dawn_astronomical", "dawn_nautical", "dawn_civil", "sunrise", "solar_noon", "sunset", "dusk_civil",
    "dusk_nautical", "dusk_astronomical",
)  # fmt: skip

_INT64: Final = 1 << 63
_NO_LIMITS: Final = Limits()

_TYPES: Final = {
    name: (get_args(hint) or (hint,)) + ((int,) if {bool, float} & {hint, *get_args(hint)} else ())
    for name, hint in get_type_hints(MonitorRow).items()
}
"""Allowed types of each column; drivers return 0 and 1 for booleans, and ints for whole floats."""
_TYPES_IN_ORDER: Final = tuple(_TYPES.values())


def check(row: MonitorRow, *, limits: Limits = _NO_LIMITS) -> list[InvalidMonitor]:
    """Return all problems of ``row``, each with its column; empty if the row can run. Never raises."""
    try:
        return _problems(row, limits)
    except Exception as error:
        return [unforeseen(row, error)]


def unforeseen(row: MonitorRow, error: Exception) -> InvalidMonitor:
    """Log ``error``, raised by this package's own code, and return it as a problem of ``row``."""
    logger.error("monitor.compile: monitor %r (%.200r) cannot be compiled", row.id, row.name, exc_info=error)
    return InvalidMonitor("definition", f"cannot be compiled: {error!r:.500}; see the log")


def _problems(row: MonitorRow, limits: Limits) -> list[InvalidMonitor]:
    if not all(map(isinstance, row, _TYPES_IN_ORDER)):
        return list(_type_problems(row))
    return [
        *_id_problems(row),
        *_name_problems(row),
        *_schedule_problems(row, limits),
        *_bound_problems(row),
        *_incident_problems(row, limits),
        *_payload_problems(row, limits),
        *(sending := sending_of(row, limits.decode)).problems,
        *_policy_problems(row),
        *allowance_problems(row, sending, limits),
    ]


def kinds_of(row: MonitorRow) -> list[str]:
    """Return the columns that define a schedule; a valid row has exactly one."""
    given = (
        ("interval_ms", row.interval_ms is not None),
        ("cron", bool(row.cron)),
        ("once_at", row.once_at_ms is not None),
        ("solar_event", bool(row.solar_event)),
    )
    return [column for column, is_given in given if is_given]


def sending_of(row: MonitorRow, decode: Decoder) -> SendOptions:
    """Return the send options of ``row``, see ``send_options.compose``."""
    return send_options.compose(
        decode,
        queue=row.queue,
        exchange=row.exchange,
        routing_key=row.routing_key,
        priority=row.priority,
        headers=row.headers,
        expires_s=row.expires_s,
        options=row.options,
    )


@lru_cache(maxsize=4_096)
def cron_of(expression: str, timezone: str, day_rule: str) -> Cron | InvalidMonitor:
    """Return the parsed cron schedule, or its problem. Cached: many rows share few crons."""
    if day_rule not in DAY_RULES:
        return InvalidMonitor("day_rule", f"{day_rule!r} is not one of {', '.join(DAY_RULES)}")
    try:
        zone(timezone)
    except InvalidSchedule as error:
        return InvalidMonitor("timezone", str(error))
    try:
        return Cron(expression, timezone=timezone, day_rule=day_rule)
    except InvalidSchedule as error:
        return InvalidMonitor("cron", str(error))
    except Exception as error:
        logger.exception("monitor.cron: %.300r in %.70r cannot be read", expression, timezone)
        return InvalidMonitor("cron", f"cannot be read: {error!r:.500}; see the log")


def _type_problems(row: MonitorRow) -> Iterator[InvalidMonitor]:
    """Yield columns with values of a wrong type: SQLite stores any value in any column."""
    for (field, types), value in zip(_TYPES.items(), row, strict=True):
        if not isinstance(value, types):
            expected = " or ".join("NULL" if kind is type(None) else kind.__name__ for kind in types)
            yield InvalidMonitor(field, f"{value!r:.80} is a {type(value).__name__}, expected {expected}")


def _id_problems(row: MonitorRow) -> Iterator[InvalidMonitor]:
    if row.id < 0:
        yield InvalidMonitor("id", f"{row.id} is negative: such ids belong to the entries of beat_schedule")
    elif LATER_IDS_FROM <= row.id < _INT64:
        yield InvalidMonitor("id", f"{row.id} is not below {LATER_IDS_FROM}: such ids belong to one-off runs")
    for field, number in (("id", row.id), ("effective_from", row.effective_from_ms)):
        if not -_INT64 <= number < _INT64:
            yield InvalidMonitor(field, "does not fit into 64 bits")


def _name_problems(row: MonitorRow) -> Iterator[InvalidMonitor]:
    for field, text in (("name", row.name), ("task", row.task)):
        if not text or not text.strip():
            yield InvalidMonitor(field, "is empty")
        elif len(text) > MAX_TEXT:
            yield InvalidMonitor(field, f"has {len(text)} characters, at most {MAX_TEXT} are allowed")
        elif reason := names.name_problem(text):
            yield InvalidMonitor(field, reason)


def _schedule_problems(row: MonitorRow, limits: Limits) -> Iterator[InvalidMonitor]:
    kinds = kinds_of(row)
    if len(kinds) != 1:
        given = " and ".join(kinds) or "none"
        yield InvalidMonitor(
            kinds[0] if kinds else "interval_ms", f"expected exactly one of interval, cron, once or solar, got {given}"
        )
        return
    if not row.cron and (reason := names.name_problem(row.timezone)):
        yield InvalidMonitor("timezone", reason)
    widest_jitter_s = MAX_JITTER_S
    if row.interval_ms is not None:
        widest_jitter_s = row.interval_ms // 1000
        if not 0 < row.interval_ms <= INTERVAL_MAX_MS:
            yield InvalidMonitor("interval_ms", f"{row.interval_ms} ms is outside 1 ms…100 years")
            return
        if row.interval_ms < limits.min_interval_ms:
            yield InvalidMonitor("interval_ms", _too_short(row.interval_ms, limits))
    elif row.cron:
        cron = cron_of(row.cron, row.timezone, row.day_rule)
        if isinstance(cron, InvalidMonitor):
            yield cron
    elif row.solar_event:
        widest_jitter_s = 0
        yield from _solar_problems(row)
    if row.jitter_s is not None and not 0 <= row.jitter_s <= widest_jitter_s:
        yield InvalidMonitor("jitter_s", f"{row.jitter_s} s is outside 0…{widest_jitter_s} s of this schedule")


def _solar_problems(row: MonitorRow) -> Iterator[InvalidMonitor]:
    if row.solar_event not in SOLAR_EVENTS:
        yield InvalidMonitor("solar_event", f"{row.solar_event!r} is not one of {', '.join(SOLAR_EVENTS)}")
    for field, degrees, widest in (
        ("solar_latitude", row.solar_latitude, 90),
        ("solar_longitude", row.solar_longitude, 180),
    ):
        if degrees is None or not math.isfinite(degrees) or abs(degrees) > widest:
            yield InvalidMonitor(field, f"{degrees} is not a number of degrees from -{widest} to {widest}")


def _bound_problems(row: MonitorRow) -> Iterator[InvalidMonitor]:
    instants = (
        ("start_at", row.start_at_ms),
        ("end_at", row.end_at_ms),
        ("once_at", row.once_at_ms),
        ("incident_until", row.incident_until_ms),
    )
    for field, instant_ms in instants:
        if instant_ms is not None and not FIRST_MS <= instant_ms <= LAST_MS:
            yield InvalidMonitor(field, f"{instant_ms} ms is outside the years 1 to 9999")
    start_ms, end_ms = row.start_at_ms, row.end_at_ms
    if start_ms is not None and end_ms is not None and start_ms >= end_ms:
        yield InvalidMonitor("end_at", "is not after start_at: no run is possible")
    elif row.once_at_ms is not None and (
        (start_ms is not None and row.once_at_ms < start_ms) or (end_ms is not None and row.once_at_ms >= end_ms)
    ):
        yield InvalidMonitor("once_at", "is outside start_at and end_at: it would never run")


def _incident_problems(row: MonitorRow, limits: Limits) -> Iterator[InvalidMonitor]:
    every_ms = row.incident_interval_ms
    if (every_ms is None) != (row.incident_until_ms is None):
        yield InvalidMonitor("incident_until", "an incident needs both an interval and an end")
    if every_ms is None:
        return
    if row.interval_ms is None and not row.cron:
        yield InvalidMonitor("incident_interval_ms", "only interval and cron monitors can be sped up")
    elif not 0 < every_ms <= INTERVAL_MAX_MS:
        yield InvalidMonitor("incident_interval_ms", f"{every_ms} ms is outside 1 ms…100 years")
    elif every_ms < limits.min_interval_ms:
        yield InvalidMonitor("incident_interval_ms", _too_short(every_ms, limits))
    elif row.interval_ms is not None and 0 < row.interval_ms <= every_ms:
        yield InvalidMonitor(
            "incident_interval_ms",
            f"{format_duration(every_ms)} is not shorter than the interval, {format_duration(row.interval_ms)}",
        )


def _too_short(interval_ms: int, limits: Limits) -> str:
    shortest = format_duration(limits.min_interval_ms)
    return f"{format_duration(interval_ms)} is shorter than wheelbeat_min_interval allows, {shortest}"


def _payload_problems(row: MonitorRow, limits: Limits) -> Iterator[InvalidMonitor]:
    size = len(row.args or "") + len(row.kwargs or "")
    if size > limits.max_payload_bytes // 4:  # a character takes at most four bytes
        size = len((row.args or "").encode(errors="replace")) + len((row.kwargs or "").encode(errors="replace"))
    if size > limits.max_payload_bytes:
        yield InvalidMonitor(
            "kwargs" if len(row.kwargs or "") > len(row.args or "") else "args",
            f"args and kwargs have {size:,} bytes, wheelbeat_max_payload_bytes allows {limits.max_payload_bytes:,}",
        )
        return
    try:
        json_texts.parse_list("args", row.args, limits.decode)
    except InvalidMonitor as error:
        yield error
    try:
        json_texts.parse_object("kwargs", row.kwargs, limits.decode)
    except InvalidMonitor as error:
        yield error


def _policy_problems(row: MonitorRow) -> Iterator[InvalidMonitor]:
    if row.misfire not in MISFIRES:
        yield InvalidMonitor("misfire", f"{row.misfire!r} is not one of {', '.join(MISFIRES)}")
    if row.overlap not in OVERLAPS:
        yield InvalidMonitor("overlap", f"{row.overlap!r} is not one of {', '.join(OVERLAPS)}")
    if row.expires_next and row.expires_s is not None:
        yield InvalidMonitor("expires_next", "expires is either a number of seconds or next, not both")
    if row.expires_next and row.once_at_ms is not None:
        yield InvalidMonitor("expires_next", "a monitor that runs once has no next run to expire at")


class Addressed(NamedTuple):
    """The task of a message and where it is sent; a ``MonitorRow`` has the same fields."""

    task: str
    queue: str | None
    exchange: str | None
    routing_key: str | None


def allowance_problems(row: MonitorRow | Addressed, sending: SendOptions, limits: Limits) -> Iterator[InvalidMonitor]:
    """Yield tasks, queues and addresses that ``limits`` does not allow, in ``row`` and in its callbacks."""
    if limits.allowed_tasks is None and limits.allowed_queues is None:
        return
    for field, reason in (
        ("task", _outside_tasks(row.task, limits)),
        ("queue", _outside_queues(row.queue, limits)),
        ("exchange", _past_the_queues(row.exchange, limits)),
        ("routing_key", _past_the_queues(row.routing_key, limits)),
    ):
        if reason:
            yield InvalidMonitor(field, reason)
    for option, signature in sent_besides(sending):
        reasons = (
            _outside_tasks(signature.task, limits),
            _outside_queues(signature.queue, limits),
            _outside_queues(signature.reply_to, limits),
            _past_the_queues(signature.exchange or signature.routing_key, limits),
        )
        yield from (InvalidMonitor("options", f"{option!r}: {reason}") for reason in reasons if reason)


def _outside_tasks(task: str, limits: Limits) -> str | None:
    if not task or limits.allowed_tasks is None or matches(task, limits.allowed_tasks):
        return None
    return f"{task!r} matches no pattern of wheelbeat_allowed_tasks: {_listed(limits.allowed_tasks)}"


def _outside_queues(queue: str | None, limits: Limits) -> str | None:
    if not queue or limits.allowed_queues is None or matches(queue, limits.allowed_queues):
        return None
    return f"{queue!r} matches no pattern of wheelbeat_allowed_queues: {_listed(limits.allowed_queues)}"


def _past_the_queues(address: str | None, limits: Limits) -> str | None:
    if not address or limits.allowed_queues is None:
        return None
    return f"{address!r} can route to any queue; with wheelbeat_allowed_queues, name a queue instead"


def _listed(patterns: tuple[str, ...]) -> str:
    return ", ".join(map(repr, patterns)) or "it is empty"
