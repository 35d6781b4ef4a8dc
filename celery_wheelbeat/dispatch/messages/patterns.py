"""Patterns: separates the options that many jobs share from the job-specific ones.

Celery passes headers, texts such as ``shadow``, signatures to link, time limits, the priority and the routing key to
the wire unchanged, and a relative expiry becomes two fields. Jobs that differ only in these share one form, however
many customers, regions or tenants they name. Pure.
"""

from __future__ import annotations

import json
import math
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.utils.json import loads

from celery_wheelbeat.jobs.names import header_problem
from celery_wheelbeat.jobs.send_options import MAX_EXPIRES_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_wheelbeat.jobs.definitions import Route

SHORT_TEXT_MAX = 255
"""Most bytes of a routing key in AMQP."""
_READ = frozenset(("baggage", "compression", "group_index", "headers", "traceparent", "tracestate"))
"""Headers that Celery or tracing tools read while a message is sent, or that Celery moves elsewhere."""
_READ_PREFIX = "sentry"
TEXTS = (
    "app_id", "group_id", "message_id", "parent_id", "reply_to", "root_id", "shadow", "task_id", "type",
)  # fmt: skip
"""Options with a text that Celery writes into the message and does not interpret."""
LINKS = {"link": "callbacks", "link_error": "errbacks"}
"""Options with signatures → their key in the body of a message."""
ROUTING_KEY = "routing_key"
QUEUE = "queue"
HEADERS = "headers"
PRIORITY = "priority"
PRIORITY_MAX = 255
EXPIRES = "expires"
EXPIRATION = "expiration"
"""Property of a message: the relative expiry in whole milliseconds, as text."""
TIME_LIMITS = ("time_limit", "soft_time_limit")
"""In the order of the header ``TIME_LIMIT``."""
TIME_LIMIT = "timelimit"
"""Header of a message that holds both time limits."""
_IN_WIRE = frozenset((*TEXTS, ROUTING_KEY, QUEUE))
DELAYS = ("countdown", "eta")
"""Options for which the celery lane sends, whatever their value is."""
_loads: Callable[[str], Any] = loads
_NONE: Mapping[str, Any] = MappingProxyType({})


class Own(NamedTuple):
    """The job-specific options of one job."""

    options: Mapping[str, Any] = _NONE
    key: str = ""
    """Key of the job; required if a header contains it."""

    @property
    def headers(self) -> Mapping[str, Any]:
        """Headers, or none if they are not job-specific."""
        found: Mapping[str, Any] = self.options.get(HEADERS, _NONE)
        return found

    @property
    def routing_key(self) -> str:
        """Empty if it is not job-specific."""
        return str(self.options.get(ROUTING_KEY, ""))

    @property
    def expires_s(self) -> float | None:
        """The relative expiry; None if it is not job-specific."""
        expires = self.options.get(EXPIRES)
        return None if isinstance(expires, str) else expires

    @property
    def expires_at(self) -> str | None:
        """The expiry as an instant in UTC; None if it is not job-specific."""
        expires = self.options.get(EXPIRES)
        return expires if isinstance(expires, str) else None

    @property
    def texts(self) -> Mapping[str, str]:
        """Name → text, for the texts that a message can contain."""
        found = {name: value for name, value in self.options.items() if name in _IN_WIRE}
        if self.expires_at is not None:
            found[EXPIRES] = self.expires_at
        elif self.expires_s is not None:
            found[EXPIRATION] = str(int(self.expires_s * 1000))  # as kombu writes it
        return found

    @property
    def links(self) -> Mapping[str, Any]:
        """Option → signatures."""
        return {name: value for name, value in self.options.items() if name in LINKS}


NOTHING = Own()


class Form(NamedTuple):
    """The part of a message's definition that many jobs share."""

    route: Route
    """Its options exclude the job-specific ones."""
    headers: tuple[tuple[str, Any], ...] = ()
    """Further ``wheelbeat_*`` headers; the value of ``wheelbeat_job`` ends before the key of the job."""
    options: tuple[str, ...] = ()
    """Names of the options with job-specific values, in order."""
    expires_s: int = 0
    """If relative expiries are job-specific: the next power of two, which gives the same claim headers. Else 0."""

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.route.task

    @property
    def has_own(self) -> bool:
        """Whether any option is job-specific."""
        return bool(self.options)

    @property
    def has_links(self) -> bool:
        """Whether the bodies contain job-specific signatures."""
        return not LINKS.keys().isdisjoint(self.options)


def pattern_of(route: Route, is_plain: Callable[[str], bool] = lambda _queue: False) -> Form:
    """Return the form of ``route`` without ``wheelbeat_*`` headers. ``is_plain``: see ``plain_queues``."""
    options = json.loads(route.options)
    queue = options.get(QUEUE)
    has_queue = _is_text(queue) and "exchange" not in options and is_plain(queue)
    own = tuple(name for name in sorted(options) if _is_own(name, options[name]) or (name == QUEUE and has_queue))
    if not own:
        return Form(route)
    common = {name: value for name, value in options.items() if name not in own}
    route = route._replace(options=json.dumps(common, sort_keys=True))
    expires = options[EXPIRES] if EXPIRES in own else ""
    return Form(route, (), own, 0 if isinstance(expires, str) else _power_of_two(expires))


def own_of(route: Route, form: Form) -> Own:
    """Return the job-specific options of a job with ``route``, whose pattern is that of ``form``."""
    if not form.has_own:
        return NOTHING
    options = _loads(route.options)
    return Own({name: options[name] for name in form.options})


def with_own(options: Mapping[str, Any], own: Own) -> dict[str, Any]:
    """Return the options of a form merged with the job-specific ones, in the order of a route's text."""
    return dict(sorted({**options, **own.options}.items()))


def _is_own(name: str, value: Any) -> bool:
    fits = _FITS.get(name)
    return fits is not None and fits(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_priority(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int) and 0 <= value <= PRIORITY_MAX


def _is_expiry(value: Any) -> bool:
    return _is_in_utc(value) if isinstance(value, str) else _is_number(value) and 0 < value <= MAX_EXPIRES_S


def _are_headers(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(map(_is_passed_on, value))


_FITS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(LINKS, lambda value: isinstance(value, (dict, list)) and bool(value)),
    **dict.fromkeys((*TEXTS, ROUTING_KEY), _is_text),
    **dict.fromkeys(TIME_LIMITS, _is_number),
    **dict.fromkeys(DELAYS, lambda value: value is not None),
    PRIORITY: _is_priority,
    EXPIRES: _is_expiry,
    HEADERS: _are_headers,
}
"""Option → whether a value of it can be job-specific."""


def _is_passed_on(header: str) -> bool:
    """Return whether Celery and tracing tools only pass a header of this name on."""
    name = header.lower()
    return name not in _READ and not name.startswith(_READ_PREFIX) and header_problem(header) is None


def _is_in_utc(text: str) -> bool:
    """Return whether ``text`` is an instant in UTC as Python writes it."""
    try:
        return text.endswith("+00:00") and datetime.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _power_of_two(seconds: float) -> int:
    return 1 << max(0, math.ceil(math.log2(seconds)))
