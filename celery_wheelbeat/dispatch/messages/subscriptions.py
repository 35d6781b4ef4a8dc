"""Subscriptions of a Redis result backend: Celery makes one for each message, a beat needs none.

They serve a process that waits for results; waiting itself subscribes. A result backend that is away would hold up each
send for its time-outs, and fail it, though the broker is there.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from celery.backends.base import Backend

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN = "celery.backends.redis"


@contextmanager
def unsubscribed(app: Any) -> Iterator[None]:
    """Keep the app's Redis result backend from subscribing to the channel of a run that is made meanwhile.

    An ``on_task_call`` that somebody has replaced stays in force. The backend is one object for each thread.
    """
    backend: Any = None
    with suppress(Exception):  # whatever a backend that cannot be built raises: the send says so
        backend = app.backend
    if not isinstance(backend, Backend) or _is_other(backend):
        yield
        return
    backend.__dict__["on_task_call"] = lambda *_args, **_kwargs: None
    try:
        yield
    finally:
        backend.__dict__.pop("on_task_call", None)


def _is_other(backend: Any) -> bool:
    return "on_task_call" in backend.__dict__ or getattr(type(backend).on_task_call, "__module__", "") != _OWN
