"""One attempt to send one run through Celery: what is stamped on its messages, and what became of them.

``Scheduler.apply_entry`` swallows exceptions, so nothing may be concluded from its return. Every ``apply_async`` inside
it reports to the attempt that its thread works on; an attempt that heard of no accepted message was not sent.
It must never change the entry or the options that it is given: they belong to the user.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_wheelbeat.publishers import Run

_here = threading.local()


def current() -> Attempt | None:
    """Return the attempt that this thread works on; None outside of a lane."""
    return getattr(_here, "attempt", None)


class Attempt:
    """Sends one run; ``errors`` and ``accepted`` tell what its messages came to."""

    def __init__(self, run: Run, options: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.run = run
        self._options = options
        self.accepted = 0
        self.errors: list[BaseException] = []
        self._stamped = 0

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
        """Record the outcome of one message; what it raised goes on to Celery."""
        try:
            yield
        except BaseException as exc:
            self.errors.append(exc)
            raise
        self.accepted += 1

    def stamp(self, entry: Any) -> Any:
        """Return a copy of ``entry`` that carries the run id, our headers and a fresh nonce.

        The user's ``task_id`` wins. Each message of one run (extensions send once per tenant) has an id of its own.
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
