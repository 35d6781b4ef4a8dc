"""SIGTERM and SIGINT of a running beat: the first one that ends it is recorded, later ones do not disturb the stop.

Celery's handler closes the scheduler and raises ``SystemExit``. The exception may vanish, because Python raises it
where the main thread happens to be: in a finaliser, or in a callback from C. A second signal would interrupt the
handler of the first, cut the stop short, or wait for a lock that the first holds. Therefore this module calls the
handlers, one at a time, and remembers in ``taken`` that one of them has raised. Only the main thread executes handlers;
in any other thread ``install`` does nothing.
"""

from __future__ import annotations

import atexit
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = (signal.SIGTERM, signal.SIGINT)
DROPPED_FOR_S = 10.0
"""A stop takes up to 3 s, and Celery's remote control as long again. A later signal raises ``SystemExit``."""


class EndSignals:
    """Wraps the installed handlers of SIGTERM and SIGINT."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.taken = False
        """True after a handler has raised: the beat must end, even if the exception was lost."""
        self._monotonic_s = monotonic_s
        self._handlers: dict[int, Callable[[int, Any], object]] = {}
        self._taken_s = 0.0
        self._holding = False
        self._held: int | None = None

    def install(self) -> None:
        """Replace the current handlers; a signal without a handler keeps its default action."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in NUMBERS:
            handler = signal.getsignal(number)
            if callable(handler) and handler != self._take:
                self._handlers[number] = handler
                signal.signal(number, self._take)

    def hold(self) -> None:
        """Defer signals until ``release``."""
        self._holding = True

    def release(self) -> None:
        """Restore the handlers and raise the deferred signal. After a signal that ended the beat, do neither."""
        if not self.taken:
            for number, handler in self._handlers.items():
                if signal.getsignal(number) == self._take:
                    signal.signal(number, handler)
        self._holding, held, self._held = False, self._held, None
        if held is not None and not self.taken:
            signal.raise_signal(held)

    def _take(self, number: int, frame: Any) -> None:
        if self.taken:
            if self._monotonic_s() - self._taken_s > DROPPED_FOR_S:
                raise SystemExit
            return
        if self._holding:
            self._held = number
            return
        self.taken, self._taken_s = True, self._monotonic_s()
        try:
            self._handlers[number](number, frame)
        except BaseException:
            signal.signal(number, self._take)  # the handler of an embedded beat has already set the default action
            atexit.register(self._ignore)
            raise
        self.taken = False

    def _ignore(self) -> None:
        """Python is about to restore the default actions, which would change the exit status."""
        for number in self._handlers:
            signal.signal(number, signal.SIG_IGN)
