"""Sentry, OpenTelemetry and Datadog see with our scheduler what they see with Celery's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.processes import Project, redis_conf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

SCHEDULE = {"tick": {"task": "proj.note", "schedule": 1.0}}
OURS = {"wheelbeat_fire_ms", "wheelbeat_nonce", "wheelbeat_claim_ttl", "periodic_task_name"}

SENTRY = """
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

class ToFile(Transport):
    def capture_envelope(self, envelope):
        for item in envelope.items:
            if item.type == "check_in":
                with open("seen.txt", "a") as out:
                    out.write(f"check-in {item.payload.json['monitor_slug']} {item.payload.json['status']}\\n")

sentry_sdk.init(
    dsn="http://key@127.0.0.1:9/1", transport=ToFile, traces_sample_rate=1.0,
    integrations=[CeleryIntegration(monitor_beat_tasks=True)],
)
"""

OPENTELEMETRY = """
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

class ToFile(SpanProcessor):
    def on_end(self, span):
        with open("seen.txt", "a") as out:
            out.write(f"span {span.name}\\n")

provider = TracerProvider()
provider.add_span_processor(ToFile())
trace.set_tracer_provider(provider)
CeleryInstrumentor().instrument()
"""

DATADOG = """
import ddtrace
from ddtrace.trace import TraceFilter, tracer

class ToFile(TraceFilter):
    def process_trace(self, spans):
        with open("seen.txt", "a") as out:
            for span in spans:
                out.write(f"span {span.name} {span.resource}\\n")
        return None

tracer.configure(trace_processors=[ToFile()])
ddtrace.patch(celery=True)
"""


def seen_with(folder: Path, redis_url: str, scheduler: str, hook: str) -> tuple[set[str], set[str]]:
    """Run a beat and a worker; return the headers that arrived, and what the hook saw."""
    env = {
        "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "0",
        "DD_REMOTE_CONFIGURATION_ENABLED": "0",
        "DD_TRACE_STARTUP_LOGS": "0",
    }
    with Project(folder, redis_conf(redis_url, beat_schedule=SCHEDULE), extra=hook) as project:
        beat = project.beat(scheduler=scheduler, env=env)
        project.worker(env=env)
        runs = project.wait_for_runs(lambda runs: len(runs) >= 2, "two runs")
        project.wait_for((folder / "seen.txt").exists, "the hook sees something")
        assert beat.stop() == 0
        return set(runs[-1].headers), set((folder / "seen.txt").read_text().splitlines())


@pytest.mark.parametrize(
    ("hook", "header", "line"),
    [
        (OPENTELEMETRY, "traceparent", "span apply_async/proj.note"),
        (DATADOG, None, "span celery.beat.apply_entry tick"),
    ],
    ids=["opentelemetry", "datadog"],
)
def test_a_hook_sees_what_it_sees_with_celerys_own_scheduler(
    tmp_path: Path, redis_url: str, hook: str, header: str | None, line: str
) -> None:
    stock_headers, stock_lines = seen_with(tmp_path / "stock", redis_url, "celery.beat:PersistentScheduler", hook)
    headers, lines = seen_with(tmp_path / "ours", redis_url, "wheelbeat", hook)
    assert line in stock_lines
    assert line in lines
    assert header is None or header in headers
    assert headers - OURS == stock_headers


def test_sentry_checks_in_and_adds_its_headers(tmp_path: Path, redis_url: str) -> None:
    """Sentry knows no intervals below a minute, so the entry is sent at once instead of waiting for its minute."""
    with Project(tmp_path, redis_conf(redis_url), extra=SENTRY) as project:
        printed = project.python_code(
            """
            import json
            from celery.beat import ScheduleEntry, Scheduler
            from celery.schedules import crontab
            from kombu import Queue
            from proj import app
            from celery_wheelbeat.dispatch import Run
            from celery_wheelbeat.dispatch.messages.attempt import Attempt
            from celery_wheelbeat.beat.scheduler import WheelScheduler

            def entry():
                return ScheduleEntry(name="tick", task="proj.note", schedule=crontab(), app=app)

            with app.connection_for_write() as connection:
                producer = app.amqp.Producer(connection, auto_declare=False)
                Scheduler(app, lazy=True).apply_entry(entry(), producer=producer)
                run = Run(1, "monitor:1", "tick", 0, "an-id", entry(), 1)
                attempt = Attempt(run)
                with attempt.open():
                    WheelScheduler(app=app, lazy=True).apply_entry(run.entry, producer=producer)
                assert attempt.accepted == 1
                queue = Queue("celery")(connection.default_channel)
                print(json.dumps([sorted(queue.get(no_ack=True).headers) for _ in range(2)]))
            """
        )
        stock, ours = (set(headers) for headers in json.loads(printed.splitlines()[-1]))
        assert "sentry-monitor-check-in-id" in ours
        assert ours - OURS == stock
        assert (tmp_path / "seen.txt").read_text().splitlines() == ["check-in tick in_progress"] * 2
