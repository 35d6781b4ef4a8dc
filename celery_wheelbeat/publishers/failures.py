"""What an exception of a publish says about the run: never sent, maybe sent, or never to be sent.

The invariant: a failure is ``REFUSED`` only where the broker itself said no. Everything else that may have crossed the
wire is ``UNCERTAIN``; the run is then sent again with the same id and a fresh nonce.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import amqp.exceptions
import amqp.spec
import celery.beat
import celery.exceptions
import kombu.exceptions

from celery_wheelbeat.publishers import FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterator

BatchFailed: type[Exception] = getattr(kombu.exceptions, "BatchPublishError", kombu.exceptions.OperationalError)
"""A batch of which any part may have been stored (kombu ≥ 5.7)."""

_KNOWN: tuple[tuple[Any, FailureKind], ...] = (
    (BatchFailed, FailureKind.UNCERTAIN),
    (
        (kombu.exceptions.EncodeError, kombu.exceptions.SerializerNotInstalled, amqp.exceptions.ContentTooLarge),
        FailureKind.POISON,
    ),
    (amqp.exceptions.MessageNacked, FailureKind.REFUSED),
    ((celery.exceptions.QueueNotFound, amqp.exceptions.ChannelError), FailureKind.UNROUTABLE),
    (OSError, FailureKind.UNCERTAIN),
)

_STATE = re.compile(
    r"(OutOfMemory|ReadOnly|MasterDown)Error: |ResponseError: (Command # .* caused error: )?(MISCONF|NOREPLICAS) "
)
"""Reasons with which a Redis refuses every write, whatever it is."""

_DEPTH_MAX = 10
"""Longest chain of causes that is looked through."""


def diagnose(exc: BaseException, connection: Any) -> tuple[FailureKind, str]:
    """Classify ``exc``, raised while a message was published on ``connection`` (a kombu ``Connection``).

    Returns the kind and the reason in one line. The outermost exception of its chain of causes that is known decides;
    an unknown one is the user's (``ERROR``).
    """
    links = [link for link in _chain(exc) if not _is_wrapper(link)] or [exc]
    for link in links:
        kind = _kind_of_link(link, connection)
        if kind is not None:
            return kind, reason_of(link.__cause__ if isinstance(link, BatchFailed) and link.__cause__ else link)
    return FailureKind.ERROR, reason_of(links[0])


def is_state(reason: str) -> bool:
    """Say whether a reason of ``diagnose`` tells of the server at the moment, and nothing of what was sent."""
    return _STATE.match(reason) is not None


def reason_of(exc: BaseException) -> str:
    """Say in one line what went wrong."""
    text = " ".join(str(exc).split()) or "no message"
    return f"{type(exc).__name__}: {text}"[:500]


def _is_wrapper(exc: BaseException) -> bool:
    if isinstance(exc, celery.beat.SchedulingError):
        return True
    return type(exc) is kombu.exceptions.OperationalError and exc.__cause__ is not None


def _chain(exc: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = exc
    for _ in range(_DEPTH_MAX):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _kind_of_link(exc: BaseException, connection: Any) -> FailureKind | None:
    if isinstance(exc, amqp.exceptions.PreconditionFailed) and exc.method_sig == amqp.spec.Basic.Publish:
        return FailureKind.POISON  # larger than the broker's max_message_size
    for types, kind in _KNOWN:
        if isinstance(exc, types):
            return kind
    if isinstance(exc, connection.channel_errors):
        return _refused_by_redis(exc)
    if isinstance(exc, connection.connection_errors) and not isinstance(exc, KeyError):
        return FailureKind.UNCERTAIN  # kombu lists KeyError for Redis; here that is the user's code
    return None


def _refused_by_redis(exc: BaseException) -> FailureKind:
    if type(exc).__name__ == "DataError":
        return FailureKind.POISON
    if "WRONGTYPE" in str(exc):
        return FailureKind.UNROUTABLE  # the queue's key holds something that is not a list
    return FailureKind.REFUSED  # OOM, READONLY, NOAUTH …: nothing was stored
