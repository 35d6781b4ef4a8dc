"""Send options: merges the columns that control sending into one canonical JSON text.

Empty fields are omitted, so that routers and the task's own defaults apply. Options that the beat sets itself, and
names that ``apply_async`` does not know, are refused here, not at send time.
"""

from __future__ import annotations

import json
from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.jobs import names
from celery_wheelbeat.jobs.json_fields import parse_object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_wheelbeat.jobs.json_fields import Decoder

MAX_EXPIRES_S = 315_360_000
"""Ten years of 365 days: RabbitMQ closes the channel for a message that expires later."""
MAX_TEXT = 16_384
"""Greatest size in bytes of headers, and of options. Each distinct text is kept while a monitor has it, and an AMQP
header frame holds 131,064 bytes."""

_OWN_FIELDS = ("queue", "exchange", "routing_key", "priority", "headers", "expires", "args", "kwargs", "task")
_OWNED_BY_BEAT = ("connection", "producer", "publisher", "retry", "retry_policy", "add_to_parent")

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


_ADDRESSES = {
    "queue": names.queue_problem,
    "exchange": names.address_problem,
    "routing_key": names.address_problem,
    "reply_to": names.queue_problem,
}
_IDS = {"task_id": names.id_problem}
CALLBACKS = ("link", "link_error")
"""Options that hold signatures; workers send them."""
CANVAS = ("chain", "chord")
"""The same, of one-off runs only."""
_OPTION_KEYS = (*CALLBACKS, *CANVAS)
_CANVAS_KEYS = ("tasks", "header", "body", "task")
"""Arguments of a group, chain, chord or map that hold signatures."""


class SendOptions(NamedTuple):
    """The result of ``compose``: the canonical text, or ``{}`` and the problems."""

    text: str
    problems: tuple[InvalidMonitor, ...]


@lru_cache(maxsize=4_096)
def compose(
    decode: Decoder,
    *,
    queue: str | None,
    exchange: str | None,
    routing_key: str | None,
    priority: int | None,
    headers: str | None,
    expires_s: float | None,
    options: str | None,
) -> SendOptions:
    """Merge the columns of one monitor into the options of ``apply_async``, as JSON with sorted keys.

    ``decode`` reads ``__type__`` markers. Returns all problems, each with its column. Cached: many rows share few
    combinations.
    """
    columns: dict[str, Any] = {"queue": queue, "exchange": exchange, "routing_key": routing_key}
    columns |= {"priority": priority, "expires": _shortest(expires_s)}
    problems = _column_problems(columns)
    merged = {name: value for name, value in columns.items() if value is not None and value != ""}
    try:
        own_headers = _bounded_object("headers", headers, decode)
        problems += [InvalidMonitor("headers", reason) for reason in map(names.header_problem, own_headers) if reason]
        if own_headers:
            merged["headers"] = own_headers
    except InvalidMonitor as error:
        problems.append(error)
    try:
        further = _bounded_object("options", options, decode)
        problems += [InvalidMonitor("options", reason) for reason in map(_option_problem, further.items()) if reason]
        merged |= further
    except InvalidMonitor as error:
        problems.append(error)
    return SendOptions("{}" if problems or not merged else json.dumps(merged, sort_keys=True), tuple(problems))


def sent_besides(sending: SendOptions) -> Iterator[tuple[str, Signature]]:
    """Yield (option, signature) for each message that workers send because of these options."""
    given = json.loads(sending.text)
    for option in (*CALLBACKS, *CANVAS):
        for signature in signatures_in(given.get(option)):
            yield option, signature
    if "reply_to" in given:
        yield "reply_to", Signature("", given["reply_to"])


def _shortest(number: float | None) -> float | None:
    """Return a whole number as int, so that drivers that return 30 and 30.0 give one route."""
    return int(number) if number is not None and float(number).is_integer() else number


def _bounded_object(field: str, text: str | None, decode: Decoder) -> dict[str, Any]:
    octets = len((text or "").encode("utf-8", "surrogatepass"))
    if octets > MAX_TEXT:
        raise InvalidMonitor(field, f"has {octets:,} bytes, at most {MAX_TEXT:,} are allowed")
    return parse_object(field, text, decode)


def _column_problems(columns: dict[str, Any]) -> list[InvalidMonitor]:
    problems = [
        InvalidMonitor(field, reason)
        for field, problem_of in _ADDRESSES.items()
        if (reason := problem_of(columns.get(field) or ""))
    ]
    priority, expires_s = columns["priority"], columns["expires"]
    if priority is not None and not 0 <= priority <= 255:
        problems.append(InvalidMonitor("priority", f"{priority} is outside 0…255"))
    if expires_s is not None and not 0 < expires_s <= MAX_EXPIRES_S:
        problems.append(InvalidMonitor("expires_s", f"{expires_s:g} s is outside 0…{MAX_EXPIRES_S:,} s"))
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
        return f"{name!r} has its own field"
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
    if not fits:
        return f"{name!r} is {value!r:.80}, expected {expected}"
    reason = callback_problem(value) if name in CALLBACKS else _text_problem(name, value)
    return f"{name!r} {reason}" if reason else None


def _text_problem(name: str, value: object) -> str | None:
    if not isinstance(value, str):
        return None
    return (_ADDRESSES | _IDS).get(name, names.name_problem)(value)


def callback_problem(value: object) -> str | None:
    """Return the problem of a signature, or None. Workers send it unchanged, so the rules of monitors apply."""
    for signature in signatures_in(value):
        found = [
            *(problem_of(getattr(signature, field)) for field, problem_of in (_ADDRESSES | _IDS).items()),
            names.name_problem(signature.task),
            *map(names.header_problem, signature.headers),
        ]
        reason = next((reason for reason in found if reason), None)
        if reason:
            return f"contains the signature of {signature.task!r:.80}: {reason}"
    return None


class Signature(NamedTuple):
    """The fields of a signature that determine where its message goes; missing texts are empty."""

    task: str
    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    reply_to: str = ""
    task_id: str = ""
    headers: tuple[str, ...] = ()
    """Names of the headers."""


def signatures_in(value: object) -> Iterator[Signature]:
    """Yield every signature in the value of a callback option, at any depth.

    A text where a signature is expected counts too: workers execute the task of that name.
    """
    waiting: list[tuple[object, bool, tuple[str, ...]]] = [(value, True, ())]
    """(value, whether a text in its place is a task, keys with tasks if it is an object)."""
    while waiting:
        one, is_task, keys = waiting.pop()
        if isinstance(one, str):
            if is_task:
                yield Signature(one)
        elif isinstance(one, list):
            waiting += [(item, is_task, keys) for item in one]
        elif isinstance(one, dict):
            if "task" in one or "options" in one:
                yield _signature(one)
            is_canvas = bool(one.get("subtask_type"))
            for key, item in one.items():
                below = _OPTION_KEYS if key == "options" else _CANVAS_KEYS if key == "kwargs" and is_canvas else ()
                waiting.append((item, key in keys, below))


def _signature(value: dict[str, Any]) -> Signature:
    options = value.get("options")
    given = options if isinstance(options, dict) else {}
    headers = given.get("headers")
    return Signature(
        _text(value.get("task")),
        _text(given.get("queue")),
        _text(given.get("exchange")),
        _text(given.get("routing_key")),
        _text(given.get("reply_to")),
        _text(given.get("task_id")),
        tuple(headers) if isinstance(headers, dict) else (),
    )


def _text(value: object) -> str:
    """Return a text, or the name of an object: Celery also accepts a queue as an object."""
    if isinstance(value, dict):
        value = value.get("name")
    return value if isinstance(value, str) else ""
