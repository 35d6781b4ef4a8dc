"""Patterns: separates the options that many jobs share from the job-specific ones.

Celery passes header values, texts such as ``shadow``, signatures to link, and the routing key to the wire unchanged.
Jobs that differ only in these share one form, however many customers, regions or tenants they name. Pure.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.utils.json import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_wheelbeat.jobs.definitions import Route

SHORT_TEXT_MAX = 255
"""Most bytes of a routing key in AMQP."""
_READ = frozenset(("baggage", "compression", "group_index", "headers", "traceparent", "tracestate"))
"""Headers that Celery or tracing tools read while a message is sent, or that Celery moves elsewhere."""
_READ_PREFIX = "sentry"
TEXTS = ("group_id", "message_id", "parent_id", "reply_to", "root_id", "shadow", "task_id")
"""Options with a text that Celery writes into the message and does not interpret."""
LINKS = {"link": "callbacks", "link_error": "errbacks"}
"""Options with signatures → their key in the body of a message."""
ROUTING_KEY = "routing_key"
_loads: Callable[[str], Any] = loads
_NONE: Mapping[str, Any] = MappingProxyType({})


class Own(NamedTuple):
    """The job-specific options of one job."""

    headers: Mapping[str, Any] = _NONE
    routing_key: str = ""
    """Empty if it is not job-specific."""
    key: str = ""
    """Key of the job; required if a header contains it."""
    options: Mapping[str, Any] = _NONE
    """``TEXTS`` and ``LINKS`` with job-specific values."""

    @property
    def texts(self) -> Mapping[str, str]:
        """Option → text, for the texts that a message can contain: ``TEXTS`` and the routing key."""
        found = {name: value for name, value in self.options.items() if name not in LINKS}
        return {**found, ROUTING_KEY: self.routing_key} if self.routing_key else found

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
    names: tuple[str, ...] = ()
    """Names of the headers with job-specific values, in order."""
    key_bytes: int = 0
    """AMQP: length of a job-specific routing key in bytes, else 0: all messages of a form have the same framing."""
    options: tuple[str, ...] = ()
    """Names of the other options with job-specific values, in order."""

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.route.task

    @property
    def has_own(self) -> bool:
        """Whether any option is job-specific."""
        return bool(self.names or self.key_bytes or self.options)

    @property
    def has_links(self) -> bool:
        """Whether the bodies contain job-specific signatures."""
        return not LINKS.keys().isdisjoint(self.options)


def pattern_of(route: Route, *, framed_keys: bool) -> Form:
    """Return the form of ``route`` without ``wheelbeat_*`` headers. ``framed_keys``: see ``Form.key_bytes``."""
    options = json.loads(route.options)
    names, key_bytes = _names(options.get("headers")), _key_bytes(options.get(ROUTING_KEY)) if framed_keys else 0
    own = tuple(name for name in sorted(options) if _is_own(name, options[name], framed_keys=framed_keys))
    taken = {*own, *(["headers"] if names else []), *([ROUTING_KEY] if key_bytes else [])}
    if taken:
        common = {name: value for name, value in options.items() if name not in taken}
        route = route._replace(options=json.dumps(common, sort_keys=True))
    return Form(route, (), names, key_bytes, own)


def own_of(route: Route, form: Form) -> Own:
    """Return the job-specific options of a job with ``route``, whose pattern is that of ``form``."""
    if not form.has_own:
        return NOTHING
    options = _loads(route.options)
    own = {name: options[name] for name in form.options if name != ROUTING_KEY}
    has_key = form.key_bytes or ROUTING_KEY in form.options
    return Own(options["headers"] if form.names else _NONE, options[ROUTING_KEY] if has_key else "", "", own)


def with_own(options: Mapping[str, Any], own: Own) -> dict[str, Any]:
    """Return the options of a form merged with the job-specific ones."""
    together = {**options, **own.options}
    if own.headers:
        together["headers"] = dict(own.headers)
    if own.routing_key:
        together[ROUTING_KEY] = own.routing_key
    return together


def _is_own(name: str, value: Any, *, framed_keys: bool) -> bool:
    if name in LINKS:
        return isinstance(value, (dict, list)) and bool(value)
    return isinstance(value, str) and value != "" and (name in TEXTS or (name == ROUTING_KEY and not framed_keys))


def _names(headers: Any) -> tuple[str, ...]:
    if not isinstance(headers, dict):
        return ()
    lowered = [name.lower() for name in headers]
    if any(name in _READ or name.startswith(_READ_PREFIX) for name in lowered):
        return ()
    return tuple(headers)


def _key_bytes(routing_key: Any) -> int:
    if not isinstance(routing_key, str):
        return 0
    octets = len(routing_key.encode("utf-8", "surrogatepass"))
    return octets if octets <= SHORT_TEXT_MAX else 0
