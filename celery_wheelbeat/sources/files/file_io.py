"""The I/O thread of a beat without a database: marks and status in one file beside Celery's schedule file."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.runtime.mailbox import Mailbox
from celery_wheelbeat.sources.messages import News, Opened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_wheelbeat.jobs.definitions import Finished
    from celery_wheelbeat.runtime.clock import Clock
    from celery_wheelbeat.sources.files.mark_file import MarkFile

_TURN_S = 1.0


class FileIO:
    """Implements ``messages.Desk``. A hanging file system delays only the mark."""

    def __init__(self, file: MarkFile, clock: Clock, wake: Callable[[], None]) -> None:
        self._file = file
        self._clock = clock
        self._wake = wake
        self._rows: Mailbox[Mapping[str, Any] | None] = Mailbox()
        self._news: Mailbox[News] = Mailbox()
        self._stamp_s = clock.monotonic_s()
        self._thread = threading.Thread(target=self._loop, name="wheelbeat-file", daemon=True)

    def start(self) -> None:
        """See ``Desk``."""
        self._thread.start()

    def take(self) -> Sequence[News]:
        """See ``Desk``."""
        news = []
        while not self._news.empty():
            news.append(self._news.get())
        return news

    def report(self, row: Mapping[str, Any]) -> None:
        """See ``Desk``."""
        self._rows.put(row)

    def finish(self, finished: Mapping[int, Finished]) -> None:
        """See ``Desk``; entries are never one-off."""

    def quarantine(self, added: Mapping[str, tuple[str, str]], lifted: Sequence[str]) -> None:
        """See ``Desk``; the status document names broken entries."""

    def reread(self, ids: Sequence[int] | None) -> None:
        """See ``Desk``; there are no monitors."""

    def stamp_s(self) -> float:
        """See ``Desk``."""
        return self._stamp_s

    def status(self) -> Mapping[str, Any]:
        """See ``Desk``."""
        return {"kind": "file", "path": str(self._file.path)}

    def close(self, timeout_s: float) -> None:
        """See ``Desk``."""
        self._rows.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _loop(self) -> None:
        marks = {destination: [document] for destination, document in self._file.read().items()}
        self._news.put(Opened(None, marks, loading=False))
        self._wake()
        while (row := self._newest_row()) is not None:
            self._file.write(json.loads(row["marks"]), {**row, "status": json.loads(row["status"])})

    def _newest_row(self) -> Mapping[str, Any] | None:
        """Wait for a row and return the newest; None after ``close``, once no row is waiting."""
        row: Mapping[str, Any] | None = None
        while row is None:
            self._stamp_s = self._clock.monotonic_s()
            with suppress(Empty):
                row = self._rows.get(_TURN_S)
                if row is None:
                    return None
        while not self._rows.empty():
            newer = self._rows.get()
            if newer is None:
                self._rows.put(None)
                break
            row = newer
        return row
