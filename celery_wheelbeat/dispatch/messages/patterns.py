"""Patterns: separates the options that many jobs share from the job-specific ones.

Celery passes header values, and on AMQP the routing key, to the wire unchanged. Jobs that differ only in these share
one form, however many customers, regions or tenants they name. Pure.
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
_loads: Callable[[str], Any] = loads
_NO_HEADERS: Mapping[str, Any] = MappingProxyType({})


class Own(NamedTuple):
    """The job-specific options of one job."""

    headers: Mapping[str, Any] = _NO_HEADERS
    routing_key: str = ""
    """Empty if it is not job-specific."""
    key: str = ""
    """Key of the job; required if a header contains it."""


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
    """Length of a job-specific routing key in bytes, else 0: all messages of a form have the same framing."""

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.route.task

    @property
    def has_own(self) -> bool:
        """Whether any option is job-specific."""
        return bool(self.names or self.key_bytes)


def pattern_of(route: Route, *, own_keys: bool) -> Form:
    """Return the form of ``route`` without ``wheelbeat_*`` headers. ``own_keys``: routing keys are job-specific."""
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
    """Return the job-specific options of a job with ``route``, whose pattern is that of ``form``."""
    if not form.has_own:
        return NOTHING
    options = _loads(route.options)
    return Own(options["headers"] if form.names else _NO_HEADERS, options["routing_key"] if form.key_bytes else "")


def with_own(options: Mapping[str, Any], own: Own) -> dict[str, Any]:
    """Return the options of a form merged with the job-specific ones."""
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
