"""The connections of one store in one process: a free list, empty after a fork, emptied by a failure."""

from __future__ import annotations

import os
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from celery_wheelbeat.errors import ClaimStoreDown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

C = TypeVar("C")


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

    @contextmanager
    def borrow(self) -> Iterator[C]:
        """Lend a connection; a failure of the driver becomes ``ClaimStoreDown`` and closes all free ones."""
        if self._pid != os.getpid():
            # kept: MySQLdb takes leave of the server when a connection is collected, over the parent's socket
            self._inherited.append(self._free)
            self._pid, self._free = os.getpid(), deque()
        free = self._free
        connection = None
        try:
            connection = free.pop() if free else self._open()
            yield connection
        except self._errors as error:
            self._discard(connection)
            raise ClaimStoreDown(f"the claim store {self._where} does not answer: {error!r}") from error
        except BaseException:
            # a soft time limit in mid-conversation: what the next reply belongs to is unknown
            if connection is not None:
                self._shut(connection)
            raise
        else:
            free.append(connection)

    def close(self) -> None:
        """Close the free connections."""
        self._discard(None)

    def _discard(self, broken: C | None) -> None:
        if broken is not None:
            self._shut(broken)
        while self._free:
            with suppress(IndexError):
                self._shut(self._free.pop())

    def _shut(self, connection: C) -> None:
        with suppress(Exception):
            self._close(connection)
