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
    """Pool of as many connections as executions at the same time; threads and greenlets share them."""

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
        """Call ``work`` with a connection; an error of the driver becomes ``ClaimStoreDown``.

        After an error on an idle connection (a restarted server has cut them all), all idle ones are closed and
        ``work`` is repeated once on a new connection; the operations of a store are safe to repeat.
        """
        if self._pid != os.getpid():
            # kept alive: MySQLdb sends a quit command over the parent's socket when a connection is collected
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
                # a soft time limit during an exchange: the next reply may belong to an earlier command
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
