"""Sentry and OpenTelemetry, the real packages, in a process of their own: which lane, and which headers arrive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.processes import ROOT

from celery_wheelbeat.dispatch.lane_rules import CHECKED_IN

SENTRY = """
    import sentry_sdk
    from sentry_sdk.integrations.celery import CeleryIntegration
    from sentry_sdk.transport import Transport

    class Nowhere(Transport):
        def capture_envelope(self, envelope): ...

    def install(**options):
        sentry_sdk.init(
            dsn="http://key@127.0.0.1/1", transport=Nowhere, integrations=[CeleryIntegration(**options)],
            auto_enabling_integrations=False, environment="tests",
        )
"""
OPENTELEMETRY = """
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import TracerProvider

    def install(**options):
        trace.set_tracer_provider(TracerProvider())
        CeleryInstrumentor().instrument()
"""
RUN = """
    import json, logging, sys
    from support.lanes.bench import FastBench, numbered
    from support.lanes.fast_lane import make_app
    from celery_wheelbeat.jobs.definitions import OVERLAP_SHIFT, Overlap

    app = make_app({url!r}, task_default_queue={queue!r})
    install_first = {when!r} == "before"
    if install_first:
        install(**{options!r})
    report = {{"slow": [], "headers": [], "reasons": [], "observers": [], "log": []}}
    from kombu import Connection
    class Notes(logging.Handler):
        def emit(self, record):
            report["log"].append(record.getMessage())
    logging.getLogger("celery.beat").addHandler(Notes())
    logging.getLogger("celery.beat").setLevel(logging.INFO)
    compared = []
    with FastBench(app) as bench:
        apply = bench.fast.canary.apply
        bench.fast.canary.apply = lambda one: (compared.append(one.difference), apply(one))
        bench.load(numbered(20, bench.route()))
        own = {{"shadow": "s", "reply_to": "r", "headers": {{"n": 1}}, "link": {{"task": "lanes.check"}}}}
        with_own = bench.route(options=json.dumps(own))
        bench.load(numbered(10, with_own, first=20), more_flags=Overlap.SKIP.value << OVERLAP_SHIFT)
        for minute in range(2):
            bench.pass_minutes()
            bench.drain()
            report["slow"].append(bench.slow_runs)
            report["reasons"] += bench.reasons()
            if not install_first and minute == 0:
                install(**{options!r})
        if bench.slow_runs < 60:
            bench.fast.canary.due_s = 0.0
            bench.until(lambda: compared, "a comparison")
        for now_s in (0.0, 10.0, 20.0):
            bench.lane_report.update(now_s)
        report["difference"] = sorted(set(compared))
        envelopes = [a for _, a in bench.fast.forms.answers() if not isinstance(a, str)]
        report["observers"] = sorted({{tuple(envelope.observers) for envelope in envelopes}})
    with Connection({url!r}) as connection:
        queue = connection.SimpleQueue({queue!r})
        for _ in range(60):
            message = queue.get(timeout=30)
            report["headers"].append(dict(message.headers))
            message.ack()
    print(json.dumps(report))
"""


ORDERS = [("redis", "before"), ("redis", "after"), ("amqp", "before")]
"""Broker, and when the tool is installed: before the beat starts or while it runs."""


@pytest.fixture
def broker_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


def output_of(code: str, *, python: str = sys.executable) -> str:
    """Run code in an interpreter of its own and return what it prints."""
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "tests/integration"), str(ROOT)])
    done = subprocess.run(
        [python, "-c", textwrap.dedent(code)],
        cwd=Path("/"),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(url: str, tool: str, when: str, *, python: str = sys.executable, **options: Any) -> dict[str, Any]:
    """Send 30 runs twice, a third of them with the key of their job and options of its own.

    The tool comes before the first or second time.
    """
    queue = f"observed-{uuid.uuid4()}"
    code = textwrap.dedent(RUN).format(url=url, queue=queue, when=when, options=options)
    return dict(json.loads(output_of(textwrap.dedent(tool) + code, python=python).splitlines()[-1]))


def said_about_lanes(report: dict[str, Any]) -> list[str]:
    """The lines that a start writes about lanes."""
    return [text for text in report["log"] if "fast lane" in text and "connect" not in text]


@pytest.mark.parametrize(("broker_url", "when"), ORDERS, indirect=["broker_url"])
def test_opentelemetry_stays_fast_and_every_run_has_its_trace(broker_url: str, when: str) -> None:
    report = run(broker_url, OPENTELEMETRY, when)
    assert report["slow"] == [0, 0], report["reasons"]
    assert report["observers"] == [["OpenTelemetry"]]
    assert said_about_lanes(report) == [
        "beat: OpenTelemetry seen: the headers are filled in on the fast lane",
        "beat: All 30 jobs seen so far take the fast lane",
    ]
    assert report["difference"] == [""]
    traced = [headers for headers in report["headers"] if "traceparent" in headers]
    assert len(traced) == (60 if when == "before" else 30)
    for headers in traced:
        version, trace, span, flags = headers["traceparent"].split("-")
        assert (version, trace) == ("00", headers["id"].replace("-", ""))
        assert int(flags, 16) & 1, "sampled"
        assert span == headers["wheelbeat_nonce"][:16]


@pytest.mark.parametrize(("broker_url", "when"), ORDERS, indirect=["broker_url"])
def test_sentry_stays_fast_and_every_run_has_its_trace(broker_url: str, when: str) -> None:
    report = run(broker_url, SENTRY, when)
    assert report["slow"] == [0, 0], report["reasons"]
    assert report["observers"] == [["Sentry"]]
    assert said_about_lanes(report) == [
        "beat: Sentry seen: the headers are filled in on the fast lane",
        "beat: All 30 jobs seen so far take the fast lane",
    ]
    assert report["difference"] == [""]
    traced = [headers for headers in report["headers"] if "sentry-trace" in headers]
    assert len(traced) == (60 if when == "before" else 30)
    for headers in traced:
        trace = headers["id"].replace("-", "")
        assert headers["sentry-trace"].startswith(f"{trace}-{headers['wheelbeat_nonce'][:16]}")
        assert f"sentry-trace_id={trace}" in headers["baggage"]
        assert headers["headers"]["sentry-trace"] == headers["sentry-trace"]
        assert headers["headers"]["periodic_task_name"] == headers["periodic_task_name"]
        assert abs(headers["sentry-task-enqueued-time"] - traced[0]["sentry-task-enqueued-time"]) < 60
    assert len({headers["baggage"] for headers in traced}) == len(traced)


BOTH = f"""{SENTRY.replace("def install", "def install_sentry")}
{OPENTELEMETRY.replace("def install", "def install_opentelemetry")}
    def install(**options):
        install_sentry(**options)
        install_opentelemetry()
"""


@pytest.mark.parametrize(("broker_url", "when"), ORDERS, indirect=["broker_url"])
def test_sentry_and_opentelemetry_together_stay_fast(broker_url: str, when: str) -> None:
    report = run(broker_url, BOTH, when)
    assert report["slow"] == [0, 0], report["reasons"]
    assert report["observers"] == [["OpenTelemetry", "Sentry"]]
    assert report["difference"] == [""]
    traced = [headers for headers in report["headers"] if "sentry-trace" in headers]
    assert len(traced) == (60 if when == "before" else 30)
    for headers in traced:
        trace, span = headers["id"].replace("-", ""), headers["wheelbeat_nonce"][:16]
        assert headers["traceparent"].startswith(f"00-{trace}-{span}-")
        assert headers["sentry-trace"].startswith(f"{trace}-{span}")
        assert f"sentry-trace_id={trace}" in headers["baggage"]


@pytest.mark.parametrize("broker_url", ["redis", "amqp"], indirect=True)
def test_with_monitors_of_sentry_only_the_monitored_jobs_take_the_celery_lane(broker_url: str) -> None:
    report = run(broker_url, SENTRY, "before", monitor_beat_tasks=True, exclude_beat_tasks=["job 1.*"])
    assert report["slow"] == [19, 38]
    assert report["reasons"] == []
    assert (
        f"11 jobs take the fast lane, 19 the celery lane (a few thousand runs a second): 19 jobs: {CHECKED_IN}"
        in (said_about_lanes(report)[-1])
    )
    assert report["difference"] == [""]
    for headers in report["headers"]:
        excluded = headers["periodic_task_name"].startswith("job 1")
        assert ("sentry-monitor-slug" in headers) is not excluded
        assert ("sentry-monitor-check-in-id" in headers) is not excluded
        at_s = float(headers["sentry-monitor-start-timestamp-s"])
        assert abs(at_s - headers["sentry-task-enqueued-time"]) < 60
        assert headers["headers"]["sentry-monitor-start-timestamp-s"] == headers["sentry-monitor-start-timestamp-s"]


@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
def test_with_monitors_of_sentry_for_all_every_run_is_checked_in_for(broker_url: str) -> None:
    report = run(broker_url, SENTRY, "before", monitor_beat_tasks=True)
    assert report["slow"] == [30, 60]
    assert all("sentry-monitor-check-in-id" in headers for headers in report["headers"])


EVERY_OPTION = """
    import celery, test_envelopes_bytes as tests

    assert celery.__version__.startswith("5.5.")
    wire = tests.connected({kind!r}, {url!r})
    for variant in tests.VARIANTS:
        for task in ("lanes.check", "not.registered"):
            tests.test_every_option_gives_celerys_own_bytes(wire, variant, task)
    wire.close(broken=False)
    print(len(tests.VARIANTS))
"""


@pytest.mark.parametrize("kind", ["redis", "amqp"])
def test_celery_5_5_takes_the_fast_lane(request: pytest.FixtureRequest, celery55: str, kind: str) -> None:
    """Not one byte may differ with the oldest supported Celery either: compared at run time, and for every option."""
    url = str(request.getfixturevalue(f"{kind}_url"))
    report = run(url, "def install(): pass", "before", python=celery55)
    assert report["slow"] == [0, 0], report["reasons"]
    assert said_about_lanes(report) == ["beat: All 30 jobs seen so far take the fast lane"]
    assert report["difference"] == [""]
    assert int(output_of(EVERY_OPTION.format(kind=kind, url=url), python=celery55)) > 20
