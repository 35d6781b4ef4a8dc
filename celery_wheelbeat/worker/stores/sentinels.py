"""Sentinels as claims ask them: each once, and for no longer than a claim waits for its server.

redis-py asks each Sentinel ten times over before it turns to the next one, and one that has died with its master keeps
silent each time: minutes in which tasks would wait. Results go on as they are: what is shared with them is copied.
"""

from __future__ import annotations

import copy
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry


def asked_once(asking: Any, timeout_s: float) -> Any:
    """Return a copy of ``asking``, the ``connection_pool`` among the parameters of a connection to the master."""
    asking = copy.copy(asking)
    asking.sentinel_manager = manager = copy.copy(asking.sentinel_manager)
    manager.sentinel_kwargs = {
        **manager.sentinel_kwargs,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    known = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
    manager.sentinels = [Redis(at["host"], at["port"], **manager.sentinel_kwargs) for at in known]
    return asking
