"""What a member is made with, and what it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_wheelbeat.membership.attendance import Look, Unheard
    from celery_wheelbeat.membership.keeper import Keeper
    from celery_wheelbeat.membership.pulse import Pulse
    from celery_wheelbeat.runtime.mailbox import Mailbox


@dataclass(frozen=True, slots=True)
class Rolls:
    """The rolls of a beat, and what guards its sends."""

    open: Callable[[str], Sequence[Keeper]]
    """Namespace → one keeper for each roll."""
    reports: Mailbox[Look | Unheard]
    """Where the keepers report."""
    pulse: Pulse
    heartbeat_s: float
    active: int
    stops_when_cut_off: bool = False


@dataclass(slots=True)
class Tally:
    """What happened since the start, for metrics."""

    takes: Counter[str] = field(default_factory=Counter)
    """Shards taken, by the reason."""
    taken_while_alive: int = 0
    """Shards that another beat took while this one was alive."""
