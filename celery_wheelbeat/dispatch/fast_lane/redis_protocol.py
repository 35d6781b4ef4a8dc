"""Encoding of commands in the Redis protocol, and classification of error replies. Pure."""

from __future__ import annotations

from typing import Any

from celery_wheelbeat.dispatch import FailureKind

MULTI = b"*1\r\n$5\r\nMULTI\r\n"
EXEC = b"*1\r\n$4\r\nEXEC\r\n"


def bulk(value: bytes) -> bytes:
    """Return ``value`` as a bulk string (RESP)."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def command(*words: bytes) -> bytes:
    """Return ``words`` as a command, an array of bulk strings (RESP)."""
    return b"*%d\r\n%b" % (len(words), b"".join(map(bulk, words)))


def errors() -> Any:
    """Return the exceptions of redis-py."""
    import redis  # noqa: PLC0415 - an optional dependency, present wherever this is used

    return redis.exceptions


def response_error() -> type[Exception]:
    """Return the exception that an error reply becomes."""
    found: type[Exception] = errors().ResponseError
    return found


def forbids(error: Any) -> bool:
    """Return whether a batch was refused because of its commands or keys, not because of the server's state."""
    known = errors()
    if isinstance(error, (known.NoPermissionError, known.ClusterCrossSlotError, known.MovedError)):
        return True
    return "unknown command" in str(error) or "unsupported" in str(error)


def kind_of(error: Exception) -> FailureKind:
    """Return the kind of failure for the error reply to a push."""
    if "WRONGTYPE" in str(error):
        return FailureKind.UNROUTABLE
    return FailureKind.REFUSED  # OOM, READONLY, MISCONF, NOAUTH …: nothing was stored
