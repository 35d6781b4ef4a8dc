"""Send options: how the messages of a monitor are sent, as one canonical JSON text.

Empty fields are left out, so routers and the task's own defaults still apply. Options that the beat itself sets, and
names that ``apply_async`` does not know, are refused here and not at send time.
"""

from __future__ import annotations

import json
from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple

from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.json_texts import parse_object

MAX_EXPIRES_S = 315_576_000
"""Ten years: beyond it the message would outlive its broker."""
MAX_TEXT = 16_384
"""Characters of headers and of options: they are kept once per distinct text, for ever."""

_OWN_FIELDS = ("queue", "exchange", "routing_key", "priority", "headers", "expires", "args", "kwargs", "task")
_OWNED_BY_BEAT = ("connection", "producer", "publisher", "retry", "retry_policy", "add_to_parent")
_OWN_HEADERS = ("celery_beat_task", "periodic_task_name", "wheelbeat_fire_ms", "wheelbeat_nonce")
_PROTOCOL_HEADERS = (
    "id", "task", "lang", "root_id", "parent_id", "group", "shadow", "eta", "expires", "retries", "timelimit",
    "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamps", "stamped_headers",
)  # fmt: skip

_NUMBER = (int, float)
_SECONDS = f"a number of seconds from 0 to {MAX_EXPIRES_S:,}"
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "app_id": ((str,), "a text"),
    "compression": ((str,), "a text"),
    "countdown": (_NUMBER, _SECONDS),
    "delivery_mode": ((int, str), '1, 2, "transient" or "persistent"'),
    "eta": ((str,), "an ISO 8601 instant"),
    "exchange_type": ((str,), "a text"),
    "group_id": ((str,), "a text"),
    "ignore_result": ((bool,), "true or false"),
    "link": ((dict, list), "a signature or a list of signatures"),
    "link_error": ((dict, list), "a signature or a list of signatures"),
    "message_id": ((str,), "a text"),
    "parent_id": ((str,), "a text"),
    "reply_to": ((str,), "a text"),
    "root_id": ((str,), "a text"),
    "serializer": ((str,), "a text"),
    "shadow": ((str,), "a text"),
    "soft_time_limit": (_NUMBER, _SECONDS),
    "task_id": ((str,), "a text"),
    "time_limit": (_NUMBER, _SECONDS),
    "type": ((str,), "a text"),
    "user_id": ((str,), "a text"),
}


class SendOptions(NamedTuple):
    """What ``compose`` found: the canonical text, or the problems that stand in its way."""

    text: str
    problems: tuple[InvalidMonitor, ...]


@lru_cache(maxsize=4_096)
def compose(
    *,
    queue: str | None,
    exchange: str | None,
    routing_key: str | None,
    priority: int | None,
    headers: str | None,
    expires_s: float | None,
    options: str | None,
) -> SendOptions:
    """Merge the columns of one monitor into the options of ``apply_async``, JSON with sorted keys.

    Cached, since few combinations exist. All problems are returned at once, each with the name of its column.
    """
    columns: dict[str, Any] = {"queue": queue, "exchange": exchange, "routing_key": routing_key}
    columns |= {"priority": priority, "expires": _shortest(expires_s)}
    problems = _column_problems(columns)
    merged = {name: value for name, value in columns.items() if value is not None and value != ""}
    try:
        own_headers = _bounded_object("headers", headers)
        problems += _header_problems(own_headers)
        if own_headers:
            merged["headers"] = own_headers
    except InvalidMonitor as error:
        problems.append(error)
    try:
        further = _bounded_object("options", options)
        problems += [InvalidMonitor("options", reason) for reason in map(_option_problem, further.items()) if reason]
        merged |= further
    except InvalidMonitor as error:
        problems.append(error)
    return SendOptions("{}" if problems or not merged else json.dumps(merged, sort_keys=True), tuple(problems))


def _shortest(number: float | None) -> float | None:
    """A whole number as int, so drivers that return 30 and 30.0 give one route."""
    return int(number) if number is not None and float(number).is_integer() else number


def _bounded_object(field: str, text: str | None) -> dict[str, Any]:
    if text is not None and len(text) > MAX_TEXT:
        raise InvalidMonitor(field, f"has {len(text):,} characters, at most {MAX_TEXT:,} are possible")
    return parse_object(field, text)


def _column_problems(columns: dict[str, Any]) -> list[InvalidMonitor]:
    problems = [
        InvalidMonitor(field, "contains a NUL character")
        for field in ("queue", "exchange", "routing_key")
        if "\0" in (columns[field] or "")
    ]
    priority, expires_s = columns["priority"], columns["expires"]
    if priority is not None and not 0 <= priority <= 255:
        problems.append(InvalidMonitor("priority", f"{priority} is outside 0…255"))
    if expires_s is not None and not 0 < expires_s <= MAX_EXPIRES_S:
        problems.append(InvalidMonitor("expires_s", f"{expires_s:g} s is outside 0…{MAX_EXPIRES_S:,} s"))
    return problems


def _header_problems(headers: dict[str, Any]) -> list[InvalidMonitor]:
    problems = []
    for name in headers:
        if name in _OWN_HEADERS:
            problems.append(InvalidMonitor("headers", f"{name!r} is written by the beat on every message"))
        elif name in _PROTOCOL_HEADERS:
            problems.append(InvalidMonitor("headers", f"{name!r} belongs to Celery's message protocol"))
    return problems


def _is_instant(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _option_problem(option: tuple[str, Any]) -> str | None:
    name, value = option
    if name in _OWN_FIELDS:
        return f"{name!r} has a field of its own"
    if name in _OWNED_BY_BEAT:
        return f"{name!r} is set by the beat itself"
    if name not in _TYPES:
        near = get_close_matches(name, _TYPES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_TYPES)}"
        return f"{name!r} is not an option of apply_async that can be stored; {hint}"
    types, expected = _TYPES[name]
    fits = isinstance(value, types) and (bool in types or not isinstance(value, bool)) and value != ""
    if fits and types is _NUMBER:
        fits = 0 <= value <= MAX_EXPIRES_S
    if fits and name == "eta":
        fits = _is_instant(value)
    if fits and name == "delivery_mode":
        fits = value in (1, 2, "transient", "persistent")
    return None if fits else f"{name!r} is {value!r}, expected {expected}"
