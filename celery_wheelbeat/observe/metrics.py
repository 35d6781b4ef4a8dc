"""Metrics of one beat: a closed table of families, and their values in a status document.

Pure, and the only module that defines names, types and labels; every exporter renders this table. Counters start at 0
with the process. Jobs, tasks and monitors are never labels: the number of series does not depend on the number of jobs.
Names and labels are a public API, documented in ``docs/reference/metrics.md``.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat import __version__
from celery_wheelbeat.dispatch import FailureKind
from celery_wheelbeat.dispatch.reports.lateness import BOUNDS_S
from celery_wheelbeat.engine.ledger import REASONS
from celery_wheelbeat.engine.watchdog import FINDINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Read = Callable[[Mapping[str, Any]], Iterable["Sample"]]

STATES = ("starting", "loading", "running", "stopped")
RESYNCS = ("failover", "manual", "pruned", "replaced", "truncated")
"""Reasons of a resync."""
CAUSES_SHOWN = 20
"""Reasons for the celery lane with a series of their own; all others count as ``other``."""
CAUSE_LENGTH = 120


class Sample(NamedTuple):
    """One value of a family; ``labels`` are values in the order of the family's label names."""

    labels: tuple[str, ...]
    value: float


class Family(NamedTuple):
    """One metric family."""

    name: str
    """Name in Prometheus: counters end in ``_total``, the unit is part of the name."""
    kind: str
    """``counter``, ``gauge`` or ``histogram``."""
    help: str
    labels: tuple[str, ...]
    read: Read
    """Status document → samples; empty if the beat has no such part (no database, no fast lane).

    A histogram's samples are its buckets by upper bound (cumulated, the last one ``+Inf``), then ``sum``.
    """
    silent: bool = False
    """Whether its only good value is 0."""


def samples(status: Mapping[str, Any]) -> Iterator[tuple[Family, list[Sample]]]:
    """Return every family that has samples in ``status``, in the order of the table."""
    for family in FAMILIES:
        found = list(family.read(status))
        if found:
            yield family, found


def _field(*path: str) -> Read:
    def read(status: Mapping[str, Any]) -> Iterator[Sample]:
        value: Any = status
        for key in path:
            value = value.get(key)
            if value is None:
                return
        yield Sample((), float(value))

    return read


def _closed(names: Iterable[str], *path: str) -> Read:
    """Return counts of a closed list; missing ones are 0, so that a rate includes the first increment."""

    def read(status: Mapping[str, Any]) -> Iterator[Sample]:
        counts: Any = status
        for key in path:
            counts = counts[key]
        return (Sample((name,), float(counts.get(name, 0))) for name in names)

    return read


def _destinations(key: str, scale: float = 1.0) -> Read:
    def read(status: Mapping[str, Any]) -> Iterator[Sample]:
        for name, destination in status["destinations"].items():
            if destination[key] is not None:
                yield Sample((name,), destination[key] * scale)

    return read


def _build(status: Mapping[str, Any]) -> Iterator[Sample]:
    yield Sample((__version__, status["tzdata"]), 1.0)


def _state(status: Mapping[str, Any]) -> Iterator[Sample]:
    return (Sample((state,), float(state == status["state"])) for state in STATES)


def _instant(status: Mapping[str, Any]) -> Iterator[Sample]:
    yield Sample((), status["at_ms"] / 1000)


def _jobs(status: Mapping[str, Any]) -> Iterator[Sample]:
    yield Sample(("monitor",), float(status["jobs"]["monitors"]))
    yield Sample(("entry",), float(status["jobs"]["entries"]))


def _lateness(status: Mapping[str, Any]) -> Iterator[Sample]:
    bounds = (*(str(bound_s) for bound_s in BOUNDS_S), "+Inf")
    for bound, runs in zip(bounds, accumulate(status["lateness"]["histogram"]), strict=True):
        yield Sample((bound,), float(runs))
    yield Sample(("sum",), float(status["lateness"]["sum_s"]))


def _next_minute(status: Mapping[str, Any]) -> Iterator[Sample]:
    if status["load"] is not None:
        counts = [int(count) for count in status["load"]["seconds"].split()]
        start = max(0, status["at_ms"] // 1000 + 1 - status["load"]["from_s"])
        yield Sample((), float(sum(counts[start : start + 60])))


def _lane_jobs(status: Mapping[str, Any]) -> Iterator[Sample]:
    if status["lanes"]:
        yield Sample(("fast",), float(status["lanes"]["fast"]))
        yield Sample(("celery",), float(sum(status["lanes"]["celery"].values())))


def _causes(status: Mapping[str, Any]) -> Iterator[Sample]:
    causes = Counter(status["lanes"].get("celery", {}))
    shown = Counter[str]()
    for cause, jobs in causes.most_common(CAUSES_SHOWN):
        shown[cause[:CAUSE_LENGTH]] += jobs
    if len(causes) > CAUSES_SHOWN:
        shown["other"] += causes.total() - shown.total()
    return (Sample((cause,), float(jobs)) for cause, jobs in shown.items())


def _later(key: str) -> Read:
    def read(status: Mapping[str, Any]) -> Iterator[Sample]:
        value = (status["later"] or {}).get(key)
        if value is not None:
            yield Sample((), float(value))

    return read


def _member(key: str) -> Read:
    def read(status: Mapping[str, Any]) -> Iterator[Sample]:
        if status["member"] is not None:
            yield Sample((), float(status["member"][key]))

    return read


def _takes(status: Mapping[str, Any]) -> Iterator[Sample]:
    if status["member"] is not None:
        yield from (Sample((reason,), float(shards)) for reason, shards in status["member"]["takes"].items())


def _resyncs(status: Mapping[str, Any]) -> Iterator[Sample]:
    counts = status["source"].get("resyncs")
    if counts is not None:
        yield from (Sample((reason,), float(counts.get(reason, 0))) for reason in RESYNCS)


def _threads(status: Mapping[str, Any]) -> Iterator[Sample]:
    return (Sample((name,), float(age_s)) for name, age_s in status["threads"].items())


def _wedged(status: Mapping[str, Any]) -> Iterator[Sample]:
    yield Sample((), float(len(status["wedged"])))


def _family(kind: str, name: str, help_: str, read: Read, *labels: str, silent: bool = False) -> Family:
    return Family(f"wheelbeat_{name}", kind, help_, labels, read, silent)


_counter, _gauge, _histogram = (partial(_family, kind) for kind in ("counter", "gauge", "histogram"))

FAMILIES: tuple[Family, ...] = (
    _gauge("build_info", "Always 1; the labels describe this beat.", _build, "version", "tzdata"),
    _gauge("state", "1 for the state of the beat, 0 for the others.", _state, "state"),
    _gauge(
        "last_tick_timestamp_seconds",
        "When the scheduling thread last reported; it reports every two seconds.",
        _instant,
    ),
    _gauge("behind_seconds", "How far the wheel is behind the clock.", _field("behind_s")),
    _gauge("jobs", "Jobs in the engine, including paused ones.", _jobs, "kind"),
    _gauge("jobs_refused", "Definitions that cannot run or be sent.", _field("jobs", "refused")),
    _gauge("runs_next_minute", "Runs due within the next minute, as of the last forecast.", _next_minute),
    _counter(
        "expected_total", "Fire times that came due, including those of the gap at start.", _field("runs", "expected")
    ),
    _counter("sent_total", "Runs that the broker has confirmed.", _field("runs", "sent")),
    _counter("skipped_total", "Runs that were not sent, by reason.", _closed(REASONS, "runs", "skipped"), "reason"),
    _counter(
        "reoffered_total",
        "Runs sent again with the same ids after a restart; not part of the account.",
        _field("runs", "reoffered"),
    ),
    _counter(
        "handed_on_total",
        "Runs given away unsent with their shard; the beat that takes it expects them again.",
        _field("runs", "handed_on"),
    ),
    _counter(
        "followed_total",
        "Runs of shards of other beats that came due; not part of the account.",
        _field("runs", "followed"),
    ),
    _gauge(
        "followed_runs",
        "Runs of shards of other beats that are kept until these have sent them.",
        _field("runs", "kept"),
    ),
    _gauge("pending", "Due runs that are neither sent nor skipped yet.", _field("runs", "pending")),
    _gauge(
        "account_difference",
        "Expected minus sent, skipped, given away and pending runs.",
        _field("runs", "difference"),
        silent=True,
    ),
    _counter(
        "stray_outcomes_total",
        "Outcomes reported for runs that were already settled.",
        _field("runs", "strays"),
        silent=True,
    ),
    _counter(
        "publish_failures_total",
        "Sends that were not confirmed, by kind; each failed attempt of a run counts.",
        _closed([kind.value for kind in FailureKind], "runs", "failures"),
        "kind",
    ),
    _histogram("lateness_seconds", "Confirmed by the broker minus fire time, per run.", _lateness),
    _gauge("broker_connected", "Whether the broker answers.", _destinations("connected"), "destination"),
    _gauge("in_flight", "Runs handed to the publisher and not settled yet.", _destinations("in_flight"), "destination"),
    _gauge("backlog", "Runs waiting to be sent.", _destinations("waiting"), "destination"),
    _gauge(
        "oldest_run_seconds", "Age of the oldest run that is not settled.", _destinations("oldest_s"), "destination"
    ),
    _gauge(
        "mark_timestamp_seconds",
        "Every run up to this time is confirmed or counted as skipped.",
        _destinations("mark_ms", 0.001),
        "destination",
    ),
    _gauge("lane_jobs", "Jobs by the lane of their runs.", _lane_jobs, "lane"),
    _gauge(
        "celery_lane_jobs",
        "Jobs on the celery lane, by reason; the twenty most frequent reasons.",
        _causes,
        "reason",
    ),
    _gauge(
        "celery_lane_behind",
        "1 while runs have waited over a minute for the celery lane although its broker answers.",
        _field("lanes", "behind"),
        silent=True,
    ),
    _counter(
        "envelope_differences_total",
        "Messages that Celery rendered differently from the fast lane.",
        _field("lanes", "differences"),
        silent=True,
    ),
    _gauge("changelog_connected", "Whether the change log can be read.", _field("source", "connected")),
    _gauge("changelog_lag_seconds", "Time since no known edit was waiting.", _field("source", "lag_s")),
    _gauge("changelog_behind", "Known edits that are not in force yet.", _field("source", "behind")),
    _gauge("load_monitors", "Monitors that the initial load has read.", _field("source", "loaded_rows")),
    _gauge(
        "load_monitors_expected",
        "Monitors that the initial load is expected to read.",
        _field("source", "expected_rows"),
    ),
    _counter("changelog_polls_total", "Polls of the change log.", _field("source", "polls")),
    _counter("changelog_changes_total", "Changes read from the change log.", _field("source", "changes")),
    _counter(
        "changelog_failures_total",
        "Reads and writes of the database that failed and were retried.",
        _field("source", "failures"),
    ),
    _counter(
        "changelog_resyncs_total",
        "Complete rereads of the monitor table, by reason.",
        _resyncs,
        "reason",
    ),
    _gauge(
        "changelog_oldest_transaction_seconds",
        "Age of the oldest transaction that may still write a change.",
        _field("source", "oldest_transaction_s"),
    ),
    _counter(
        "reconcile_rounds_total",
        "Complete comparisons of the monitor table with the wheel.",
        _field("source", "reconcile_rounds"),
    ),
    _counter(
        "drift_found_total",
        "Monitors that the reconcile found wrong although the change log had their changes.",
        _field("source", "drift_found"),
        silent=True,
    ),
    _counter(
        "reconciled_untriggered_total",
        "Monitors that changed without a row in the change log.",
        _field("source", "reconciled_untriggered"),
    ),
    _gauge("members", "Beats that are here, this one included.", _member("members")),
    _gauge("share_shards", "Shards that this beat sends.", _member("shards")),
    _gauge("unowned_shards", "Shards that no beat sends.", _member("unowned"), silent=True),
    _counter("takes_total", "Shards that this beat has taken, by why they were free.", _takes, "reason"),
    _counter(
        "taken_while_alive_total",
        "Shards that another beat has taken while this one had them.",
        _member("taken_while_alive"),
        silent=True,
    ),
    _gauge("later_rows_ahead", "One-off runs in the store that are not due yet, estimated if many.", _later("ahead")),
    _gauge("later_oldest_unsent_seconds", "Age of the oldest second with an unsent one-off run.", _later("oldest_s")),
    _counter("later_inserted_total", "Rows that were written into the store of one-off runs.", _later("inserted")),
    _counter(
        "later_cancelled_total", "One-off runs whose cancel was read when their second came.", _later("cancelled")
    ),
    _counter("watchdog_sweeps_total", "Shards that the watchdog checked.", _field("sweeps")),
    _counter(
        "watchdog_found_total",
        "Faults that the watchdog found and repaired, by kind.",
        _closed(FINDINGS, "watchdog"),
        "kind",
        silent=True,
    ),
    _counter("clock_steps_total", "Backward clock steps of more than five seconds.", _field("clock_steps")),
    _gauge("thread_age_seconds", "Time since each thread last made progress.", _threads, "thread"),
    _gauge("wedged_threads", "Threads that have made no progress for wheelbeat_live_timeout.", _wedged, silent=True),
)
"""Every metric that a beat exports."""
