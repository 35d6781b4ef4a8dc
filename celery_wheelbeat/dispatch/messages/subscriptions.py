"""Suppresses the subscription that Celery makes on a Redis result backend for each message.

It serves processes that wait for results, and waiting subscribes by itself. With the result backend down, each send
would wait for its time-outs and fail although the broker is up.
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
    """Keep the app's Redis result backend from subscribing to result channels inside the context.

    An ``on_task_call`` that user code has replaced stays in force. The backend object is per thread.
    """
    backend: Any = None
    with suppress(Exception):  # the send reports a backend that cannot be built
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
