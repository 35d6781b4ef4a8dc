"""Which beats are here, and which of them sends which shard.

Job. A beat writes its line to every roll it has and reads the lines of the others (``keeper``, ``rolls``).
``attendance`` judges who is gone, ``shares`` divides the shards among those who can send, ``decision`` says what this
beat has to do about it. ``pulse`` notices that the process was paused, so that nothing is sent before a look.

How the beat uses it, on the scheduling thread::

    attendance.note(look, now_s)                    # for each report of a keeper
    actions = decide(Situation(...), attendance.roster(now_s))
    # do: let_go, freeze, thaw, announce, take; then say the new line
    keeper.say(line, within_s=attendance.next_look_s(now_s, announced=...))

Sets of shards are ``frozenset[int]``, marks are ms, instants of this process are monotonic seconds (``_s``).

Threads and owners. The scheduling thread owns ``Attendance`` and every decision. One thread ``wheelbeat-roll-<name>``
per roll owns its connection. ``wheelbeat-pulse`` owns the stamp of ``Pulse``; senders only read it.

States of a shard in one beat::

    followed ──announce──> announced ──on every roll, still mine──> own ──freeze──> frozen ──nothing on its way──> left
        ^                      └──another has it──> followed          └──let go at once──> left
        └── left, once another line has its mark

Never. No lock and no leader: two owners of a shard are harmless, and end with the next looks. No clock of another host
is compared with this one's. An exception of a store never leaves a keeper, and never ends the process. Runs and jobs
are not known here; what is needed to reach the database and the broker is passed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class Peer(NamedTuple):
    """The line of another beat, as a roll has it."""

    beat_id: str
    order: int
    """Seniority: given by the roll once, never changed; the smallest is the most senior."""
    counter: int
    """Changes with each write."""
    age_s: float | None
    """Seconds since the write, by the clock of the store; None if it has no clock."""
    text: str


class Heard(NamedTuple):
    """Answer of a roll."""

    peers: Sequence[Peer]
    """All other beats of the namespace, in any order."""
    order: int
    """Seniority of the beat that asks."""
    now_ms: int | None
    """The clock of the store."""


class Roll(Protocol):
    """Where beats of one namespace say that they are here.

    Called by one thread. Each method raises ``RollDown`` and waits for the store at most about a second; the next call
    connects again.
    """

    def beat(self, text: str) -> Heard:
        """Write my line and read all others."""

    def leave(self, text: str) -> None:
        """Write my last line; it stays readable until it is forgotten."""

    def fence(self, beat_id: str) -> bool:
        """End the connection through which a beat that is gone sends; False if the store cannot."""

    def forget(self, beat_ids: Collection[str]) -> None:
        """Delete the lines of these beats."""

    def close(self) -> None:
        """Drop the connection."""
