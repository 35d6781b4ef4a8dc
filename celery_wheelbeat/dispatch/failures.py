"""Classifies an exception of a publish: the run was not sent, perhaps sent, or can never be sent.

Invariant: a failure is ``REFUSED`` only if the broker itself refused. Everything else that may have crossed the wire is
``UNCERTAIN``; the run is then sent again with the same id and a fresh nonce. Any exception of user code before the
publish call is ``ERROR``: it concerns one run and says nothing about the connection.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import amqp.exceptions
import amqp.spec
import celery.beat
import celery.exceptions
import kombu.exceptions

from celery_wheelbeat.dispatch import FailureKind
from celery_wheelbeat.errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

BatchFailed: type[Exception] = getattr(kombu.exceptions, "BatchPublishError", kombu.exceptions.OperationalError)
"""Raised for a failed batch, any part of which may have been stored (kombu ≥ 5.7)."""

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
"""Errors with which Redis refuses every write because of its own state."""

_DEPTH_MAX = 10
"""Most links of a chain of causes that are examined."""


class Diagnosis(NamedTuple):
    """Diagnosis of an unconfirmed run and of its connection."""

    kind: FailureKind
    reason: str
    """One line."""
    in_doubt: bool = False
    """Whether the connection is lost or in an unknown state. RabbitMQ closes the channel when it refuses."""

    @property
    def is_state(self) -> bool:
        """Whether the failure describes the state of the server, not the message."""
        return self.kind is FailureKind.REFUSED and is_state(self.reason)


def diagnose(exc: BaseException, connection: Any, *, of_broker: bool = True) -> Diagnosis:
    """Classify ``exc``, raised while a message was made and published on ``connection`` (a kombu ``Connection``).

    ``of_broker``: the exception left the publish call, or the connection is lost. The outermost known exception in the
    chain of causes decides; an unknown one is attributed to user code (``ERROR``).
    """
    links = _unwrapped_chain(exc)
    for link in links:
        kind = _kind_of_link(link, connection) if of_broker else _kind_before_publish(link)
        if kind is not None:
            named = link.__cause__ if isinstance(link, BatchFailed) and link.__cause__ else link
            in_doubt = kind is FailureKind.UNCERTAIN or _is_from_rabbitmq(link)
            return Diagnosis(kind, reason_of(named), in_doubt)
    return Diagnosis(FailureKind.ERROR, reason_of(links[0]))


def unwrapped(exc: BaseException) -> BaseException:
    """Return the exception inside the wrappers of Celery and kombu."""
    return _unwrapped_chain(exc)[0]


def is_state(reason: str) -> bool:
    """Return whether a reason from ``diagnose`` describes the state of the server, not the message."""
    return _STATE.match(reason) is not None


def _is_wrapper(exc: BaseException) -> bool:
    if isinstance(exc, celery.beat.SchedulingError):
        return True
    return type(exc) is kombu.exceptions.OperationalError and exc.__cause__ is not None


def _unwrapped_chain(exc: BaseException) -> list[BaseException]:
    return [link for link in chain_of(exc) if not _is_wrapper(link)] or [exc]


def chain_of(exc: BaseException) -> Iterator[BaseException]:
    """Yield ``exc`` and its causes, the outermost first."""
    link: BaseException | None = exc
    for _ in range(_DEPTH_MAX):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _kind_before_publish(exc: BaseException) -> FailureKind | None:
    return FailureKind.UNROUTABLE if isinstance(exc, celery.exceptions.QueueNotFound) else None


def _kind_of_link(exc: BaseException, connection: Any) -> FailureKind | None:
    if not isinstance(exc, Exception):
        return FailureKind.UNCERTAIN  # the call was interrupted
    if _is_unfit_for_amqp(exc):
        return FailureKind.POISON
    for types, kind in _KNOWN:
        if isinstance(exc, types):
            return kind
    if isinstance(exc, connection.channel_errors):
        return _refused_by_redis(exc)
    if isinstance(exc, connection.connection_errors) and not isinstance(exc, KeyError):
        return FailureKind.UNCERTAIN  # kombu lists KeyError for Redis; here that is the user's code
    return None


def _is_from_rabbitmq(exc: BaseException) -> bool:
    return isinstance(exc, amqp.exceptions.AMQPError) and exc.method_sig is not None


def _is_unfit_for_amqp(exc: BaseException) -> bool:
    if isinstance(exc, amqp.exceptions.PreconditionFailed):
        return bool(exc.method_sig == amqp.spec.Basic.Publish)  # larger than the broker's max_message_size
    # raised by py-amqp itself for a header that AMQP cannot express, before it writes
    return isinstance(exc, amqp.exceptions.FrameSyntaxError) and not _is_from_rabbitmq(exc)


def _refused_by_redis(exc: BaseException) -> FailureKind:
    if type(exc).__name__ == "DataError":
        return FailureKind.POISON
    if "WRONGTYPE" in str(exc):
        return FailureKind.UNROUTABLE  # the queue's key holds something that is not a list
    return FailureKind.REFUSED  # OOM, READONLY, NOAUTH …: nothing was stored
