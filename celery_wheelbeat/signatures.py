"""Signatures of Celery inside of a JSON value: what a worker would send because of it.

Looks everywhere in the value, not only where Celery keeps signatures today (``options``, ``tasks``, ``body``): one that
is overlooked would be sent unchecked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class Signature(NamedTuple):
    """One signature, as far as it says where its message goes; texts are empty where it does not."""

    task: str
    queue: str
    exchange: str
    routing_key: str
    headers: tuple[str, ...]
    """Names of its headers."""


def signatures_in(value: object) -> Iterator[Signature]:
    """Yield every object of a JSON value that has a task or options."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
            if "task" in one or "options" in one:
                yield _signature(one)


def _signature(value: dict[str, Any]) -> Signature:
    options = value.get("options")
    given = options if isinstance(options, dict) else {}
    headers = given.get("headers")
    return Signature(
        _text(value.get("task")),
        _text(given.get("queue")),
        _text(given.get("exchange")),
        _text(given.get("routing_key")),
        tuple(headers) if isinstance(headers, dict) else (),
    )


def _text(value: object) -> str:
    """Return a text; what Celery accepts beside one, as a queue that is an object, by its name."""
    if isinstance(value, dict):
        value = value.get("name")
    return value if isinstance(value, str) else ""
