"""Patterns: what the messages of many jobs have in common, and what of their options is a job's own.

Values of headers, and on AMQP the routing key, go through Celery to the wire as they are. So jobs that differ in
nothing else share one form, however many customers, regions or tenants are named there. Pure.
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
"""Octets of a routing key in AMQP."""
_READ = frozenset(("baggage", "compression", "group_index", "headers", "traceparent", "tracestate"))
"""Headers whose value matters to Celery or to tracing tools while a message is sent, or that Celery puts elsewhere."""
_READ_PREFIX = "sentry"
_loads: Callable[[str], Any] = loads
_NO_HEADERS: Mapping[str, Any] = MappingProxyType({})


class Own(NamedTuple):
    """What only the messages of one job have."""

    headers: Mapping[str, Any] = _NO_HEADERS
    routing_key: str = ""
    """Empty where it is not the job's own."""
    key: str = ""
    """Key of the job; needed where a header names it."""


NOTHING = Own()


class Form(NamedTuple):
    """What the messages of many jobs have in common."""

    route: Route
    """Its options are without what is a job's own."""
    headers: tuple[tuple[str, Any], ...] = ()
    """Further ``wheelbeat_*`` headers; of ``wheelbeat_job`` what stands before the key of the job."""
    names: tuple[str, ...] = ()
    """Names of the headers whose values are a job's own, in their order."""
    key_bytes: int = 0
    """Octets of the routing key where it is a job's own, else 0: messages of one form are framed alike."""

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.route.task

    @property
    def has_own(self) -> bool:
        """Whether anything in the options is a job's own."""
        return bool(self.names or self.key_bytes)


def pattern_of(route: Route, *, own_keys: bool) -> Form:
    """Return the form of ``route`` without headers of ours. ``own_keys``: whether a routing key is a job's own."""
    options = json.loads(route.options)
    names, key_bytes = _names(options.get("headers")), _key_bytes(options.get("routing_key")) if own_keys else 0
    if names:
        del options["headers"]
    if key_bytes:
        del options["routing_key"]
    if names or key_bytes:
        route = route._replace(options=json.dumps(options, sort_keys=True))
    return Form(route, (), names, key_bytes)


def own_of(route: Route, form: Form) -> Own:
    """Return what is the own of a job with ``route``, whose pattern is that of ``form``."""
    if not form.has_own:
        return NOTHING
    options = _loads(route.options)
    return Own(options["headers"] if form.names else _NO_HEADERS, options["routing_key"] if form.key_bytes else "")


def with_own(options: Mapping[str, Any], own: Own) -> dict[str, Any]:
    """Return the options of a form together with what is a job's own."""
    together = dict(options)
    if own.headers:
        together["headers"] = dict(own.headers)
    if own.routing_key:
        together["routing_key"] = own.routing_key
    return together


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
