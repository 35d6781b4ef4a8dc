"""The way in: definitions from the database of monitors and from ``beat_schedule``.

Job. Read definitions, compile them and deliver them as ``ChangeBatch``; write the few rows that a beat stores.

Threads and owners. One I/O thread: ``wheelbeat-tail`` with a database, ``wheelbeat-file`` without. It owns the
connection, the cursor and the fingerprints. An initial load by columns adds ``READERS`` threads with a connection each.
Entries of ``beat_schedule`` are compiled on the scheduling thread. ``messages`` defines the values that cross between
the two threads.

States. See ``changelog``.

Never. A source never touches the engine, never waits for the scheduling thread and never writes to a monitor, except
for ``finished_at``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_wheelbeat.jobs.definitions import Finished
    from celery_wheelbeat.jobs.rows import MonitorRow
    from celery_wheelbeat.schedules.kinds import Int64s
    from celery_wheelbeat.sources.changelog.bulk_load import ColumnReader


class Poll(NamedTuple):
    """Result of one poll of the change log."""

    ids: Int64s
    """Monitors that changed since the cursor (inserted, updated or deleted), ascending, unique."""
    cursor: Any
    """Where the next poll starts. Opaque; equal to the given cursor if nothing happened."""
    oldest_transaction_s: float = 0.0
    """Age of the oldest open transaction that may still hold changes back."""


class Snapshot(NamedTuple):
    """Start of a pass over the table: later changes are polled from ``cursor``, rows are read in blocks."""

    cursor: Any
    count_estimate: int
    text_bytes: float = 0.0
    """Estimated mean bytes of name, args and kwargs per monitor."""


class RowBlock(NamedTuple):
    """Consecutive rows and a poll, both seen in one snapshot of the database."""

    rows: Sequence[MonitorRow]
    """Ascending by id."""
    last: bool
    """True if no row of the table has a greater id."""
    poll: Poll


class MonitorSource(Protocol):
    """The database of monitors. Every method raises ``SourceError`` if the database does not answer."""

    def snapshot(self) -> Snapshot:
        """Return the cursor with which a pass over the table begins."""

    def poll(self, cursor: Any) -> Poll:
        """Return the changes since ``cursor``; raises ``CursorLost`` if the log can no longer list them all."""

    def fetch(self, ids: Sequence[int]) -> Sequence[MonitorRow]:
        """Return the current rows of ``ids``; a missing row was deleted."""

    def block(self, after_id: int, limit: int, cursor: Any) -> RowBlock:
        """Read up to ``limit`` rows with ids above ``after_id`` and poll, in one snapshot; raises ``CursorLost``."""

    def logged(self, ids: Sequence[int], within_s: float) -> set[int]:
        """Return the ``ids`` that have a row in the change log of the last ``within_s`` seconds."""

    def close(self) -> None:
        """Drop the connection; the next call opens a new one."""


class BeatRow(NamedTuple):
    """One status row."""

    beat_id: str
    namespace: str
    host: str
    pid: int
    version: str
    age_s: float
    """Seconds since the row was written, by the database's clock."""
    status: Mapping[str, Any]


class ReportingBeat(NamedTuple):
    """A beat that has just reported."""

    beat_id: str
    host: str
    pid: int


class BeatStore(Protocol):
    """The rows that a beat writes and reads back: status and marks, quarantine, finished monitors."""

    def namespace(self) -> str | None:
        """Return the installation's UUID, or None if the tables are missing."""

    def marks(self, namespace: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return per destination the stored mark documents of all beats of ``namespace``, unchecked.

        Each has ``age_s``: the seconds since its beat reported last, by the clock of the database.
        """

    def later(self) -> Mapping[str, Any]:
        """Return where the reader of one-off runs goes on, as JSON values, unchecked; empty if none ever read.

        From the beat that was seen last, whatever its namespace and the clock of its host: it holds instants and
        transactions of the database.
        """

    def reporting(self, namespace: str, within_s: float) -> Sequence[ReportingBeat]:
        """Return the beats of ``namespace`` that reported within the last ``within_s`` seconds."""

    def report(self, beat_id: str, row: Mapping[str, Any]) -> None:
        """Insert or replace this beat's status row.

        ``row``: ``namespace host pid version started_ms``, and ``marks`` and ``status`` as JSON texts.
        """

    def quarantined(self) -> Mapping[str, tuple[str, str]]:
        """Return job key → (definition hash, reason) of all quarantined jobs."""

    def quarantine(self, added: Mapping[str, tuple[str, str]], lifted: Sequence[str]) -> None:
        """Store job keys with (definition hash, reason) and delete the lifted ones."""

    def finish(self, finished: Mapping[int, Finished]) -> None:
        """Set ``finished_at`` of single-run monitors, by job id.

        Written once: a monitor that is already finished, or that was re-armed since, is not changed.
        """

    def beats(self) -> Sequence[BeatRow]:
        """Return the status rows of the last 100 beats, newest first."""

    def id_of(self, name: str) -> int | None:
        """Return the primary key of the monitor with this name."""


class MonitorDatabase(NamedTuple):
    """Returned by a registered factory: source and store of one database, on one connection, for one thread."""

    vendor: str
    source: MonitorSource
    store: BeatStore
    open_reader: Callable[[], ColumnReader] | None = None
    """Opens a column reader with its own connection, for its own thread; None if the vendor has none."""
    connect: Callable[[], Any] | None = None
    """Opens a connection of the driver, in autocommit mode."""
    parameters: Callable[[], Mapping[str, Any]] | None = None
    """Returns the driver's connection parameters, for connections with other bounds."""


_factory: Callable[[Any], MonitorDatabase | None] | None = None


def register(factory: Callable[[Any], MonitorDatabase | None] | None) -> None:
    """Register ``factory(app)``, which opens the database of monitors; it replaces an earlier one, None removes it."""
    global _factory  # noqa: PLW0603 - one process has one database of monitors; Django registers it in ready()
    _factory = factory


def monitor_database(app: Any) -> MonitorDatabase | None:
    """Return the database of the registered factory; None means ``beat_schedule`` only."""
    return None if _factory is None else _factory(app)
