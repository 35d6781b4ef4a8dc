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
    if isinstance(expires, str):
        try:
            expires = datetime.fromisoformat(expires)
        except ValueError:
            return False
    if not isinstance(expires, datetime):
        return False
    aware = expires if expires.tzinfo is not None else expires.replace(tzinfo=UTC)
    return aware.timestamp() * 1000 <= now_ms
