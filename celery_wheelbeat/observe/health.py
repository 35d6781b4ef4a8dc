"""Liveness and readiness of a beat: named checks, each with a sentence. Pure.

Liveness depends only on the beat's own threads: a restart during an outage of broker or database would lose the runs
held in memory and meet the same outage. Readiness depends on broker and database, too.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


LAG_LIMIT_S = 10.0
"""A beat further behind the clock or the change log than this is not ready."""


class Check(NamedTuple):
    """Result of one check."""

    name: str
    good: bool
    detail: str


def alive(view: HealthView, now_s: float, timeout_s: float) -> Sequence[Check]:
    """Check the scheduling thread by its stamp, the others by its list of wedged threads; ``now_s`` is monotonic."""
    age_s = max(0.0, now_s - view.turned_s)
    stuck = ", ".join(view.wedged)
    return (
        Check("tick", age_s <= timeout_s, f"last tick {age_s:.1f} s ago, limit {timeout_s:g} s"),
        Check("threads", not stuck, f"{stuck}: no progress for {timeout_s:g} s" if stuck else "all running"),
    )


def ready(view: HealthView, now_s: float, timeout_s: float) -> Sequence[Check]:
    """Check that the load has ended, that brokers answer, and that neither wheel nor change log is behind."""
    checks = list(alive(view, now_s, timeout_s))
    status = view.status
    if not status:
        return (*checks, Check("loaded", good=False, detail="no status yet"))
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


class HealthView(NamedTuple):
    """Immutable snapshot of a beat for other threads."""

    turned_s: float
    """Monotonic instant at which the last tick ended."""
    wedged: Sequence[str] = ()
    """Threads that had not completed a loop within the live timeout, as of that tick."""
    status: Mapping[str, Any] = MappingProxyType({})
    """The last status document; empty before the first one."""
