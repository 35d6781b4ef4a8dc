"""The calls of an application for coroutines, named as Django names such methods: ``aapply_at``, ``acancel``, ….

A call runs in a thread. With Django that is the one thread in which Django runs synchronous code of a request, so that
the connection is the one of that code. Never: a transaction over several awaits, which Django does not have either.
"""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from celery_wheelbeat.later import calls

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
R = TypeVar("R")


def _awaited(call: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    @wraps(call)
    async def awaited(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            from asgiref.sync import sync_to_async  # noqa: PLC0415 - only Django brings it
        except ImportError:
            return await asyncio.to_thread(call, *args, **kwargs)
        return await sync_to_async(call, thread_sensitive=True)(*args, **kwargs)

    awaited.__name__ = awaited.__qualname__ = f"a{call.__name__}"
    return awaited


aapply_at = _awaited(calls.apply_at)
aapply_many = _awaited(calls.apply_many)
anow = _awaited(calls.now)
acancel = _awaited(calls.cancel)
amove = _awaited(calls.move)
apending = _awaited(calls.pending)
acount = _awaited(calls.count)
