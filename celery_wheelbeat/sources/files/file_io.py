"""The I/O thread of a beat without a database: marks and status in one file beside Celery's schedule file."""

from __future__ import annotations

import json
from queue import Empty
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.runtime.mailbox import Mailbox
from celery_wheelbeat.runtime.owned_thread import OwnedThread, ThreadBody
from celery_wheelbeat.sources.messages import Opened, SourceMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_wheelbeat.jobs.definitions import Finished
    from celery_wheelbeat.runtime.clock import Clock
    from celery_wheelbeat.sources.files.mark_file import MarkFile
    from celery_wheelbeat.sources.messages import Receipt

_TURN_S = 1.0


class FileIO:
    """Implements ``messages.SourceIO``. A hanging file system delays only the mark."""

    def __init__(self, file: MarkFile, clock: Clock, wake: Callable[[], None]) -> None:
        self._file = file
        self._wake = wake
        self._rows: Mailbox[tuple[Mapping[str, Any], Receipt | None]] = Mailbox()
        self._messages: Mailbox[SourceMessage] = Mailbox()
        body = ThreadBody(self._write_newest, begin=self._read, may_end=self._rows.empty, interrupt=self._rows.close)
        self._thread = OwnedThread("wheelbeat-file", clock, body)

    def start(self) -> None:
        """See ``SourceIO``."""
        self._thread.start()

    def take(self) -> Sequence[SourceMessage]:
        """See ``SourceIO``."""
        messages = []
        while not self._messages.empty():
            messages.append(self._messages.get())
        return messages

    def report(self, row: Mapping[str, Any], receipt: Receipt | None = None) -> None:
        """See ``SourceIO``."""
        self._rows.put((row, receipt))

    def finish(self, finished: Mapping[int, Finished]) -> None:
        """See ``SourceIO``; entries are never finished."""

    def quarantine(self, added: Mapping[str, tuple[str, str]], lifted: Sequence[str]) -> None:
        """See ``SourceIO``; the status document names broken entries."""

    def reread(self, ids: Sequence[int] | None) -> None:
        """See ``SourceIO``; there are no monitors."""

    def stamp_s(self) -> float:
        """See ``SourceIO``."""
        return self._thread.stamp_s

    def status(self) -> Mapping[str, Any]:
        """See ``SourceIO``."""
        return {"kind": "file", "path": str(self._file.path)}

    def close(self, timeout_s: float) -> None:
        """See ``SourceIO``."""
        self._thread.close(timeout_s)

    def _read(self) -> None:
        marks = {destination: [document] for destination, document in self._file.read().items()}
        self._messages.put(Opened(None, marks, loading=False))
        self._wake()

    def _write_newest(self) -> float:
        try:
            waiting = [self._rows.get(_TURN_S)]
        except Empty:
            return 0.0
        while not self._rows.empty():
            waiting.append(self._rows.get())
        row = waiting[-1][0]
        stored = self._file.write(json.loads(row["marks"]), {**row, "status": json.loads(row["status"])})
        for _, receipt in waiting:
            if receipt is not None:
                receipt.stored = stored
                self._wake()
        return 0.0
