"""Sentry and OpenTelemetry, the real packages, in a process of their own: which lane, and which headers arrive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import ROOT
from services import PrivateRabbit, PrivateRedis

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    import json, sys
    from fast_bench import FastBench, numbered
    from lanes import make_app

    app = make_app({url!r})
    install_first = {when!r} == "before"
    if install_first:
        install(**{options!r})
    report = {{"slow": [], "headers": [], "reasons": [], "observers": []}}
    from kombu import Connection
    with FastBench(app) as bench:
        bench.load(numbered(30, bench.route()))
        for minute in range(2):
            bench.pass_minutes()
            bench.drain()
            report["slow"].append(bench.slow_runs)
            report["reasons"] += bench.reasons()
            if not install_first and minute == 0:
                install(**{options!r})
        bench.lanes.fast._compare_due_s = 0.0
        compared = []
        take = bench.lanes.fast._take_in_comparison
        bench.lanes.fast._take_in_comparison = lambda one: (compared.append(one.difference), take(one))
        if not bench.reasons():
            bench.until(lambda: compared, "a comparison")
        report["difference"] = compared

        report["observers"] = [list(a.observers) for _, a in bench.lanes.fast.forms.answers() if not isinstance(a, str)]
    with Connection({url!r}) as connection:
        queue = connection.SimpleQueue("celery")
        for _ in range(60):
            message = queue.get(timeout=5)
            report["headers"].append(dict(message.headers))
            message.ack()
    print(json.dumps(report))
"""


ORDERS = [("redis", "before"), ("redis", "after"), ("amqp", "before")]
"""Broker, and when the tool is installed: before the beat starts or while it runs."""


@pytest.fixture(scope="module")
def broker_url(request: pytest.FixtureRequest) -> Iterator[str]:
    with PrivateRedis() if request.param == "redis" else PrivateRabbit() as server:
        yield server.url


def run(url: str, tool: str, when: str, **options: Any) -> dict[str, Any]:
    """Send 30 runs twice, with the tool installed before the first or before the second time."""
    code = textwrap.dedent(tool) + textwrap.dedent(RUN).format(url=url, when=when, options=options)
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path("/"),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(("broker_url", "when"), ORDERS, indirect=["broker_url"])
def test_opentelemetry_stays_fast_and_every_run_has_its_trace(broker_url: str, when: str) -> None:
    report = run(broker_url, OPENTELEMETRY, when)
    assert report["slow"] == [0, 0], report["reasons"]
    assert report["observers"] == [["OpenTelemetry"]]
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


@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
def test_sentry_with_monitors_takes_the_celery_lane(broker_url: str) -> None:
    report = run(broker_url, SENTRY, "before", monitor_beat_tasks=True)
    assert report["slow"] == [30, 60]
    assert "is replaced" in report["reasons"][0]
    assert all("sentry-monitor-slug" in headers for headers in report["headers"])
