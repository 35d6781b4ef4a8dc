"""Converts monitors to records (one line of a file) and records to column values.

Invariant: importing the record of an unchanged monitor changes nothing. Columns whose field is missing in a record are
not changed.
"""

from __future__ import annotations

import json
import math
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from celery_wheelbeat.errors import InvalidMonitor, InvalidSchedule
from celery_wheelbeat.schedules.durations import format_duration, parse_duration
from django_wheelbeat.bulk.operations import expiry_columns
from django_wheelbeat.models import Monitor
from django_wheelbeat.monitors.form_fields import EXPIRES_NEXT
from django_wheelbeat.monitors.rows import aware

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

JSON_FIELDS = {"args": "[]", "kwargs": "{}", "headers": "{}", "options": "{}"}
_TEXTS = (
    "name", "task", "cron", "timezone", "day_rule", "solar_event", "misfire", "overlap", "queue", "exchange",
    "routing_key", "pause_reason", "description",
)  # fmt: skip
_INSTANTS = ("once_at", "start_at", "end_at", "incident_until")
_SPANS = {"interval": "interval_ms", "incident_interval": "incident_interval_ms"}
_FLAGS = ("enabled", "one_off")
_NUMBERS: Mapping[str, Callable[[str], float]] = {
    "solar_latitude": float, "solar_longitude": float, "jitter_s": int, "priority": int,
}  # fmt: skip
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0", "")

FIELDS = (
    "name", "task", "args", "kwargs", "interval", "cron", "timezone", "day_rule", "once_at", "solar_event",
    "solar_latitude", "solar_longitude", "jitter_s", "start_at", "end_at", "one_off", "misfire", "overlap", "queue",
    "exchange", "routing_key", "priority", "headers", "expires", "options", "enabled", "pause_reason", "description",
    "tags", "incident_interval", "incident_until",
)  # fmt: skip
"""Fields of a record, in the order of an exported file."""


def record_of(monitor: Monitor) -> dict[str, Any]:
    """Return the record of ``monitor``: every field, as JSON values."""
    record = {}
    for field in FIELDS:
        if field in _SPANS:
            span_ms = getattr(monitor, _SPANS[field])
            record[field] = format_duration(span_ms) if isinstance(span_ms, int) else span_ms
        elif field == "expires":
            record[field] = EXPIRES_NEXT if monitor.expires_next else monitor.expires_s
        elif field in _INSTANTS:
            instant = getattr(monitor, field)
            record[field] = None if instant is None else aware(instant).isoformat()
        elif field in JSON_FIELDS:
            record[field] = _loaded(getattr(monitor, field))
        else:
            record[field] = getattr(monitor, field)
    return record


def columns_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return column → value of the fields in ``record``; raises ``InvalidMonitor`` for the first problem."""
    columns: dict[str, Any] = {}
    for field, value in record.items():
        if field not in FIELDS:
            near = get_close_matches(str(field), FIELDS, n=1)
            raise InvalidMonitor(str(field), f"is not a field; {f'did you mean {near[0]!r}?' if near else FIELDS}")
        columns |= _READERS[field](field, value)
    for column, value in columns.items():
        most = Monitor._meta.get_field(column).max_length
        if isinstance(value, str) and not _can_be_stored(value):
            raise InvalidMonitor(column, "contains a character that cannot be stored (NUL or a lone surrogate)")
        if most is not None and len(value) > most:
            raise InvalidMonitor(column, f"has {len(value)} characters, at most {most} are allowed")
    return columns


def differing(monitor: Monitor, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``columns`` whose value differs from ``monitor``'s."""
    return {column: value for column, value in columns.items() if not _same(column, getattr(monitor, column), value)}


def _same(column: str, stored: Any, given: Any) -> bool:
    """Whether two values of a column are equal, regardless of the notation of JSON texts and instants."""
    if stored == given:
        return True
    if column in _INSTANTS:
        return stored is not None and given is not None and aware(stored) == aware(given)
    return column in JSON_FIELDS and _loaded(stored) == _loaded(given)


def _can_be_stored(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _span_ms(field: str, value: Any) -> int | None:
    if value in (None, ""):
        return None
    try:
        return parse_duration(str(value))
    except InvalidSchedule as problem:
        raise InvalidMonitor(field, str(problem)) from problem


def _span(field: str, value: Any) -> dict[str, Any]:
    return {_SPANS[field]: _span_ms(field, value)}


def _expires(_field: str, value: Any) -> dict[str, Any]:
    if value in (None, ""):
        return expiry_columns(None)
    if str(value).lower() == EXPIRES_NEXT:
        return expiry_columns(EXPIRES_NEXT)
    try:
        return expiry_columns(float(value))
    except (TypeError, ValueError):
        return expiry_columns((_span_ms("expires", value) or 0) / 1000)


def _instant(field: str, value: Any) -> dict[str, Any]:
    if value in (None, ""):
        return {field: None}
    try:
        instant = datetime.fromisoformat(value.strip())
    except (AttributeError, ValueError):
        raise InvalidMonitor(
            field, f"{value!r:.80} is not a date and time; write it like 2030-01-31T12:00:00Z"
        ) from None
    if instant.tzinfo is None:
        raise InvalidMonitor(field, f"{value!r} has no offset; add Z, or one like +02:00")
    return {field: instant}


def _flag(field: str, value: Any) -> dict[str, Any]:
    text = str("" if value is None else value).strip().lower()
    if text not in (*_YES, *_NO):
        raise InvalidMonitor(field, f"{value!r:.80} is neither true nor false")
    return {field: text in _YES}


def _number(field: str, value: Any) -> dict[str, Any]:
    if value in (None, ""):
        return {field: None}
    try:
        return {field: _NUMBERS[field](value)}
    except (TypeError, ValueError, OverflowError):
        raise InvalidMonitor(field, f"{value!r:.80} is not a number") from None


def _json_text(field: str, value: Any) -> dict[str, Any]:
    """Return JSON text: strings unchanged, as in CSV; other values serialized by ``json_text``."""
    text = value.strip() if isinstance(value, str) else "" if value is None else json_text(value)
    return {field: text or JSON_FIELDS[field]}


def _tags(field: str, value: Any) -> dict[str, Any]:
    tags = value if isinstance(value, list) else str(value or "").split(",")
    return {field: ",".join(sorted({str(tag).strip() for tag in tags} - {""}))}


def _text(field: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, str):
        raise InvalidMonitor(field, f"{value!r:.80} is not a text")
    return {field: value or ""}


def _loaded(text: str) -> Any:
    """Return the value of a JSON text, or the text if it does not round-trip; validation refuses that."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


def _finite(text: str) -> float:
    return float(text) if math.isfinite(float(text)) else _refuse_constant(text)


def json_text(value: Any) -> str:
    """Return a value as JSON without needless escapes; bytes, which any SQLite column may hold, as their ``repr``."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if _can_be_stored(text) else json.dumps(value, default=repr)


_READERS: Mapping[str, Callable[[str, Any], dict[str, Any]]] = {
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(JSON_FIELDS, _json_text),
    **dict.fromkeys(_SPANS, _span),
    **dict.fromkeys(_INSTANTS, _instant),
    **dict.fromkeys(_FLAGS, _flag),
    **dict.fromkeys(_NUMBERS, _number),
    "expires": _expires,
    "tags": _tags,
}
