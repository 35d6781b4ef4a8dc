"""Connections that are kept between calls, for applications without Django.

A connection serves one call at a time, in any thread or greenlet. A process never uses one that its parent has opened.
Never: repeats a call. A connection that was idle is asked for an answer before a call gets it.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEPT = 8
"""Most idle connections to one database."""
TRUSTED_S = 1.0
"""A connection that was idle for longer is asked for an answer first: its server may have closed it."""


class KeptConnections:
    """The idle connections of one process to one database."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._clock = SystemClock()
        self._pid = os.getpid()
        self._idle: deque[tuple[Any, float]] = deque()
        """(connection, when it became idle)."""
        self._inherited: list[deque[tuple[Any, float]]] = []
        """Those of parent processes: to close one would end the session of the parent."""

    @contextmanager
    def lent(self) -> Iterator[Any]:
        """Yield a connection, and commit at the end of the block; whatever fails in it closes the connection."""
        connection = self._taken()
        try:
            yield connection
            connection.commit()
        except BaseException:
            _close(connection)  # the server rolls back
            raise
        if len(self._idle) < KEPT:
            self._idle.append((connection, self._clock.monotonic_s()))
        else:
            _close(connection)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            _close(self._idle.pop()[0])

    def _taken(self) -> Any:
        if self._pid != os.getpid():
            self._inherited.append(self._idle)
            self._pid, self._idle = os.getpid(), deque()
        while True:
            try:
                connection, since_s = self._idle.pop()
            except IndexError:
                return self._connect()
            if self._clock.monotonic_s() - since_s < TRUSTED_S or _answers(connection):
                return connection
            _close(connection)


def _answers(connection: Any) -> bool:
    try:
        cursor = connection.cursor()
        cursor.execute("SELECT 1")
        cursor.fetchall()
        cursor.close()
        connection.rollback()
    except Exception:
        return False
    return True


def _close(connection: Any) -> None:
    with suppress(Exception):  # it is discarded
        connection.close()
