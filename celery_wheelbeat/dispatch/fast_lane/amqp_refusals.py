"""Messages that RabbitMQ returns as unroutable, and messages that it would refuse.

A deleted queue of the default exchange is declared again, and its returned runs are sent again once; the second return
skips the run. A return from a named exchange is final, because its bindings belong to the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.dispatch import FailureKind
from celery_wheelbeat.dispatch.broker import refusal_in_trial
from celery_wheelbeat.dispatch.fast_lane.batches import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from celery_wheelbeat.dispatch.messages.recording import Recording

REMEMBERED_MAX = 100_000
"""Most remembered runs that were returned once; as many as may be in flight."""


_FRAME_EXTRA = 8
"""Bytes of a frame besides its payload: type, channel, size and end."""


class Returned(NamedTuple):
    """One returned message."""

    positions: Sequence[int]
    """Its position in its batch; empty if it was settled before."""
    run: tuple[Any, Any]
    """Task id and fire time."""
    queue: str
    """Its queue if it was sent through the default exchange, else empty."""
    reason: str


class Returns:
    """Decides about returned messages. ``declare_again(queue)`` returns whether the queue exists now; it may raise."""

    def __init__(self, declare_again: Callable[[str], bool]) -> None:
        self._declare_again = declare_again
        self._noted: list[tuple[Returned, list[Failure]]] = []
        self._once: dict[tuple[Any, Any], None] = {}
        """Runs that were sent again, oldest first."""

    def note(self, returned: Returned, failures: list[Failure]) -> None:
        """Record a returned message; ``judge`` adds its failure to ``failures``."""
        if returned.positions:
            self._noted.append((returned, failures))

    def judge(self) -> None:
        """Decide for every recorded message whether it is sent again.

        Uses the connection, so it must not be called from the connection's callbacks. If ``declare_again`` raises, all
        records stay for the next connection.
        """
        while self._noted:  # more messages may be returned while a queue is declared
            noted = list(self._noted)
            fresh = {one.queue for one, _ in noted if one.queue and one.run not in self._once}
            there = {queue for queue in sorted(fresh) if self._declare_again(queue)}
            del self._noted[: len(noted)]
            for one, failures in noted:
                failures.append(Failure(one.positions, self._kind_of(one, there), one.reason))
        while len(self._once) > REMEMBERED_MAX:
            del self._once[next(iter(self._once))]

    def _kind_of(self, one: Returned, there: Collection[str]) -> FailureKind:
        if one.queue in there and one.run not in self._once:
            self._once[one.run] = None
            return FailureKind.NOT_SENT
        self._once.pop(one.run, None)
        return FailureKind.UNROUTABLE


def refusal_of(recording: Recording, open_connection: Callable[[], Any]) -> str:
    """Return why the broker refuses the message, tried in a rolled-back transaction; empty if it accepts or is away."""

    def write(channel: Any) -> None:
        channel.connection.transport.write(on_channel(recording.wire, channel.channel_id))

    return refusal_in_trial(write, open_connection)


def on_channel(frames: bytes, channel_id: int) -> bytes:
    """Return ``frames`` for another channel."""
    moved, start = bytearray(frames), 0
    while start < len(moved):
        moved[start + 1 : start + 3] = channel_id.to_bytes(2, "big")
        start += _FRAME_EXTRA + int.from_bytes(moved[start + 3 : start + 7], "big")
    return bytes(moved)
