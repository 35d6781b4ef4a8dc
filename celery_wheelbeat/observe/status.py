"""The status document of one beat. Schema and meaning: ``docs/reference/status.md``.

Pure: built from values. Everything that displays a beat (command line, admin, demo, alarms) reads only this document.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.dispatch.reports.lateness import BOUNDS_S, Histogram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.dispatch import PublisherHealth
    from celery_wheelbeat.dispatch.reports.lateness import Quantiles
    from celery_wheelbeat.engine.ledger import Ledger

VERSION = 1


REFUSED_SHOWN = 20
ENTRIES_SHOWN = 100
_NO_RUNS = Histogram((0,) * (len(BOUNDS_S) + 1), 0.0)
_NO_SURVEY: Mapping[str, Any] = MappingProxyType({"load": None, "minutes": ()})


class Jobs(NamedTuple):
    """Number of jobs, and the quarantined ones."""

    monitors: int
    entries: int
    refused: Mapping[str, str]
    """Key → reason, for at most ``REFUSED_SHOWN`` jobs."""
    refused_total: int
    names: Mapping[str, str] = MappingProxyType({})
    """Key → name of the monitors in ``refused``."""


class DestinationState(NamedTuple):
    """One destination: its publisher, its backlog, its mark."""

    health: PublisherHealth
    waiting: int
    oldest_fire_ms: int | None
    mark_ms: int | None
    last_error: str


class Skips(NamedTuple):
    """Runs skipped for one reason within one period; instants are inclusive."""

    reason: str
    runs: int
    from_ms: int
    until_ms: int
    jobs: Sequence[str]
    """Keys of the jobs if they are few, else empty."""


class EntryState(NamedTuple):
    """One entry of ``beat_schedule``."""

    name: str
    task: str
    schedule: str
    """As Celery shows it."""
    next_fire_ms: int | None
    last_fire_ms: int | None = None
    """Last fire time under the current schedule; None if there was none or it cannot be computed."""


class ColdStart(NamedTuple):
    """The initial load of this process."""

    jobs: int
    took_s: float


class Observed(NamedTuple):
    """The values of a status document."""

    state: str
    """``starting``, ``loading``, ``running`` or ``stopped``."""
    now_ms: int
    cursor_ms: int
    jobs: Jobs
    ledger: Ledger
    pending: int
    lateness: Quantiles
    destinations: Mapping[str, DestinationState]
    source: Mapping[str, Any]
    sweeps: int
    watchdog: Mapping[str, int]
    """Counts of the watchdog's findings; empty is good."""
    clock_steps: int
    threads: Mapping[str, float]
    """Seconds since each thread's last iteration."""
    wedged: list[str]
    strays: int = 0
    """Outcomes of runs that were already settled."""
    failures: Mapping[str, int] = MappingProxyType({})
    """Sends that were not confirmed, by kind."""
    histogram: Histogram = _NO_RUNS
    """Lateness of every run since the start."""
    tzdata: str = "unknown"
    """Version of the time zone database."""
    skips: Sequence[Skips] = ()
    """The last periods of skipped runs, newest last."""
    schedule: Sequence[EntryState] = ()
    """Entries of ``beat_schedule``, at most ``ENTRIES_SHOWN``."""
    lanes: Mapping[str, Any] = MappingProxyType({})
    """Jobs by lane and reason; empty without a fast lane."""
    survey: Mapping[str, Any] = _NO_SURVEY
    """``load`` and ``minutes`` of the surveyor."""
    kept: int = 0
    """Runs of shards of other beats that are kept, to be sent should their owner be gone."""
    shards: int = 0
    cold_start: ColdStart | None = None
    """None before its end, and without a database."""
    later: Mapping[str, Any] | None = None
    """See ``later.in_wheel.LaterRuns.as_json``."""
    member: Mapping[str, Any] | None = None
    """This beat among others; None if it sends everything."""


def document(seen: Observed) -> dict[str, Any]:
    """Return the status document as JSON values."""
    ledger = seen.ledger
    return {
        "version": VERSION,
        "state": seen.state,
        "at_ms": seen.now_ms,
        "behind_s": max(0.0, round((seen.now_ms - seen.cursor_ms) / 1000, 3)),
        "shards": seen.shards,
        "cold_start": None if seen.cold_start is None else seen.cold_start._asdict(),
        "jobs": {
            "monitors": seen.jobs.monitors,
            "entries": seen.jobs.entries,
            "refused": seen.jobs.refused_total,
            "reasons": dict(seen.jobs.refused),
            "names": dict(seen.jobs.names),
        },
        "runs": {
            "expected": ledger.expected,
            "sent": ledger.sent,
            "skipped": {reason: runs for reason, runs in ledger.skipped.items() if runs},
            "pending": seen.pending,
            "failures": dict(seen.failures),
            "handed_on": ledger.handed_on,
            "reoffered": ledger.reoffered,
            "followed": ledger.followed,
            "kept": seen.kept,
            "difference": ledger.difference(seen.pending),
            "strays": seen.strays,
        },
        "later": None if seen.later is None else dict(seen.later),
        "member": None if seen.member is None else dict(seen.member),
        "lateness": {
            "runs": seen.lateness.runs,
            "p50_s": round(seen.lateness.p50_s, 3),
            "p99_s": round(seen.lateness.p99_s, 3),
            "max_s": round(seen.lateness.max_s, 3),
            "histogram": list(seen.histogram.counts),
            "sum_s": round(seen.histogram.sum_s, 3),
        },
        "destinations": {name: _destination(state, seen.now_ms) for name, state in seen.destinations.items()},
        "lanes": dict(seen.lanes),
        "source": dict(seen.source),
        "sweeps": seen.sweeps,
        "watchdog": dict(seen.watchdog),
        "clock_steps": seen.clock_steps,
        "threads": {name: round(age_s, 1) for name, age_s in seen.threads.items()},
        "wedged": seen.wedged,
        "schedule": [entry._asdict() for entry in seen.schedule],
        "load": seen.survey["load"],
        "minutes": list(seen.survey["minutes"]),
        "tzdata": seen.tzdata,
        "skips": [{**skips._asdict(), "jobs": list(skips.jobs)} for skips in seen.skips],
    }


def _destination(state: DestinationState, now_ms: int) -> dict[str, Any]:
    oldest_ms = state.oldest_fire_ms
    return {
        "connected": state.health.connected,
        "in_flight": state.health.in_flight,
        "waiting": state.waiting,
        "oldest_s": 0.0 if oldest_ms is None else max(0.0, round((now_ms - oldest_ms) / 1000, 3)),
        "mark_ms": state.mark_ms,
        "last_error": state.last_error,
    }
