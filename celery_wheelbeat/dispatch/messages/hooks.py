"""Detects code that could see or change a message on Celery's publish path.

Such code keeps a message on the celery lane. The answers describe the process at the time of the call. A caller that
caches one compares a ``Guard`` before each use, and ``settings_token`` about once a second. A reason is a sentence for
users: the cause, and the remedy.
"""

from __future__ import annotations

import os
from contextlib import suppress
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ReferenceType

from celery import Celery, Task, signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute
from celery.backends.base import Backend
from celery.beat import BeatLazyFunc
from kombu.messaging import Producer

if TYPE_CHECKING:
    from collections.abc import Iterator

_OURS = ("celery", "kombu", "amqp", "celery_wheelbeat")
_ANY_SENDER = id(None)
SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
_CONF_KEYS = (
    "task_always_eager", "task_send_sent_event", "task_protocol", "task_serializer", "task_compression",
    "task_default_queue", "task_default_priority", "task_default_delivery_mode", "task_repr_maxlevels",
)  # fmt: skip
_TASK_HOOKS = ("apply_async", "shadow_name", "_get_exec_options")
_OPTIONS = {
    "connection": "goes to a connection of its own",
    "producer": "goes through a producer of its own",
    "countdown": "has a countdown",
    "eta": "has an eta",
}


class Hook(NamedTuple):
    """Code of the user or of a third party on the publish path."""

    package: str
    """Top-level package of the code; empty if unknown."""
    what: str


def package_of(function: Any) -> str:
    """Return the top-level package of a function's code; empty for built-in kinds of wrappers."""
    plain = function.__func__ if type(function) is MethodType else function
    if type(plain) is not FunctionType:
        return type(plain).__module__.partition(".")[0] if type(plain).__module__ != "builtins" else ""
    return str(plain.__globals__.get("__name__", "")).partition(".")[0]


def _is_genuine(function: Any) -> bool:
    return type(function) in (FunctionType, MethodType) and package_of(function) in _OURS


def hooks(app: Any, scheduler: Any, task: str) -> list[Hook]:
    """Return every patch, override and signal receiver on the publish path of ``task``."""
    return [*_patches(app, scheduler), *_overrides(app.tasks.get(task)), *_receivers(task)]


def all_hooks(app: Any, scheduler: Any) -> list[Hook]:
    """Return the same for all registered tasks, with every receiver of a publish signal."""
    overridden = {hook: None for task in app.tasks.values() for hook in _overrides(task)}
    return [*_patches(app, scheduler), *overridden, *_receivers(None)]


def _beneath(function: Any) -> Any:
    """Return what ``later.install`` has wrapped; its wrap passes messages without an eta on unchanged."""
    return getattr(function, "wheelbeat_beneath", function) if package_of(function) == _OURS[-1] else function


def _path(app: Any, scheduler: Any, backend: Any) -> dict[str, Any]:
    """Return name → function for the publish path. Cheap: a few attribute look-ups."""
    amqp = app.amqp
    return {
        "Scheduler.apply_entry": scheduler.apply_entry,
        "Scheduler.apply_async": scheduler.apply_async,
        "Scheduler.send_task": scheduler.send_task,
        "Celery.send_task": _beneath(app.send_task),
        "Task.apply_async": Task.apply_async,
        "AMQP.create_task_message": amqp.create_task_message,
        "AMQP.send_task_message": amqp.send_task_message,
        "AMQP.as_task_v2": AMQP.as_task_v2,
        "Producer.publish": Producer.publish,
        "Producer._publish": Producer._publish,
        "Producer._prepare": Producer._prepare,
        "the result backend's on_task_call": backend.on_task_call,
    }


def _patches(app: Any, scheduler: Any) -> Iterator[Hook]:
    for name, function in _path(app, scheduler, app.backend).items():
        if not _is_genuine(function):
            package = package_of(function)
            yield Hook(package, f"{name} is replaced{f' by {package}' if package else ''}")
    if app.amqp.Producer is not Producer:
        yield Hook(app.amqp.Producer.__module__.partition(".")[0], "app.amqp.Producer is a class of its own")
    if not isinstance(app, Celery) or not isinstance(app.amqp, AMQP):
        yield Hook("", "the app or its AMQP class is not Celery's")


def _overrides(task: Any) -> Iterator[Hook]:
    for name in _TASK_HOOKS if task is not None else ():
        if name in task.__dict__ or getattr(type(task), name) is not getattr(Task, name):
            yield Hook(package_of(getattr(task, name)), f"{type(task).__name__}.{name} is overridden")


def _receivers(task: str | None) -> Iterator[Hook]:
    """Yield the signal receivers for messages of ``task``; None: of any task."""
    for signal in SIGNALS:
        for (_, sender), reference in signal.receivers or ():
            receiver = reference() if isinstance(reference, ReferenceType) else reference
            if receiver is None or (task is not None and sender not in (_ANY_SENDER, task)):
                continue
            whose = "" if sender == _ANY_SENDER or task is not None else f" of {sender}"
            yield Hook(
                package_of(receiver), f"{_named(receiver)} listens to {signal.name or 'a publish signal'}{whose}"
            )


def _named(code: Any) -> str:
    """Name a function or an object; the same in every process, because the name becomes a metric label."""
    module, name = getattr(code, "__module__", ""), getattr(code, "__qualname__", type(code).__qualname__)
    return f"{module}.{name}"


def configuration_reasons(app: Any) -> list[str]:
    """Return the settings that keep every message on the celery lane, as reasons."""
    conf = app.conf
    reasons = []
    if conf.task_always_eager:
        reasons.append("task_always_eager runs tasks inside beat")
    if conf.task_send_sent_event:
        reasons.append("task_send_sent_event publishes an event with each message")
    if conf.task_protocol != 2:
        reasons.append(f"task_protocol is {conf.task_protocol}; the fast lane speaks 2")
    reasons += [
        f"task_routes has a router of its own ({_named(route)}), which may decide differently for each message"
        for route in app.amqp.router.routes
        if not isinstance(route, MapRoute)
    ]
    return reasons


def entry_reasons(app: Any, entry: Any) -> list[str]:
    """Return the properties of an entry and its task that keep its messages on the celery lane, as reasons."""
    reasons = [
        f"its option {name!r} says that it {meaning}"
        for name, meaning in _OPTIONS.items()
        if entry.options.get(name) is not None
    ]
    values = (*(entry.args or ()), *(entry.kwargs or {}).values())
    if any(isinstance(value, BeatLazyFunc) for value in values):
        reasons.append("an argument is a BeatLazyFunc, evaluated for each run")
    task = app.tasks.get(entry.task)
    if getattr(task, "_dump_pydantic_arguments", None) is not None:
        reasons.append("its arguments go through pydantic")
    return reasons


class Guard:
    """Detects cheaply that an answer about hooks may be out of date: the token of a call differs from the last one."""

    def __init__(self, app: Any, scheduler: Any) -> None:
        self._app = app
        self._scheduler = scheduler
        self._backend: type = Backend
        """The class, because the backend object is per thread."""
        with suppress(Exception):  # each send reports a backend that cannot be built
            self._backend = type(app.backend)

    def __call__(self) -> tuple[object, ...]:
        """Return a token that changes with a connected signal, a patched function, swapped routes, or a fork."""
        amqp = self._app.amqp
        return (
            os.getpid(),
            *(tuple(key for key, _ in signal.receivers or ()) for signal in SIGNALS),
            *_path(self._app, self._scheduler, self._backend).values(),
            id(amqp.router),
            id(amqp.queues),
        )


def settings_token(app: Any) -> tuple[object, ...]:
    """Return the settings that affect messages. Slow (Celery's ``conf``); not for every batch."""
    conf = app.conf
    return (*(conf.get(key) for key in _CONF_KEYS), id(conf.get("task_routes")), str(app.timezone))
