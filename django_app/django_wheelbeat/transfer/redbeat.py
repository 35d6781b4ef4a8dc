"""Entries of redbeat as records. Reads its keys in Redis, never writes them, and does not need redbeat installed.

Entries that redbeat took from ``beat_schedule`` (its *statics*) are left out: they are still in code. ``rrule``
schedules have no equivalent; each such entry is refused.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from kombu.utils import json as kombu_json

from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.schedules.durations import format_duration
from celery_wheelbeat.sources.beat_schedule.celery_zones import NAMELESS
from django_wheelbeat.transfer.celery_beat import cron_text
from django_wheelbeat.transfer.imports import problem_of
from django_wheelbeat.transfer.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from django_wheelbeat.transfer.imports import Given

OWN_ENTRY = "celery.backend_cleanup"
_FIELDS = ("queue", "exchange", "routing_key", "priority", "headers", "expires")
"""Options for which monitors have fields."""
_OBJECTS = ("crontab", "interval", "rrule", "weekday")
"""Types, besides instants, that redbeat can store in arguments and Celery's JSON cannot send."""


def redbeat_entries(
    client: Any, prefix: str, timezone_name: str | None, entry_names: Collection[str], note: Callable[[str, str], None]
) -> Iterator[Given]:
    """Yield number and record of every entry under ``prefix`` (``redbeat:``), by name.

    ``client``: redis-py client with ``decode_responses=True``. ``timezone_name``: Celery's zone, in which redbeat
    evaluates crontabs; None if the zone has no name, then crontabs are refused.
    """
    statics = {*client.smembers(f"{prefix}:statics"), *entry_names, OWN_ENTRY}
    due = dict(client.zrange(f"{prefix}:schedule", 0, -1, withscores=True))
    for number, key in enumerate(sorted(due), start=1):
        text, meta = client.hmget(key, "definition", "meta")
        name = key.removeprefix(prefix)
        if name in statics:
            if name in entry_names:
                note(name, "is an entry of beat_schedule, so it is not imported: the entry keeps running")
            continue
        try:
            definition, known = json.loads(text or "null"), json.loads(meta or "{}")
            yield number, record_of(definition, known, timezone_name, note, due_s=due[key])
        except Exception as error:  # keys are not validated and may hold anything
            problem = problem_of(error)
            yield number, InvalidMonitor(problem.field, f"{name}: {problem.reason}")


def source(client: Any, prefix: str, entry_names: Collection[str]) -> Source:
    """Return the ``Source`` for these entries."""

    def present(names: AbstractSet[str]) -> set[str]:
        statics = {*client.smembers(f"{prefix}:statics"), *entry_names, OWN_ENTRY}
        scores = [client.zscore(f"{prefix}:schedule", f"{prefix}{name}") for name in sorted(names)]
        there = {name for name, score in zip(sorted(names), scores, strict=True) if score is not None}
        return there - statics

    return Source(f"redbeat {prefix}", present)


def record_of(
    definition: Mapping[str, Any],
    meta: Mapping[str, Any],
    timezone_name: str | None,
    note: Callable[[str, str], None],
    *,
    due_s: float,
) -> dict[str, Any]:
    """Return the record of one entry; raises ``InvalidMonitor`` if monitors cannot have its schedule.

    ``due_s``: its next run in redbeat, in seconds since the Unix epoch.
    """
    options = dict(definition.get("options") or {})
    own = {name: options.pop(name) for name in _FIELDS if options.get(name) is not None}
    if isinstance(own.get("expires"), dict):
        note(
            definition["name"],
            "expired at a fixed time; monitors expire after a duration, so it is imported without expiry",
        )
        own["expires"] = None
    if isinstance(options.get("eta"), dict):
        options["eta"] = _instant(options["eta"]).isoformat()
    if own.get("headers"):
        own["headers"] = _json("headers", own["headers"])
    return {
        "name": definition["name"],
        "task": definition["task"],
        "args": _json("args", definition.get("args") or []),
        "kwargs": _json("kwargs", definition.get("kwargs") or {}),
        "enabled": definition.get("enabled", True),
        "options": _json("options", {name: value for name, value in options.items() if value is not None}),
        "jitter_s": 0,
        "misfire": "latest",
        "day_rule": "and",
        **own,
        **_schedule(definition, meta, timezone_name, note, due_s),
    }


def _schedule(
    definition: Mapping[str, Any],
    meta: Mapping[str, Any],
    timezone_name: str | None,
    note: Callable[[str, str], None],
    due_s: float,
) -> dict[str, Any]:
    name, given = definition["name"], definition["schedule"]
    kind = given.get("__type__")
    if kind == "crontab":
        if timezone_name is None:
            raise InvalidMonitor("timezone", NAMELESS)
        fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
        return {"cron": cron_text(_cron_field(given.get(field, "*")) for field in fields), "timezone": timezone_name}
    if kind == "interval":
        every_ms = max(1, round(float(given["every"]) * 1000))
        if given.get("relative"):
            note(name, "had a relative interval, rounded to its unit; as a monitor it counts from its last run")
        last = meta.get("last_run_at")
        if last is None:
            note(name, "has never run: its interval counts from its due time in redbeat")
            begin = datetime.fromtimestamp(int(due_s), UTC)
        else:
            begin = _instant(last).astimezone(UTC) + timedelta(milliseconds=every_ms)
            begin = begin.replace(microsecond=begin.microsecond // 1000 * 1000)
        return {"interval": format_duration(every_ms), "start_at": begin.isoformat()}
    raise InvalidMonitor("schedule", f"{kind!r} has no counterpart; write it as a cron expression or several")


def _cron_field(given: Any) -> str:
    """Return one crontab field as text; redbeat stores text, a number, or a list of both."""
    return ",".join(map(str, given)) if isinstance(given, list) else str(given)


def _json(field: str, value: Any) -> str:
    """Return a value as Celery's JSON, which decodes to the value that redbeat would have sent."""
    return str(kombu_json.dumps(_loaded(field, value), ensure_ascii=False))


def _loaded(field: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_loaded(field, item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("__type__")
    if kind == "datetime" and "__value__" not in value:
        return _instant(value)
    if kind in _OBJECTS:
        raise InvalidMonitor(field, f"hold a {kind} of redbeat, which Celery cannot send as JSON")
    return {name: _loaded(field, item) for name, item in value.items()}


def _instant(given: Mapping[str, Any]) -> datetime:
    """Parse an instant of redbeat: its parts, and a zone by name or in seconds from UTC."""
    parts = [int(given.get(unit, 0)) for unit in ("year", "month", "day", "hour", "minute", "second", "microsecond")]
    zone = given.get("timezone", "UTC")
    tzinfo = ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=float(zone)))
    return datetime(*parts, tzinfo=tzinfo)  # type: ignore[arg-type]
