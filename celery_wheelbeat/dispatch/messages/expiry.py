"""Expiry of a message: whether it has passed, and what of it is written into the message.

Only an instant can have passed: a number of seconds counts from the send, as in Celery. The header ``expires`` of a
relative expiry depends on the time of the send; with an instant, the property ``expiration`` does.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from celery_wheelbeat.dispatch.messages.byte_ranges import ByteRanges
from celery_wheelbeat.dispatch.messages.run_ids import rows_of
from celery_wheelbeat.dispatch.messages.template import LIFETIME_BYTES, Uncut

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.dispatch.messages.patterns import Own
    from celery_wheelbeat.dispatch.messages.recording import Recording
    from celery_wheelbeat.dispatch.messages.run_ids import Octets
    from celery_wheelbeat.schedules.kinds import Int64s

_TIME_LENGTHS = (32, 26)
"""Lengths of ISO 8601 times with microseconds, with and without an offset."""
_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)
_FEW = 32
"""Up to this many distinct times are written one by one."""


def has_expired(expires: Any, now_ms: int) -> bool:
    """Return whether the option ``expires`` of ``apply_async`` is an instant that has passed; naive instants are UTC.

    False for values that cannot be read: Celery reports them.
    """
    try:
        instant = datetime.fromisoformat(expires) if isinstance(expires, str) else expires
        if not isinstance(instant, datetime):
            return False
        aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
        return aware.timestamp() * 1000 <= now_ms
    except Exception:  # a user-defined zone may raise anything
        return False


def has_all_digits(recording: Recording) -> bool:
    """Return whether the expiry, if any, has full length: Python omits microseconds that are 0."""
    expires = recording.headers.get("expires")
    return expires is None or len(expires) in _TIME_LENGTHS


def lifetime_of(recording: Recording) -> timedelta | None:
    """Return the relative expiry, to the millisecond; the comparison of two recordings detects a fixed one."""
    if recording.headers.get("expires") is None:
        return None
    try:
        return timedelta(milliseconds=int(recording.properties["expiration"]))
    except (KeyError, ValueError):
        raise Uncut("it expires without saying after how long") from None


def expected_now(recording: Recording, lifetime: timedelta | None, own: Own) -> datetime:
    """Return the instant at which a recorded message with an expiry was made.

    ``lifetime``: the relative expiry if it is the same for all jobs.
    """
    if own.expires_at is not None:
        left = timedelta(milliseconds=int(recording.properties["expiration"]) + 0.5)
        return datetime.fromisoformat(own.expires_at) - left
    if own.expires_s is not None:
        lifetime = timedelta(seconds=own.expires_s)
    if lifetime is None or recording.headers.get("expires") is None:
        return datetime.min  # noqa: DTZ901 - not used without an expiry
    return datetime.fromisoformat(recording.headers["expires"]) - lifetime


def written_expiry(own: Own) -> bytes:
    """Return a job-specific expiry as cached parts hold it, in microseconds: a lifetime, or an instant since 1970."""
    if own.expires_at is not None:
        microseconds = (datetime.fromisoformat(own.expires_at) - _EPOCH) // _MICROSECOND
    else:
        microseconds = timedelta(seconds=own.expires_s or 0) // _MICROSECOND  # rounded as Celery does
    return microseconds.to_bytes(LIFETIME_BYTES, "little", signed=True)


def left_us(now: datetime, instants: Octets) -> Int64s:
    """Return the microseconds from ``now`` to each of ``instants`` (n × ``LIFETIME_BYTES``); not above 0: expired."""
    return instants.view("<i8").ravel() - (now - _EPOCH) // _MICROSECOND


def left_ms(now: datetime, instants: Octets) -> Int64s:
    """Return the same in whole milliseconds, at least 0, rounded as Celery and kombu do."""
    return (np.maximum(left_us(now, instants), 0) / 1e6 * 1000).astype(np.int64)


def texts_of_numbers(values: Int64s, write: Callable[[int], bytes]) -> ByteRanges:
    """Return ``write`` of each value; called once per distinct value."""
    distinct, inverse = np.unique(values, return_inverse=True)
    texts = ByteRanges.of([write(value) for value in distinct.tolist()])
    return ByteRanges(texts.buffer, texts.start[inverse], texts.length[inverse])


def expiries(now: datetime, lifetimes: Octets) -> Octets | bytes:
    """Return the header ``expires`` for each of ``lifetimes`` (n × ``LIFETIME_BYTES``); one value if all are equal."""
    distinct, inverse = np.unique(lifetimes.view("<i8").ravel(), return_inverse=True)
    base = now.astimezone(UTC)
    if len(distinct) > _FEW and str(now.tzinfo) == "UTC":
        return _in_utc(base, distinct)[inverse]
    texts = [
        (base + timedelta(microseconds=one)).astimezone(now.tzinfo).isoformat(timespec="microseconds").encode()
        for one in distinct.tolist()
    ]
    return texts[0] if len(texts) == 1 else rows_of(texts)[inverse]


def _in_utc(base: datetime, lifetimes_us: Any) -> Octets:
    """Return the same for many distinct lifetimes, four times faster."""
    instants = np.datetime64(base.replace(tzinfo=None), "us") + lifetimes_us.astype("timedelta64[us]")
    texts = np.datetime_as_string(instants, unit="us").astype("S26").view(np.uint8).reshape(-1, 26)
    offset = np.broadcast_to(np.frombuffer(b"+00:00", np.uint8), (len(texts), 6))
    return np.hstack((texts, offset))
