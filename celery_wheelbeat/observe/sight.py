"""What the scheduling thread last showed of itself, for threads that only look.

A value, replaced as a whole: whoever looks sees one turn or the next one and never waits for the thread.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Sight(NamedTuple):
    """One look at a beat."""

    turned_s: float
    """Monotonic instant at which the last turn ended."""
    wedged: Sequence[str] = ()
    """Threads that have not turned for too long, as of that turn."""
    status: Mapping[str, Any] = MappingProxyType({})
    """The last status document; empty before the first one."""
