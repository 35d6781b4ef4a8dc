"""One attempt to send one run through Celery: stamps its messages and records their outcomes.

``Scheduler.apply_entry`` swallows exceptions, so its return proves nothing. Every ``apply_async`` inside it reports to
the current attempt of its thread; a run without an accepted message was not sent. A watched producer records the
exceptions that leave its publish calls: only those describe the broker, all others come from user code. An attempt
never changes the given entry or options, which belong to the user.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.dispatch.failures import chain_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery_wheelbeat.dispatch import Run

_here = threading.local()


def current() -> Attempt | None:
    """Return the current attempt of this thread; None outside a lane."""
    return getattr(_here, "attempt", None)


def watched(producer: Any) -> Any:
    """Make a kombu ``producer`` report each publish call to the current attempt; returns the producer.

    Sets an attribute of the instance; the methods of the class stay replaceable at any time.
    """

    def publish(*args: Any, **kwargs: Any) -> Any:
        attempt = current()
        if attempt is None:
            return type(producer).publish(producer, *args, **kwargs)
        with attempt.publishing():
            return type(producer).publish(producer, *args, **kwargs)

    producer.publish = publish
    return producer


class Attempt:
    """Sends one run; ``accepted`` counts its accepted messages, ``errors`` lists the exceptions of the others."""

    def __init__(
        self,
        run: Run,
        options: Mapping[str, Any] = MappingProxyType({}),
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run = run
        self._options = options
        self._monotonic_s = monotonic_s
        self.accepted = 0
        self.errors: list[BaseException] = []
        """Exceptions of the messages that were not accepted."""
        self.publish_s = 0.0
        """Seconds spent in publish calls."""
        self._stamped = 0
        self._left_publish: list[BaseException] = []
        self._unpublished: BaseException | None = None
        """Exception that left the last publish call."""

    @contextmanager
    def open(self) -> Iterator[Attempt]:
        """Make this the attempt that ``current`` returns on this thread."""
        _here.attempt = self
        try:
            yield self
        finally:
            _here.attempt = None

    @contextmanager
    def message(self) -> Iterator[None]:
        """Record the outcome of one message; its exception propagates to Celery."""
        self._unpublished = None
        try:
            yield
        except BaseException as exc:
            self.errors.append(exc)
            raise
        self._count()

    def _count(self) -> None:
        if self._unpublished is None:
            self.accepted += 1
        else:  # user code swallowed it
            self.errors.append(self._unpublished)

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Record the outcome of one publish call of the producer."""
        began_s = self._monotonic_s()
        try:
            yield
        except BaseException as exc:
            self._unpublished = exc
            self._left_publish.append(exc)
            raise
        else:
            self._unpublished = None
        finally:
            self.publish_s += self._monotonic_s() - began_s

    def left_publish(self, exc: BaseException) -> bool:
        """Return whether ``exc`` or one of its causes left a publish call of this attempt."""
        return any(link is left for link in chain_of(exc) for left in self._left_publish)

    def stamp(self, entry: Any) -> Any:
        """Return a copy of ``entry`` with the run id, the ``wheelbeat_*`` headers and a fresh nonce.

        The user's ``task_id`` wins. Every message of a run (extensions send one per tenant) has a different id.
        """
        self._stamped += 1
        headers = {
            **(entry.options.get("headers") or {}),
            **self.run.headers,
            "celery_beat_task": True,
            "periodic_task_name": self.run.name,
            "wheelbeat_fire_ms": self.run.fire_ms,
            "wheelbeat_nonce": uuid.uuid4().hex,
        }
        stamped = entry.__class__.__new__(entry.__class__)
        stamped.__dict__.update(entry.__dict__)
        task_id = self.run.message_id(self._stamped)
        stamped.options = {**self._options, "task_id": task_id, **entry.options, "headers": headers, "retry": False}
        return stamped
