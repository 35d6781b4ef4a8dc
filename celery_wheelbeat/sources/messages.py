"""What the I/O thread tells the scheduling thread, and the one interface between the two.

Values cross the border in one direction each: news to the scheduling thread, rows and orders to the I/O thread. Neither
ever waits for the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from celery_wheelbeat.errors import InvalidMonitor
    from celery_wheelbeat.jobs.definitions import ChangeBatch, DefinitionBatch, Finished


class Opened(NamedTuple):
    """The store was read for the first time: who we are, and where earlier processes stopped."""

    namespace: str | None
    """The installation's own namespace of run ids; None where there is none."""
    marks: Mapping[str, Sequence[Mapping[str, Any]]]
    """Per destination the stored mark documents, as JSON values, unchecked."""
    loading: bool
    """Whether blocks of monitors follow."""
    quarantined: Collection[str] = ()
    """Job keys in the table of the quarantine."""


class Remembered(NamedTuple):
    """Who we were when the database answered last; comes before it is asked."""

    namespace: str


class Sized(NamedTuple):
    """A load begins. Both numbers are estimates."""

    jobs: int
    text_bytes: float
    """Bytes of name and arguments of one monitor."""


class Loaded(NamedTuple):
    """One block of the initial load."""

    batch: DefinitionBatch
    refused: Mapping[int, InvalidMonitor]
    last: bool
    """Every monitor has been delivered."""


class Changed(NamedTuple):
    """What changed since."""

    changes: ChangeBatch
    refused: Mapping[int, InvalidMonitor]


News = Remembered | Opened | Sized | Loaded | Changed


class Desk(Protocol):
    """The I/O thread as the scheduling thread sees it. No method blocks, ``close`` excepted."""

    def start(self) -> None:
        """Start the thread; in the process that schedules, so after any fork."""

    def take(self) -> Sequence[News]:
        """Return the news since the last call, in order."""

    def report(self, row: Mapping[str, Any]) -> None:
        """Store this status row soon; a newer one replaces one that is still waiting."""

    def finish(self, finished: Mapping[int, Finished]) -> None:
        """Record one-off monitors as done, by job id."""

    def quarantine(self, added: Mapping[str, tuple[str, str]], lifted: Sequence[str]) -> None:
        """Record job keys with (definition hash, reason), and remove the lifted ones."""

    def reread(self, ids: Sequence[int] | None) -> None:
        """Deliver these monitors again, as they are now; None = all of them."""

    def stamp_s(self) -> float:
        """Return the monotonic instant of the thread's last turn."""

    def status(self) -> Mapping[str, Any]:
        """Return what the status document says about the database."""

    def close(self, timeout_s: float) -> None:
        """Write what is waiting and stop, within ``timeout_s``."""
