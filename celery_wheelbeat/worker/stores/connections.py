"""The connections of one store in one process: a free list, empty after a fork, emptied by a failure."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeVar

from celery_wheelbeat.errors import ClaimStoreDown

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")


class Connections(Generic[C]):
    """As many connections as executions run at the same time; threads and greenlets take turns with them."""

    def __init__(
        self,
        where: str,
        open_connection: Callable[[], C],
        close_connection: Callable[[C], object],
        errors: tuple[type[Exception], ...],
    ) -> None:
        self._where = where
        self._open = open_connection
        self._close = close_connection
        self._errors = errors
        self._pid = os.getpid()
        self._free: deque[C] = deque()
        self._inherited: list[deque[C]] = []

    def lend(self, work: Callable[Concatenate[C, P], R], *arguments: P.args, **options: P.kwargs) -> R:
        """Let ``work`` have a connection; a failure of the driver becomes ``ClaimStoreDown``.

        One on an idle connection is none yet: a server that was restarted has cut them all. They are closed, and
        ``work`` is done once more with a new one, which nothing in a store minds.
        """
        if self._pid != os.getpid():
            # kept: MySQLdb takes leave of the server when a connection is collected, over the parent's socket
            self._inherited.append(self._free)
            self._pid, self._free = os.getpid(), deque()
        free = self._free
        while True:
            try:
                connection, idle = free.pop(), True
            except IndexError:
                connection, idle = None, False
            try:
                connection = connection or self._open()
                answer = work(connection, *arguments, **options)
            except self._errors as error:
                self._shut(connection)
                self.close()
                if not idle:
                    raise ClaimStoreDown(f"the claim store {self._where} does not answer: {error!r}") from error
            except BaseException:
                # a soft time limit in mid-conversation: what the next reply belongs to is unknown
                self._shut(connection)
                raise
            else:
                free.append(connection)
                return answer

    def close(self) -> None:
        """Close the free connections."""
        while self._free:
            with suppress(IndexError):
                self._shut(self._free.pop())

    def _shut(self, connection: C | None) -> None:
        if connection is not None:
            with suppress(Exception):
                self._close(connection)
