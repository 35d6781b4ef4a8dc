"""A thread with one owner: start, a loop with a stamp, rest, and a stop within a deadline.

The thread calls ``begin`` once, ``turn`` again and again, and ``end`` once, whatever happened before. An ``Exception``
of ``turn`` goes to ``failed``, and the loop continues. Anything else ends the thread, is logged, and is kept in
``ended_by``. The owner calls ``start`` in the process that needs the thread, so after any fork.
"""

from __future__ import annotations

import logging
import threading
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_wheelbeat.runtime.mailbox import Wake

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.runtime.clock import Clock

logger = logging.getLogger(__name__)


def _nothing() -> None: ...


def _always() -> bool:
    return True


def _ends(error: Exception) -> float:
    raise error


@dataclass(frozen=True, slots=True)
class ThreadBody:
    """The calls of a thread. All of them run in it, except ``interrupt``."""

    turn: Callable[[], float]
    """One iteration of the loop; returns the seconds to rest after it."""
    failed: Callable[[Exception], float] = _ends
    """Recover from an exception of ``turn``; returns the seconds to rest. Default: the exception ends the thread."""
    begin: Callable[[], None] = _nothing
    """Called before the loop."""
    end: Callable[[], None] = _nothing
    """Called after the loop, also if an exception ended it."""
    may_end: Callable[[], bool] = _always
    """Return whether nothing is left to do; asked after ``stop``, before the deadline."""
    interrupt: Callable[[], None] = _nothing
    """End a wait other than ``OwnedThread.rest``; called by ``stop``, in the owner's thread."""


class OwnedThread:
    """Runs one body. The owner starts and stops the thread; the body calls ``stamp`` and ``rest``.

    Any thread may read ``stamp_s``, ``ended_by`` and the properties.
    """

    def __init__(self, name: str, clock: Clock, body: ThreadBody) -> None:
        self.ended_by: BaseException | None = None
        """The exception that ended the thread; user code in it may raise ``SystemExit``."""
        self.stamp_s = clock.monotonic_s()
        """Monotonic instant of the last sign of life."""
        self._name = name
        self._clock = clock
        self._body = body
        self._stop_at_s: float | None = None
        self._rest = Wake()
        self._thread: threading.Thread | None = None

    # The owner's side.

    def start(self) -> None:
        """Start the thread. User code in it sees the context variables of the caller."""
        run = copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), name=self._name, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ask the thread to end once nothing is left to do, and within ``timeout_s``. The first call counts."""
        if self._stop_at_s is None:
            self._stop_at_s = self._clock.monotonic_s() + timeout_s
        self._rest.ring()
        self._body.interrupt()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, up to ``timeout_s``."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Stop the thread and wait for its end, up to ``timeout_s``."""
        self.stop(timeout_s)
        self.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    # The body's side.

    @property
    def is_stopping(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stop_at_s is not None

    @property
    def is_late(self) -> bool:
        """Whether the deadline of ``stop`` has passed."""
        return self._stop_at_s is not None and self._clock.monotonic_s() >= self._stop_at_s

    def stamp(self) -> None:
        """Show that the thread is alive."""
        self.stamp_s = self._clock.monotonic_s()

    def rest(self, seconds: float) -> None:
        """Wait up to ``seconds``; ``stop`` ends the wait."""
        if seconds > 0 and not self.is_stopping:
            self._rest.wait(seconds)

    def _run(self) -> None:
        try:
            self.stamp()
            self._body.begin()
            while not self._is_over():
                rest_s = self._turn()
                if rest_s > 0 and not self._is_over():
                    self._rest_between(rest_s)
        except BaseException as error:  # kept for the owner
            self._end_by(error)
        try:
            self._body.end()
        except BaseException as error:
            self._end_by(error)

    def _is_over(self) -> bool:
        return self.is_stopping and (self._body.may_end() or self.is_late)

    def _turn(self) -> float:
        self.stamp()
        try:
            return self._body.turn()
        except Exception as error:
            return self._body.failed(error)

    def _rest_between(self, seconds: float) -> None:
        """Rest between two turns; ``stop`` ends the rest, and a later one ends at the deadline."""
        if self._stop_at_s is None:
            self.rest(seconds)
        else:
            Wake().wait(min(seconds, self._stop_at_s - self._clock.monotonic_s()))

    def _end_by(self, error: BaseException) -> None:
        if self.ended_by is None:
            self.ended_by = error
        logger.critical("thread %s has ended: %r", self._name, error, exc_info=error)
