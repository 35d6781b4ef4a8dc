"""Sentinel queries for claims: each Sentinel is asked once, with the time-out of a claim.

redis-py asks each Sentinel ten times before the next one; with a Sentinel that died with its master, tasks would wait
for minutes. The connections of results keep redis-py's behaviour: shared objects are copied before they are changed.
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
