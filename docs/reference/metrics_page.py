"""Write ``metrics.md`` from the table of metrics: ``python docs/reference/metrics_page.py``."""

# ruff: noqa: INP001 - a program beside the page it writes

from __future__ import annotations

from pathlib import Path

from celery_wheelbeat.dispatch import FailureKind
from celery_wheelbeat.dispatch.reports.lateness import BOUNDS_S
from celery_wheelbeat.engine.ledger import REASONS
from celery_wheelbeat.engine.watchdog import FINDINGS
from celery_wheelbeat.observe.metrics import FAMILIES, RESYNCS, STATES

HEAD = """# Metrics

What a beat exports at `/metrics` of `wheelbeat_http_port`, and as instruments of OpenTelemetry.
[Watch a beat](../howto/watch-a-beat.md) describes how to collect them and which alerts to set.
Names, types and labels are an API: none is renamed or removed without a new major version.

* Values are those of the [status document](status.md), at most two seconds old. Counters begin at 0 with the process.
* No job, task or monitor is ever a label: the number of series does not grow with the number of jobs.
* A series is missing where a beat has nothing of the kind: `changelog_*`, `reconcile*` and `drift*` without a database,
  `*lane*` and `envelope_*` without a fast lane, `mark_*` until the first mark, `later_*` where the database keeps no
  one-off runs. `later_rows_ahead` and `later_inserted_total` are of the whole store and measured once a minute, on
  PostgreSQL and SQLite.
* **0** in the last column: any other value is a fault of this package or of the machine.

| metric | type | labels | meaning | good |
|---|---|---|---|---|
"""

TAIL = """
Beside them stand the metrics of the process that `prometheus_client` has: `process_resident_memory_bytes`,
`process_cpu_seconds_total`, `process_open_fds` and so on.

## Labels

| label | values |
|---|---|
{labels}

## OpenTelemetry

Counters lose `_total`, times have the unit `s`. The histogram arrives as two counters, because the API has no
observable histogram: `wheelbeat_lateness_seconds_bucket` with the attribute `le`, and `wheelbeat_lateness_seconds_sum`.

## Workers

Copies that were dropped and runs that were skipped because of overlap are counted by the workers, not by the beat:
[drop copies of runs](../howto/drop-copies-of-runs.md).
"""

LABELS = {
    "version": "version of celery-wheelbeat",
    "tzdata": "version of the zone database",
    "state": ", ".join(f"`{state}`" for state in STATES),
    "kind": "of `wheelbeat_jobs`: `monitor`, `entry`; of `wheelbeat_publish_failures_total`: "
    + ", ".join(f"`{kind.value}`" for kind in FailureKind)
    + " ([meanings](status.md#how-a-send-failed)); of `wheelbeat_watchdog_found_total`: "
    + ", ".join(f"`{finding}`" for finding in FINDINGS),
    "reason": "of `wheelbeat_skipped_total`: "
    + ", ".join(f"`{reason}`" for reason in REASONS)
    + " ([meanings](status.md#why-a-run-was-skipped)); of `wheelbeat_changelog_resyncs_total`: "
    + ", ".join(f"`{reason}`" for reason in RESYNCS)
    + "; of `wheelbeat_celery_lane_jobs`: at most twenty sentences as in [lanes](../howto/lanes.md), and `other`",
    "destination": "a broker that messages go to; `broker`",
    "lane": "`fast`, `celery`",
    "thread": "`publisher` (sends), `desk` (reads the change log, writes the status)",
    "le": ", ".join(f"`{bound_s}`" for bound_s in BOUNDS_S) + ", `+Inf`; seconds, inclusive",
}


def render() -> str:
    """Return the page as Markdown text."""
    rows = [
        f"| `{family.name}` | {family.kind} | {', '.join(f'`{label}`' for label in family.labels)} |"
        f" {family.help} | {'**0**' if family.silent else ''} |"
        for family in FAMILIES
    ]
    labels = "\n".join(f"| `{name}` | {values} |" for name, values in LABELS.items())
    return HEAD + "\n".join(rows) + "\n" + TAIL.format(labels=labels)


if __name__ == "__main__":
    Path(__file__).with_name("metrics.md").write_text(render(), encoding="utf-8")
