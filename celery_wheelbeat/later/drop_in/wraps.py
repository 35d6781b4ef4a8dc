"""The two methods of Celery that are wrapped, once in a process, and the apps for which that has an effect.

The classes are wrapped and not the apps: to reach ``app.control`` would read the settings, apps are pickled with their
parts, and Django's projects may create their app after ``ready()``.
"""

from __future__ import annotations

from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.app.control import Control

from celery_wheelbeat.later.drop_in.revoking import cancel
from celery_wheelbeat.later.drop_in.sending import DropIn

if TYPE_CHECKING:
    from collections.abc import Callable

BENEATH = "wheelbeat_beneath"
"""Attribute of a wrap: the method that it calls."""
_DROP_IN = "wheelbeat_drop_in"
"""Attribute of an app."""


class _Reach:
    """For which apps the wraps have an effect."""

    every_app = False
    send_task: Callable[..., Any] = staticmethod(Celery.send_task)
    """``Celery.send_task`` without the wrap."""


def wrap_celery(app: Any) -> None:
    """Wrap both methods, and let the wraps have an effect for ``app``; None: for every app."""
    _wrap_send_task()
    _wrap_revoke()
    if app is None:
        _Reach.every_app = True
    else:
        _put_into(app._get_current_object() if hasattr(app, "_get_current_object") else app)


def drop_in_of(app: Any) -> DropIn | None:
    """Return the drop-in of an app; None if the wraps have no effect for it."""
    found: DropIn | None = vars(app).get(_DROP_IN)
    return _put_into(app) if found is None and _Reach.every_app else found


def _put_into(app: Any) -> DropIn:
    drop_in = DropIn(app, MethodType(_Reach.send_task, app))
    return vars(app).setdefault(_DROP_IN, drop_in)  # type: ignore[no-any-return]  # two threads get the same


def _wrap_send_task() -> None:
    beneath = Celery.send_task
    if hasattr(beneath, BENEATH):
        return

    @wraps(beneath)
    def send_task(self: Any, *args: Any, **options: Any) -> Any:
        drop_in = drop_in_of(self)
        return beneath(self, *args, **options) if drop_in is None else drop_in.send_task(*args, **options)

    setattr(send_task, BENEATH, beneath)
    _Reach.send_task = staticmethod(beneath)
    Celery.send_task = send_task


def _wrap_revoke() -> None:
    beneath = Control.revoke
    if hasattr(beneath, BENEATH):
        return

    @wraps(beneath)
    def revoke(self: Any, task_id: Any, *args: Any, **options: Any) -> Any:
        drop_in = drop_in_of(self.app)
        if drop_in is not None and drop_in.from_s is not None:
            cancel(self.app, [task_id] if isinstance(task_id, str) else list(task_id))
        return beneath(self, task_id, *args, **options)

    setattr(revoke, BENEATH, beneath)
    Control.revoke = revoke
