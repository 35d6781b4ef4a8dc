"""Is this beat alive, is it ready: named checks with a sentence each. Pure.

Alive depends on our own threads alone: a broker or a database that is down is no reason to restart a beat, which would
lose what it holds in memory and come back to the same outage. Ready asks for them too.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


LAG_LIMIT_S = 10.0
"""A beat that is further behind the clock or the change log is not ready."""


class Check(NamedTuple):
    """One answer."""

    name: str
    good: bool
    said: str


def alive(sight: Sight, now_s: float, timeout_s: float) -> Sequence[Check]:
    """Check the scheduling thread by its stamp and the others by what it said of them; ``now_s`` is monotonic."""
    age_s = max(0.0, now_s - sight.turned_s)
    stuck = ", ".join(sight.wedged)
    return (
        Check("tick", age_s <= timeout_s, f"last turn {age_s:.1f} s ago, limit {timeout_s:g} s"),
        Check("threads", not stuck, f"no turn of {stuck} for {timeout_s:g} s" if stuck else "all turn"),
    )


def ready(sight: Sight, now_s: float, timeout_s: float) -> Sequence[Check]:
    """Check that everything is loaded, that brokers answer, and that neither wheel nor change log is behind."""
    checks = list(alive(sight, now_s, timeout_s))
    status = sight.status
    if not status:
        return (*checks, Check("loaded", good=False, said="no status yet"))
    checks += [
        Check("loaded", status["state"] == "running", status["state"]),
        Check(
            "wheel", status["behind_s"] <= LAG_LIMIT_S, f"{status['behind_s']:.1f} s behind, limit {LAG_LIMIT_S:g} s"
        ),
    ]
    for name, state in status["destinations"].items():
        away = state["last_error"] or "not connected"
        checks.append(Check(name, state["connected"], "connected" if state["connected"] else away))
    lag_s = status["source"].get("lag_s")
    if lag_s is not None:
        checks.append(Check("changelog", lag_s <= LAG_LIMIT_S, f"{lag_s:.1f} s behind, limit {LAG_LIMIT_S:g} s"))
    return checks


class Sight(NamedTuple):
    """One look at a beat."""

    turned_s: float
    """Monotonic instant at which the last turn ended."""
    wedged: Sequence[str] = ()
    """Threads that have not turned for too long, as of that turn."""
    status: Mapping[str, Any] = MappingProxyType({})
    """The last status document; empty before the first one."""
