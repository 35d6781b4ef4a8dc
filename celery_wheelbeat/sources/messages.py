"""Messages between the I/O thread and the scheduling thread, and their one interface, ``SourceIO``.

Messages go to the scheduling thread; rows and orders go to the I/O thread. Neither thread waits for the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from celery_wheelbeat.errors import InvalidMonitor
    from celery_wheelbeat.jobs.definitions import ChangeBatch, DefinitionBatch, Finished


class Opened(NamedTuple):
    """The store was read for the first time: the namespace, and the marks of earlier processes."""

    namespace: str | None
    """The installation's own namespace of run ids, if it has one."""
    marks: Mapping[str, Sequence[Mapping[str, Any]]]
    """Per destination the stored mark documents, as JSON values, unchecked."""
    loading: bool
    """Whether blocks of monitors follow."""
    quarantined: Collection[str] = ()
    """Job keys in the quarantine table."""
    later: Mapping[str, Any] = {}
    """Where the reader of one-off runs goes on, as JSON values, unchecked; empty if none ever read."""
    former_namespace: str | None = None
    """Without marks: the namespace of the beat that reported last, if there was one."""


class Remembered(NamedTuple):
    """The namespace at the database's last answer, from the installation file; sent before the first connect."""

    namespace: str


class Sized(NamedTuple):
    """A load starts. Both numbers are estimates."""

    jobs: int
    text_bytes: float
    """Mean bytes of name and arguments per monitor."""


class Loaded(NamedTuple):
    """One block of the initial load."""

    batch: DefinitionBatch
    refused: Mapping[int, InvalidMonitor]
    last: bool
    """Every monitor has been delivered."""


class Changed(NamedTuple):
    """Changes since the last message."""

    changes: ChangeBatch
    refused: Mapping[int, InvalidMonitor]


class Receipt:
    """Whether a status row was stored. The I/O thread sets ``stored``, the scheduling thread reads it."""

    __slots__ = ("asked", "stored")

    def __init__(self) -> None:
        self.asked = False
        """Whether a row was reported with this receipt. Only the scheduling thread uses it."""
        self.stored: bool | None = None
        """None: no attempt has ended yet; False: the first attempt failed, the row is written later."""


SourceMessage = Remembered | Opened | Sized | Loaded | Changed


class SourceIO(Protocol):
    """The I/O thread as seen by the scheduling thread. Only ``close`` blocks."""

    def start(self) -> None:
        """Start the thread, in the process that schedules, after any fork."""

    def take(self) -> Sequence[SourceMessage]:
        """Return the messages since the last call, in order."""

    def report(self, row: Mapping[str, Any], receipt: Receipt | None = None) -> None:
        """Store this status row soon; a newer one replaces one that is still waiting. With ``receipt``: at once."""

    def finish(self, finished: Mapping[int, Finished]) -> None:
        """Record single-run monitors as done, by job id."""

    def quarantine(self, added: Mapping[str, tuple[str, str]], lifted: Sequence[str]) -> None:
        """Store job keys with (definition hash, reason) and delete the lifted ones."""

    def reread(self, ids: Sequence[int] | None) -> None:
        """Deliver the current definitions of these monitors again; None = all monitors."""

    def stamp_s(self) -> float:
        """Return the monotonic instant at which the thread last completed a loop."""

    def status(self) -> Mapping[str, Any]:
        """Return the part of the status document about the database."""

    def close(self, timeout_s: float) -> None:
        """Write what is pending and stop, within ``timeout_s``."""
