"""Delivery of due runs to a broker, and the types that the lanes and their publishers share.

Job: ``Dispatcher`` offers due runs to the lanes of one destination, in order. The fast lane copies pre-rendered
envelopes; the celery lane calls Celery's own ``apply_entry`` and takes every job that the fast lane cannot serve. Each
lane has a backlog of pending runs and a publisher; all lanes share the ledger, the quarantine and the mark.

Threads and owners: the scheduling thread owns all state here, except that each publisher owns its thread and its
connection. ``submit`` passes runs to a publisher without blocking; ``poll`` returns their outcomes.

States of a run::

    waiting → leased → on the wire → confirmed
       ↑                   ├── not sent | uncertain ──→ waiting, ahead of all others
       ├── 1 s ─ deferred ←┼── refused
       │                   └── poison | error | unroutable | expired ──→ skipped(reason)
       └── squeezed out, removed, ended, quarantined, shutdown ──→ skipped(reason)

A run is pending until it is confirmed or skipped; the accounting identity counts every run once.

Never: wait for a socket on the scheduling thread; count a run as sent because no error was seen; drop a run without a
reason in the ledger; import ``sources`` or ``worker``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from celery_wheelbeat.jobs.identity import run_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


PAUSED: Final = "the process was paused; it looks first whether its shards are still its own"
"""Why a run is not sent after a pause."""


class Run(NamedTuple):
    """One run on its way to a destination."""

    job_id: int
    key: str
    """``monitor:42`` or ``entry:cleanup``."""
    name: str
    fire_ms: int
    run_id: str
    entry: Any
    """A private ``celery.beat.ScheduleEntry`` for this run."""
    token: int
    """Token of this run in the backlog; the outcome carries it."""
    headers: Mapping[str, Any] = MappingProxyType({})
    """Further message headers (``wheelbeat_*``) that the job's definition requires."""
    namespace: str = "celery"
    suffix: str = ""
    """Suffix of the name from which the id is made, as in ``jobs.identity.run_id``."""

    def message_id(self, number: int) -> str:
        """Return the task id of message ``number`` (from 1) of the run; an extension may send several."""
        if number == 1:
            return self.run_id
        return run_id(self.key, self.fire_ms, self.namespace, f"{self.suffix}#{number}")


class FailureKind(Enum):
    """Why a run was not confirmed, and how it goes on."""

    NOT_SENT = "not_sent"
    """Proven not to have reached the broker: may be sent again unchanged."""
    UNCERTAIN = "uncertain"
    """May have reached the broker: sent again with the same id and a fresh nonce."""
    REFUSED = "refused"
    """Refused by the broker for now (full queue, no memory): sent again after a pause, while other runs go on."""
    POISON = "poison"
    """This run can never be sent (arguments, size, unknown task): counted ``skipped(error)``, job quarantined."""
    UNROUTABLE = "unroutable"
    """Returned by the broker, or no queue exists for it: counted ``skipped(unroutable)``."""
    ERROR = "error"
    """User code (a lazy argument, a router, the task's signature) raised for this run: counted ``skipped(error)``; the
    job goes on, as in Celery."""
    EXPIRED = "expired"
    """Its expiry passed before it was sent: counted ``skipped(expired)``."""


class Confirmed(NamedTuple):
    """The broker has taken responsibility for the run."""

    token: int
    confirmed_ms: int


class Failed(NamedTuple):
    """The run was not confirmed."""

    token: int
    kind: FailureKind
    reason: str


@dataclass(frozen=True, slots=True)
class PublisherHealth:
    """State of a publisher, for supervision."""

    connected: bool
    in_flight: int
    stamp_s: float
    """Monotonic time of the last iteration of the publisher's loop."""


class Publisher(Protocol):
    """Sends runs to one destination and reports their outcomes."""

    destination: str

    @property
    def ended_by(self) -> BaseException | None:
        """The exception with which user code ended the process (``SystemExit`` …); nothing more is sent."""

    def start(self) -> None:
        """Start the thread; in the process that sends, so after any fork."""

    def capacity(self) -> int:
        """Return how many runs ``submit`` accepts now within the window; 0 while the destination is down."""

    def submit(self, runs: Sequence[Run]) -> None:
        """Take over ``runs``; never blocks."""

    def poll(self) -> Sequence[Confirmed | Failed]:
        """Return the outcomes since the last call."""

    def health(self) -> PublisherHealth:
        """Report for supervision."""

    def close(self, timeout_s: float) -> None:
        """Stop within ``timeout_s``; one more ``poll`` returns the outcomes up to now, other runs have none."""
