"""Instead of ``send_task``: a call that is due late enough is stored, every other one goes to Celery."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kombu.utils import json as kombu_json

from celery_wheelbeat.errors import InvalidRequest
from celery_wheelbeat.jobs.rows import Limits
from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.drop_in.counts import STORED, Counts
from celery_wheelbeat.later.drop_in.routing import Call, due_ms, key_of, stored_options, why_not
from celery_wheelbeat.later.opening import application_connection
from celery_wheelbeat.later.run import MAX_KEY, LaterRun, later_run
from celery_wheelbeat.later.writers import writer_of
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("celery_wheelbeat.later")

_POSITIONAL = ("countdown", "eta", "task_id", "producer", "connection", "router", "result_cls")
"""Parameters of ``send_task`` after name, args and kwargs."""
_JSON = ("json", "application/json")


class DropIn:
    """Sends the tasks of one app. ``send``: ``send_task`` as Celery has it."""

    def __init__(self, app: Any, send: Callable[..., Any]) -> None:
        self.app = app
        self.counts = Counts()
        self._send = send

    @cached_property
    def from_s(self) -> float | None:
        """``wheelbeat_later_from``. Without it, a mistake in another setting must not keep a task from being sent."""
        if getattr(self.app.conf, "wheelbeat_later_from", None) is None:
            return None
        return self._settings.later_from

    @cached_property
    def _settings(self) -> Settings:
        return Settings.from_conf(self.app.conf)

    @cached_property
    def _limits(self) -> Limits:
        return Limits.of(self._settings, kombu_json.loads)

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any) -> Any:
        """See ``Celery.send_task``."""
        given = {**dict(zip(_POSITIONAL, positional, strict=False)), **options}
        if (given.get("countdown") or given.get("eta")) and self.from_s is not None:
            now_ms = SystemClock().wall_ms()
            at_ms = due_ms(given, now_ms)
            if at_ms is not None and at_ms - now_ms >= self.from_s * 1000:
                return self._routed(Call(name, args, kwargs, given), at_ms, now_ms)
        return self._send(name, args, kwargs, *positional, **options)

    def _routed(self, call: Call, at_ms: int, now_ms: int) -> Any:
        reason = why_not(call) or self._why_not(call)
        if reason is not None:
            self.counts.add(reason)
            return self._by_celery(call)
        try:
            run = self._run(call, at_ms, now_ms)
        except InvalidRequest as error:
            self.counts.add("options")
            logger.debug("wheelbeat: %s is sent by Celery itself: %s", call.name, error)
            return self._by_celery(call)
        task_id = call.options.get("task_id") or run.id
        try:
            with application_connection(None, self.app, savepoint=True) as connection:
                writer_of(caller_of(connection)).insert([run])
        except Exception as error:  # drivers have errors of many kinds
            self.counts.add_failure(error)
            # The same id: if the commit had an effect after all, both messages are the same task.
            return self._by_celery(call, task_id=task_id)
        self.counts.add(STORED)
        return self._result(task_id, call.options)

    def _by_celery(self, call: Call, **more: Any) -> Any:
        return self._send(call.name, call.args, call.kwargs, **{**call.options, **more})

    def _why_not(self, call: Call) -> str | None:
        """Return the reason why a call cannot be stored, as far as the app shows."""
        conf, options = self.app.conf, call.options
        producer = options.get("producer") or options.get("publisher")
        if producer is not None and not self._is_pooled(producer):
            return "connection"
        task = options.get("task_type") or self.app.tasks.get(call.name)
        if (options.get("serializer") or getattr(task, "serializer", None) or conf.task_serializer) not in _JSON:
            return "serializer"
        if str(conf.result_backend or "").partition(":")[0] == "rpc" and not options.get("ignore_result"):
            return "result_backend"
        return None

    def _is_pooled(self, producer: Any) -> bool:
        """Return whether a producer comes from the app's pool, as those with which groups and chords send do."""
        if "release" not in vars(producer):  # kombu's pools add it
            return False
        its, mine = producer.connection, self.app.pool.connection
        return its is not None and _place(its) == _place(mine)

    def _run(self, call: Call, at_ms: int, now_ms: int) -> LaterRun:
        task_id = call.options.get("task_id")
        key = key_of(task_id) if task_id else None
        if key is not None and len(key) > MAX_KEY:
            raise InvalidRequest(f"task_id: {task_id:.80}: expected at most {MAX_KEY - len(key_of(''))} characters")
        options = stored_options(self._inherited(call.options))
        if options.get("serializer") == self.app.conf.task_serializer:
            del options["serializer"]
        signature = {"task": call.name, "args": call.args, "kwargs": call.kwargs, "options": options}
        return later_run(signature, at_ms, now_ms=now_ms, key=key, limits=self._limits)

    def _inherited(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options with what a task that is running passes on, as Celery does."""
        parent = None if options.get("root_id") and options.get("parent_id") else self.app.current_worker_task
        if not parent:
            return options
        request = parent.request
        found = {
            **options,
            "root_id": options.get("root_id") or request.root_id or request.id,
            "parent_id": options.get("parent_id") or request.id,
        }
        if self.app.conf.task_inherit_parent_priority:
            found.setdefault("priority", (request.delivery_info or {}).get("priority"))
        return found

    def _result(self, task_id: str, options: dict[str, Any]) -> Any:
        result = (options.get("result_cls") or self.app.AsyncResult)(task_id)
        result.ignored = options.get("ignore_result")
        if options.get("add_to_parent", True):
            parent = self.app.current_worker_task
            if parent:
                parent.add_trail(result)
        return result


def _place(connection: Any) -> tuple[Any, ...]:
    """Return which broker a connection leads to; all servers of a list that fails over are one."""
    if len(connection.alt) > 1:
        return tuple(connection.alt)
    return connection.as_uri(include_password=True), repr(connection.transport_options)
