"""The table of metrics is an API: names, types, labels, its page, and what each exporter makes of it."""

from __future__ import annotations

import re
import runpy
import sys
from bisect import bisect_left
from functools import partial
from pathlib import Path
from typing import Any

import opentelemetry.metrics
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from support.beat.observed import observed

from celery_wheelbeat.dispatch import PublisherHealth
from celery_wheelbeat.dispatch.reports.lateness import BOUNDS_S, Histogram, Lateness
from celery_wheelbeat.engine.ledger import REASONS
from celery_wheelbeat.engine.watchdog import FINDINGS
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.observe.metrics import CAUSES_SHOWN, FAMILIES, RESYNCS, samples
from celery_wheelbeat.observe.otel import Instruments
from celery_wheelbeat.observe.prometheus import Exposition
from celery_wheelbeat.observe.status import DestinationState, Jobs, document
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.sources.changelog.reader import ChangeLogReader
from celery_wheelbeat.sources.changelog.translator import Translator
from celery_wheelbeat.sources.databases.open import from_url

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/metrics.md"
HOWTO = ROOT / "docs/howto/watch-a-beat.md"
DATABASE = {
    "kind": "postgresql",
    "connected": True,
    "error": None,
    "failures": 3,
    "lag_s": 0.25,
    "behind": 4,
    "loaded_rows": 1_000,
    "expected_rows": 2_500,
    "polls": 100,
    "changes": 12,
    "resyncs": {"pruned": 1},
    "reconcile_rounds": 2,
    "drift_found": 0,
    "reconciled_untriggered": 5,
    "oldest_transaction_s": 1.5,
}


def status(**changes: Any) -> dict[str, Any]:
    """Return a status document that has something of everything."""
    richer: dict[str, Any] = {
        "now_ms": 1_700_000_010_500,
        "failures": {"refused": 8},
        "histogram": Histogram((4, 0, 1, *[0] * 11, 1), 400.5),
        "destinations": {"broker": DestinationState(PublisherHealth(False, 1, 0.0), 7, 1_700_000_008_000, 1_000, "no")},
        "source": DATABASE,
        "watchdog": {"ghost": 2},
        "clock_steps": 1,
        "strays": 3,
        "wedged": ["publisher"],
        "tzdata": "2025b",
        "lanes": {"fast": 4, "celery": {"why": 2, "because": 1}, "observers": [], "differences": 0, "behind": True},
        "member": {"shards": 128, "members": 2, "unowned": 0, "takes": {"let go": 128}, "taken_while_alive": 0},
        "later": {"ahead": 1_200, "oldest_s": 3, "inserted": 5_000, "cancelled": 7},
        "survey": {"load": {"from_s": 1_700_000_001, "seconds": " ".join("1" * 30), "minutes": "30"}, "minutes": []},
    }
    return document(observed(**(richer | changes)))


def values(**changes: Any) -> dict[tuple[str, ...], float]:
    """Return (name, label values…) → value."""
    return {
        (family.name, *sample.labels): sample.value for family, found in samples(status(**changes)) for sample in found
    }


def test_the_page_in_the_reference_is_the_table() -> None:
    render = runpy.run_path(str(PAGE.with_name("metrics_page.py")))["render"]
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python docs/reference/metrics_page.py"


def test_names_follow_the_conventions() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert re.fullmatch(r"wheelbeat_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.kind in ("counter", "gauge", "histogram")
        assert family.help.endswith("."), family.name
    labels = {label for family in FAMILIES for label in family.labels}
    assert labels == {"version", "tzdata", "state", "kind", "reason", "destination", "lane", "thread"}
    assert all(f"| `{label}` |" in PAGE.read_text() for label in labels)


def test_each_family_reads_its_part_of_the_document() -> None:
    found = values()
    assert {name for name, *_ in found} == {family.name for family in FAMILIES}, "no family is dead"
    expected = {
        ("wheelbeat_state", "running"): 1,
        ("wheelbeat_state", "loading"): 0,
        ("wheelbeat_last_tick_timestamp_seconds",): 1_700_000_010.5,
        ("wheelbeat_behind_seconds",): 1.5,
        ("wheelbeat_load_monitors",): 1_000,
        ("wheelbeat_load_monitors_expected",): 2_500,
        ("wheelbeat_jobs", "monitor"): 5,
        ("wheelbeat_jobs", "entry"): 2,
        ("wheelbeat_jobs_refused",): 2,
        ("wheelbeat_runs_next_minute",): 20,
        ("wheelbeat_expected_total",): 10,
        ("wheelbeat_sent_total",): 6,
        ("wheelbeat_skipped_total", "backlog"): 3,
        ("wheelbeat_skipped_total", "restart"): 0,
        ("wheelbeat_share_shards",): 128,
        ("wheelbeat_members",): 2,
        ("wheelbeat_unowned_shards",): 0,
        ("wheelbeat_takes_total", "let go"): 128,
        ("wheelbeat_taken_while_alive_total",): 0,
        ("wheelbeat_pending",): 1,
        ("wheelbeat_publish_failures_total", "refused"): 8,
        ("wheelbeat_publish_failures_total", "uncertain"): 0,
        ("wheelbeat_account_difference",): 0,
        ("wheelbeat_stray_outcomes_total",): 3,
        ("wheelbeat_lateness_seconds", "0.005"): 4,
        ("wheelbeat_lateness_seconds", "300.0"): 5,
        ("wheelbeat_lateness_seconds", "+Inf"): 6,
        ("wheelbeat_lateness_seconds", "sum"): 400.5,
        ("wheelbeat_broker_connected", "broker"): 0,
        ("wheelbeat_in_flight", "broker"): 1,
        ("wheelbeat_backlog", "broker"): 7,
        ("wheelbeat_oldest_run_seconds", "broker"): 2.5,
        ("wheelbeat_mark_timestamp_seconds", "broker"): 1,
        ("wheelbeat_lane_jobs", "fast"): 4,
        ("wheelbeat_lane_jobs", "celery"): 3,
        ("wheelbeat_celery_lane_jobs", "why"): 2,
        ("wheelbeat_celery_lane_behind",): 1,
        ("wheelbeat_changelog_connected",): 1,
        ("wheelbeat_changelog_lag_seconds",): 0.25,
        ("wheelbeat_changelog_resyncs_total", "pruned"): 1,
        ("wheelbeat_changelog_resyncs_total", "failover"): 0,
        ("wheelbeat_reconciled_untriggered_total",): 5,
        ("wheelbeat_watchdog_found_total", "ghost"): 2,
        ("wheelbeat_watchdog_found_total", "lost"): 0,
        ("wheelbeat_clock_steps_total",): 1,
        ("wheelbeat_thread_age_seconds", "sources"): 0.0,
        ("wheelbeat_wedged_threads",): 1,
    }
    assert {key: found[key] for key in expected} == expected
    assert {reason for name, *labels in found if name == "wheelbeat_skipped_total" for reason in labels} == {*REASONS}
    assert {kind for name, *labels in found if name == "wheelbeat_watchdog_found_total" for kind in labels} == {
        *FINDINGS
    }
    assert values(pending=0)[("wheelbeat_account_difference",)] == 1


def test_a_tail_says_what_is_read_here(tmp_path: Path) -> None:
    definitions = Translator(partial(compile_rows, crons=CronTable()))
    tail = ChangeLogReader(from_url(f"sqlite:///{tmp_path}/db"), definitions, SystemClock(), lambda: None)
    found = tail.status()
    assert {*DATABASE} - {*found} == set()
    assert {type(found[name]) for name in DATABASE if isinstance(DATABASE[name], int)} == {int, bool}


def test_a_plain_beat_has_no_series_of_what_it_lacks() -> None:
    bare = values(source={"kind": "file"}, lanes={}, survey={"load": None, "minutes": []}, destinations={})
    missing = {family.name for family in FAMILIES} - {name for name, *_ in bare}
    words = ("changelog_", "reconcile", "drift_", "lane", "envelope_", "runs_next", "broker_", "in_flight", "backlog")
    assert all(any(word in name for word in (*words, "oldest_", "mark_", "load_")) for name in missing)
    assert "wheelbeat_sent_total" not in missing


def test_the_number_of_series_does_not_depend_on_the_jobs() -> None:
    causes = {f"cause {number}": 100 - number for number in range(100)}
    many = values(
        jobs=Jobs(10**7, 10**4, {f"monitor:{number}": "no" for number in range(20)}, 10**5),
        lanes={"fast": 0, "celery": causes, "observers": [], "differences": 0, "behind": False},
    )
    few = values(lanes={"fast": 0, "celery": {"a": 1}, "observers": [], "differences": 0, "behind": False})
    assert len(many) == len(few) + CAUSES_SHOWN
    shown = {key[1]: value for key, value in many.items() if key[0] == "wheelbeat_celery_lane_jobs"}
    assert sum(shown.values()) == sum(causes.values())
    assert shown["other"] == sum(range(1, 81))


def test_the_reasons_of_a_resync_are_those_that_sources_give() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "celery_wheelbeat/sources").rglob("*.py"))
    raised = {reason for call in re.findall(r"CursorLost\((.*)\)", text) for reason in re.findall(r'"(\w{2,})"', call)}
    assert raised == {*RESYNCS}


@pytest.mark.parametrize(
    ("accept", "parse"), [("", parse_text), ("application/openmetrics-text;version=1.0.0", parse_openmetrics)]
)
def test_prometheus_gets_the_table(accept: str, parse: Any) -> None:
    body, content_type = Exposition(status).render(accept)
    assert ("openmetrics" in content_type) == bool(accept)
    parsed = {family.name: family for family in parse(body.decode())}
    series = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parsed.values()
        for sample in family.samples
        if sample.name.startswith("wheelbeat_")
    }
    for family in FAMILIES:
        shown = parsed[family.name.removesuffix("_total")]
        assert (shown.type, shown.documentation) == (family.kind, family.help)
    expected = {key: value for key, value in values().items() if key[0] != "wheelbeat_lateness_seconds"}
    plain = {key: value for key, value in series.items() if "lateness" not in key[0]}
    in_any_order = [{frozenset(key): value for key, value in found.items()} for found in (plain, expected)]
    assert in_any_order[0] == in_any_order[1], "labels are sorted by their names"
    assert series["wheelbeat_lateness_seconds_bucket", "0.025"] == 5
    assert series["wheelbeat_lateness_seconds_count",] == 6
    assert series["wheelbeat_lateness_seconds_sum",] == 400.5
    assert "process_resident_memory_bytes" in parsed


def test_before_the_first_status_there_is_only_the_process() -> None:
    body, _ = Exposition(dict).render("")
    assert b"process_cpu_seconds_total" in body
    assert b"wheelbeat_" not in body


def test_opentelemetry_gets_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(opentelemetry.metrics, "get_meter", provider.get_meter)

    def collected() -> dict[tuple[str, ...], float]:
        data = reader.get_metrics_data()
        return {
            (metric.name, *map(str, (point.attributes or {}).values())): point.value
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points  # type: ignore[union-attr]
        }

    instruments = Instruments()
    instruments.show(status)
    expected: dict[tuple[str, ...], float] = {}
    for (name, *labels), value in values().items():
        if labels == ["sum"]:
            expected[f"{name}_sum",] = value
        else:
            renamed = f"{name}_bucket" if name == "wheelbeat_lateness_seconds" else name.removesuffix("_total")
            expected[renamed, *labels] = value
    assert collected() == expected
    instruments.hide()
    assert collected() == {}
    instruments.show(lambda: status(clock_steps=9))
    assert collected()["wheelbeat_clock_steps",] == 9, "the next beat of the process uses the same instruments"
    provider.shutdown()


def test_without_opentelemetry_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opentelemetry.metrics, "get_meter", lambda *_: pytest.fail("asked for a meter"))
    monkeypatch.delitem(sys.modules, "opentelemetry.metrics")
    Instruments().show(status)


def test_alarms_name_metrics_that_exist_and_miss_none_whose_only_good_value_is_0() -> None:
    series = {
        name
        for family in FAMILIES
        for name in ([f"{family.name}_bucket"] if family.kind == "histogram" else [family.name])
    }
    page = HOWTO.read_text()
    rules = "\n".join(re.findall(r"expr: (.*)", page))
    used = {*re.findall(r"wheelbeat_\w+", rules), *re.findall(r"wheelbeat_\w+_total", page)}
    assert used - series == set()
    assert {family.name for family in FAMILIES if family.silent} - used == set()


@given(st.lists(st.tuples(st.integers(-5_000, 400_000), st.integers(1, 1_000)), max_size=50))
def test_the_histogram_counts_each_run_once_where_it_belongs(noted: list[tuple[int, int]]) -> None:
    lateness = Lateness()
    expected = [0] * (len(BOUNDS_S) + 1)
    for lateness_ms, runs in noted:
        lateness.note(lateness_ms, 0.0, runs)
        expected[bisect_left(BOUNDS_S, lateness_ms / 1000)] += runs
    found = lateness.histogram()
    assert list(found.counts) == expected
    assert found.sum_s == pytest.approx(sum(max(0, ms) * runs for ms, runs in noted) / 1000)
