"""Expiry of a message before it is sent.

Only an instant can have passed: a number of seconds counts from the send, as in Celery.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


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
