"""Invented job-specific options: an envelope is proven with them, because it must not depend on their values."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime, timedelta
from string import ascii_letters
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.dispatch.messages.patterns import (
    DELAYS,
    EXPIRES,
    HEADERS,
    LINKS,
    PRIORITY,
    PRIORITY_MAX,
    QUEUE,
    ROUTING_KEY,
    TIME_LIMITS,
    Own,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_wheelbeat.dispatch.messages.patterns import Form

_KEY_LENGTH = 32
_FAR = datetime(2100, 1, 1, tzinfo=UTC)
_random = random.Random()  # noqa: S311 - protects nothing
_random.seed(uuid.uuid4().int)


def _text() -> str:
    return f"wheelbeat {uuid.uuid4()}"


def _routing_key() -> str:
    return "".join(_random.choices(ascii_letters, k=_KEY_LENGTH))


def _signature() -> Mapping[str, Any]:
    return {"task": _text(), "args": [], "kwargs": {}, "options": {}}


def _headers() -> Mapping[str, Any]:
    """One to three headers: not even their number may matter."""
    return {_text(): _text() for _ in range(_random.randint(1, 3))}


def _seconds() -> float:
    return _random.choice((_random.randint(10_000, 1_000_000), round(_random.uniform(10_000, 1_000_000), 3)))


_INVENT: Mapping[str, Callable[[], Any]] = {
    **dict.fromkeys(LINKS, _signature),
    **dict.fromkeys((*TIME_LIMITS, *DELAYS, EXPIRES), _seconds),
    HEADERS: _headers,
    PRIORITY: lambda: _random.randint(0, PRIORITY_MAX),
    **dict.fromkeys((QUEUE, ROUTING_KEY), _routing_key),
}


def invented(form: Form) -> Own:
    """Return random options of the kinds that are job-specific in ``form``."""
    own = {name: _INVENT.get(name, _text)() for name in form.options}
    if EXPIRES in own and not form.expires_s:
        own[EXPIRES] = (_FAR + timedelta(microseconds=_random.randint(1, 10**14))).isoformat()
    return Own(own)
