"""Names in a definition: which texts the log, the broker and the workers can accept.

A name with a line break would forge lines in the log. A queue named like a key of the transport would collide with that
key. Such names are refused for every broker, because a definition may outlive the choice of the broker.
"""

from __future__ import annotations

import re
import uuid
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_REFUSED: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line and paragraph separators, text direction marks, lone surrogates."""
REFUSED_IN_UTF8: Final = re.compile(
    rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2(?:\x80[\xa8-\xae]|\x81[\xa6-\xa9])|\xed[\xa0-\xbf]"
)
"""The same in UTF-8. ``\\xed`` matches surrogates, which some writers encode although UTF-8 forbids it."""

RESERVED_QUEUES: Final = {
    "unacked*": "kombu on Redis, for unacknowledged messages",
    "_kombu.*": "kombu on Redis, for bindings",
    "amq.*": "RabbitMQ",
    "celery-task*-meta-*": "Celery on Redis, for results",
    "wb:*": "workers on Redis, for claims",
    "wheelbeat:*": "beats on Redis, for the record of sent batches",
}
"""Queue name pattern → system that uses keys or queues of that name."""
RESERVED_ANYWHERE: Final = {
    "*.pidbox": "Celery's remote control",
    "celeryev": "Celery's events",
    "celeryev.*": "Celery's events",
}
"""The same, also for exchanges and routing keys."""

OWN_PREFIX: Final = "wheelbeat_"
_BEAT_HEADERS: Final = ("celery_beat_task", "periodic_task_name")
_PROTOCOL_HEADERS: Final = (
    "id", "task", "lang", "root_id", "parent_id", "group", "shadow", "eta", "expires", "retries", "timelimit",
    "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamps", "stamped_headers",
)  # fmt: skip
_COPY_HEADERS: Final = ("CC", "BCC")
RUN_ID_VERSION: Final = 5
"""Version of the UUIDs that are run ids, which anybody can compute."""


def name_problem(text: str) -> str | None:
    """Return which character of a name is refused, or None."""
    if text.isprintable():
        return None
    found = _REFUSED.search(text)
    if found is None:
        return None
    return (
        f"contains U+{ord(found[0]):04X}: control characters, line separators, direction marks and lone surrogates"
        " are not allowed in a name"
    )


def queue_problem(text: str) -> str | None:
    """Return why ``text`` cannot be the name of a queue, or None."""
    return name_problem(text) or _reserved(text, RESERVED_QUEUES) or _reserved(text, RESERVED_ANYWHERE)


def address_problem(text: str) -> str | None:
    """Return why ``text`` cannot be an exchange or a routing key, or None."""
    return name_problem(text) or _reserved(text, RESERVED_ANYWHERE)


def id_problem(text: str) -> str | None:
    """Return why ``text`` cannot be a task id that a definition chooses, or None."""
    try:
        is_run_id = uuid.UUID(text).version == RUN_ID_VERSION
    except ValueError:
        is_run_id = False
    if is_run_id:
        return f"{text!r} has the form of a run id: the result of another run could be overwritten"
    return name_problem(text)


def header_problem(name: str) -> str | None:
    """Return why a definition cannot have a header ``name``, or None."""
    if name.lower().startswith(OWN_PREFIX) or name in _BEAT_HEADERS:
        return f"{name!r} is reserved: beats and workers set it on messages"
    if name in _PROTOCOL_HEADERS:
        return f"{name!r} belongs to Celery's message protocol"
    if name in _COPY_HEADERS:
        return f"{name!r} lets RabbitMQ send copies to other queues"
    problem = name_problem(name)
    return f"{name!r} {problem}" if problem else None


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether ``name`` matches one of ``patterns``: globs such as ``proj.*``, case-sensitive."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _reserved(text: str, reserved: dict[str, str]) -> str | None:
    owner = next((owner for pattern, owner in reserved.items() if fnmatchcase(text, pattern)), None)
    return f"{text!r} is reserved: the name is in use by {owner}" if owner else None
