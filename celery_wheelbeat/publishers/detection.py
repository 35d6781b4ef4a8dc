"""Detection: who could see or change a message on Celery's own path, so that the fast lane must not take it.

Everything here is a question about the process as it is now; whoever keeps an answer compares ``guard`` before each
use, and ``settings_token`` about once a second. A reason is a sentence for people: what it is, and what to do about it.
"""

from __future__ import annotations

import os
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ReferenceType

from celery import Celery, Task, signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute
from celery.beat import BeatLazyFunc, Scheduler
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
    """Somebody else's code on the way of a message."""

    package: str
    """Top-level package of the code; empty where it cannot be told."""
    what: str


def package_of(function: Any) -> str:
    """Return the top-level package whose code a function is; wrappers of foreign kinds have none."""
    plain = function.__func__ if type(function) is MethodType else function
    if type(plain) is not FunctionType:
        return type(plain).__module__.partition(".")[0] if type(plain).__module__ != "builtins" else ""
    return str(plain.__globals__.get("__name__", "")).partition(".")[0]


def _is_genuine(function: Any) -> bool:
    return type(function) in (FunctionType, MethodType) and package_of(function) in _OURS


def hooks(app: Any, scheduler: Any, task: str) -> list[Hook]:
    """Return everything that is patched, overridden or connected on the way of the messages of ``task``."""
    return [*_patches(app, scheduler), *_receivers(task)]


def _patches(app: Any, scheduler: Any) -> Iterator[Hook]:
    amqp = app.amqp
    path = {
        "Scheduler.apply_entry": (scheduler, "apply_entry"),
        "Scheduler.apply_async": (scheduler, "apply_async"),
        "Scheduler.send_task": (scheduler, "send_task"),
        "Celery.send_task": (app, "send_task"),
        "Task.apply_async": (Task, "apply_async"),
        "AMQP.create_task_message": (amqp, "create_task_message"),
        "AMQP.send_task_message": (amqp, "send_task_message"),
        "AMQP.as_task_v2": (AMQP, "as_task_v2"),
        "Producer.publish": (Producer, "publish"),
        "Producer._publish": (Producer, "_publish"),
        "Producer._prepare": (Producer, "_prepare"),
        "the result backend's on_task_call": (app.backend, "on_task_call"),
    }
    for name, (owner, attribute) in path.items():
        function = getattr(owner, attribute)
        if not _is_genuine(function):
            yield Hook(package_of(function), f"{name} is replaced")
    if app.amqp.Producer is not Producer:
        yield Hook(app.amqp.Producer.__module__.partition(".")[0], "app.amqp.Producer is a class of its own")
    if not isinstance(app, Celery) or not isinstance(amqp, AMQP):
        yield Hook("", "the app or its AMQP class is not Celery's")


def _receivers(task: str) -> Iterator[Hook]:
    for signal in SIGNALS:
        for (_, sender), reference in signal.receivers or ():
            receiver = reference() if isinstance(reference, ReferenceType) else reference
            if receiver is None or sender not in (_ANY_SENDER, task):
                continue
            named = f"{getattr(receiver, '__module__', '')}.{getattr(receiver, '__qualname__', repr(receiver))}"
            yield Hook(package_of(receiver), f"{named} listens to {signal.name or 'a publish signal'}")


def configuration_reasons(app: Any) -> list[str]:
    """Return what in the configuration keeps every message on the celery lane."""
    conf = app.conf
    reasons = []
    if conf.task_always_eager:
        reasons.append("task_always_eager runs tasks inside beat")
    if conf.task_send_sent_event:
        reasons.append("task_send_sent_event publishes an event with each message")
    if conf.task_protocol != 2:
        reasons.append(f"task_protocol is {conf.task_protocol}; the fast lane speaks 2")
    reasons += [
        f"task_routes has a router of its own ({route!r}), which may decide anew for each message"
        for route in app.amqp.router.routes
        if not isinstance(route, MapRoute)
    ]
    return reasons


def entry_reasons(app: Any, entry: Any) -> list[str]:
    """Return what keeps the messages of one entry on the celery lane."""
    reasons = [
        f"its option {name!r} says that it {meaning}"
        for name, meaning in _OPTIONS.items()
        if entry.options.get(name) is not None
    ]
    values = (*(entry.args or ()), *(entry.kwargs or {}).values())
    if any(isinstance(value, BeatLazyFunc) for value in values):
        reasons.append("an argument is a BeatLazyFunc, evaluated for each run")
    task = app.tasks.get(entry.task)
    if task is not None:
        reasons += [
            f"{type(task).__name__}.{name} is overridden"
            for name in _TASK_HOOKS
            if name in task.__dict__ or not _is_genuine_hook(type(task), name)
        ]
        if getattr(task, "_dump_pydantic_arguments", None) is not None:
            reasons.append("its arguments go through pydantic")
    return reasons


def _is_genuine_hook(task_class: type, name: str) -> bool:
    return getattr(task_class, name) is getattr(Task, name)


def guard(app: Any) -> tuple[object, ...]:
    """Return a token that changes when somebody connects a signal, patches a function, swaps routes, or forks."""
    amqp = app.amqp
    return (
        os.getpid(),
        *(tuple(key for key, _ in signal.receivers or ()) for signal in SIGNALS),
        app.send_task.__func__ if type(app.send_task) is MethodType else app.send_task,
        Scheduler.apply_entry,
        Task.apply_async,
        Producer.publish,
        Producer._publish,
        amqp.send_task_message,
        id(amqp.router),
        id(amqp.queues),
    )


def settings_token(app: Any) -> tuple[object, ...]:
    """Return the settings that shape messages. Slow (Celery's ``conf``): not for every batch."""
    conf = app.conf
    return (*(conf.get(key) for key in _CONF_KEYS), id(conf.get("task_routes")), str(app.timezone))
