"""The expiry of a message: whether it has passed before the message is sent.

Seconds count from the send, as in Celery, so only an instant can have passed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def has_expired(expires: Any, now_ms: int) -> bool:
    """Say whether the option ``expires`` of ``apply_async`` names an instant that has come; without a zone it is UTC.

    What cannot be read is left to Celery, which says so.
    """
    try:
        instant = datetime.fromisoformat(expires) if isinstance(expires, str) else expires
        if not isinstance(instant, datetime):
            return False
        aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
        return aware.timestamp() * 1000 <= now_ms
    except Exception:  # a zone of the user's may raise anything
        return False
