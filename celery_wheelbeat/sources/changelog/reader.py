"""The I/O thread of a beat with a database: drives the ``Follower`` and writes the ``Outbox``.

Values for the scheduling thread go into a bounded mailbox; the thread never touches the engine. A database error is
counted, logged once per outage and retried with backoff; no exception ends the thread. Reading and writing have
independent outages.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import contextmanager, suppress
from queue import Empty
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.runtime.mailbox import Mailbox, Wake
from celery_wheelbeat.runtime.owned_thread import OwnedThread, ThreadBody
from celery_wheelbeat.sources.changelog.follower import Follower
from celery_wheelbeat.sources.changelog.neighbours import Neighbours
from celery_wheelbeat.sources.changelog.outage import Outage
from celery_wheelbeat.sources.changelog.outbox import Outbox
from celery_wheelbeat.sources.messages import Opened, Remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from celery_wheelbeat.jobs.definitions import Finished
    from celery_wheelbeat.runtime.clock import Clock
    from celery_wheelbeat.sources import MonitorDatabase
    from celery_wheelbeat.sources.changelog.translator import Translator
    from celery_wheelbeat.sources.files.installation_file import InstallationFile
    from celery_wheelbeat.sources.messages import Receipt, SourceMessage

logger = logging.getLogger(__name__)

POLL_S = 0.5
WRITE_S = 2.0
MESSAGES_MAX = 16
"""Bound of blocks and batches that wait for the scheduling thread: a fast database must not fill the memory."""
TAKE_MAX = 4
"""Maximum that one tick takes: the engine needs about 50 ms for each, and a slot may become due meanwhile."""


class ChangeLogReader:
    """Implements ``messages.SourceIO``."""

    def __init__(
        self,
        database: MonitorDatabase,
        definitions: Translator,
        clock: Clock,
        wake: Callable[[], None],
        *,
        namespace: str | None = None,
        reconcile_period_s: float = 3_600.0,
        memory: InstallationFile | None = None,
        beat_id: str | None = None,
        shares_work: bool = False,
    ) -> None:
        """``beat_id``: identity of the process. ``shares_work``: other beats of the namespace are welcome."""
        self._database = database
        self._definitions = definitions
        self._clock = clock
        self._wake = wake
        self._namespace = namespace
        self._memory = memory
        self._follower = Follower(
            database.source, definitions, reconcile_period_s=reconcile_period_s, open_reader=database.open_reader
        )
        self._outbox = Outbox(beat_id or str(uuid.uuid4()))
        self._neighbours = None if shares_work else Neighbours(clock)
        self._messages: Mailbox[SourceMessage] = Mailbox()
        self._room = Wake()
        """Rung when the scheduling thread has taken messages."""
        self._rereads: Mailbox[Sequence[int] | None] = Mailbox()
        self._opened = False
        self._installation: str | None = None
        self._remembered: str | None = None
        """The installation that ``memory`` holds."""
        self._asking = False
        self._current_s = self._write_at_s = clock.monotonic_s()
        self._reading = Outage("changelog.read", clock.monotonic_s)
        self._writing = Outage("status.write", clock.monotonic_s)
        body = ThreadBody(self._turn, begin=self._recall, end=self._end, interrupt=self._room.ring)
        self._thread = OwnedThread("wheelbeat-tail", clock, body)

    def start(self) -> None:
        """See ``SourceIO``."""
        self._thread.start()

    def take(self) -> Sequence[SourceMessage]:
        """See ``SourceIO``."""
        messages: list[SourceMessage] = []
        with suppress(Empty):
            while len(messages) < TAKE_MAX:
                messages.append(self._messages.get())
        self._room.ring()
        if not self._messages.empty():
            self._wake()
        return messages

    def report(self, row: Mapping[str, Any], receipt: Receipt | None = None) -> None:
        """See ``SourceIO``."""
        self._outbox.put_status(row, receipt)

    def finish(self, finished: Mapping[int, Finished]) -> None:
        """See ``SourceIO``."""
        self._outbox.put_finished(finished)

    def quarantine(self, added: Mapping[str, tuple[str, str]], lifted: Sequence[str]) -> None:
        """See ``SourceIO``."""
        self._outbox.put_quarantine(added, lifted)

    def reread(self, ids: Sequence[int] | None) -> None:
        """See ``SourceIO``."""
        self._rereads.put(ids)

    def stamp_s(self) -> float:
        """See ``SourceIO``. A wait for a silent database does not count as wedged."""
        return self._clock.monotonic_s() if self._asking else self._thread.stamp_s

    def status(self) -> Mapping[str, Any]:
        """See ``SourceIO``. ``lag_s``: seconds since no known change was waiting to be handed over."""
        findings = self._follower.findings
        return {
            "kind": self._database.vendor,
            "connected": self._reading.error is None,
            "error": self._reading.error or self._writing.error,
            "failures": self._reading.failures + self._writing.failures,
            "loaded": self._follower.loaded,
            "loaded_rows": findings.loaded_rows,
            "expected_rows": findings.expected_rows,
            "reading": self._follower.purpose.value,
            "lag_s": round(self._clock.monotonic_s() - self._current_s, 3),
            "behind": self._follower.behind,
            "polls": findings.polls,
            "changes": findings.changes,
            "resyncs": dict(findings.resyncs),
            "reconcile_rounds": findings.reconcile_rounds,
            "drift_found": findings.drift_found,
            "reconciled_untriggered": findings.reconciled_untriggered,
            "oldest_transaction_s": round(findings.oldest_transaction_s, 1),
        }

    def close(self, timeout_s: float) -> None:
        """See ``SourceIO``."""
        self._thread.close(timeout_s)

    def _recall(self) -> None:
        if self._memory is not None and (remembered := self._memory.read()) is not None:
            self._remembered = remembered
            self._hand_over(Remembered(remembered))

    def _turn(self) -> float:
        """Read one step, write if due; returns the seconds to rest."""
        rest_s = self._read()
        urgent = self._outbox.urgent
        if self._clock.monotonic_s() >= self._write_at_s or (urgent and self._writing.error is None):
            self._write_at_s = self._clock.monotonic_s() + max(WRITE_S, self._write())
            if urgent:
                self._wake()
        if self._memory is not None and self._installation is not None and self._installation != self._remembered:
            self._remembered = self._installation
            self._memory.write(self._installation)
        return rest_s

    def _end(self) -> None:
        self._follower.close()
        self._write()
        self._database.source.close()

    def _read(self) -> float:
        """Do one step of the follower and hand over its messages; returns the seconds to wait."""
        try:
            with self._at_the_database():
                messages, more = self._step()
        except SourceError as error:
            return self._reading.failed(error)
        except Exception as error:
            logger.exception("changelog.read: unexpected error; trying again")
            return self._reading.failed(error)
        self._reading.over()
        for one in messages:
            self._hand_over(one)
        if not more:
            self._current_s = self._clock.monotonic_s()
        return 0.0 if more else POLL_S

    def _step(self) -> tuple[list[SourceMessage], bool]:
        if not self._opened:
            store = self._database.store
            installation = store.namespace()
            marks = store.marks(self._namespace or installation or "")
            quarantined, later = store.quarantined(), store.later()
            self._definitions.quarantine.adopt(quarantined)
            former = None if marks else next((beat.namespace for beat in store.beats()), None)
            self._opened, self._installation = True, installation
            return [Opened(installation, marks, True, [*quarantined], later, former)], True
        while not self._rereads.empty():
            self._follower.reread(self._rereads.get())
        begun_s = self._clock.monotonic_s()
        messages, more = self._follower.step(begun_s)
        self._follower.rest(begun_s, self._clock.monotonic_s())
        return messages, more

    def _hand_over(self, message: SourceMessage) -> None:
        while len(self._messages) >= MESSAGES_MAX and not self._thread.is_stopping:
            self._wake()
            self._room.wait(POLL_S)
            self._thread.stamp()
        if not self._thread.is_stopping:
            self._messages.put(message)
            self._wake()

    def _write(self) -> float:
        """Write the outbox; returns the seconds until the next attempt."""
        added, lifted = self._definitions.quarantine.take_unwritten()
        if added or lifted:
            self._outbox.put_quarantine(added, sorted(lifted))
        try:
            with self._at_the_database():
                self._outbox.write_status(self._database.store)
                self._outbox.write_rest(self._database.store)
                if self._opened and not self._thread.is_stopping and self._neighbours is not None:
                    namespace = self._namespace or self._installation or ""
                    self._neighbours.look(self._database.store, namespace, self._outbox.beat_id)
        except SourceError as error:
            return self._writing.failed(error)
        except Exception as error:
            logger.exception("status.write: unexpected error; trying again")
            return self._writing.failed(error)
        self._writing.over()
        return 0.0

    @contextmanager
    def _at_the_database(self) -> Iterator[None]:
        self._asking = True
        try:
            yield
        finally:
            self._asking = False
            self._thread.stamp()
