"""Why a job fires when it does: every line of ``explain``, computed from definitions and a status document."""

from __future__ import annotations

import sys
from datetime import timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from celery.schedules import crontab, schedule, solar
from click.testing import CliRunner

from celery_wheelbeat import run_id
from celery_wheelbeat.commands.cli import wheelbeat
from celery_wheelbeat.commands.explain import Beats, explanation, last_fires
from celery_wheelbeat.dispatch.lane_rules import ENTRY, ONE_OFF
from celery_wheelbeat.dispatch.messages.tracing import CheckIns
from celery_wheelbeat.jobs.rows import MonitorRow
from celery_wheelbeat.schedules.intervals import Bounded, Interval
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.sources.lookup import Stored

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

NOW_MS = 1_764_000_000_000  # 2025-11-24T16:00:00Z, a Monday
HOUR_MS = 3_600_000
SINCE_MS = NOW_MS - 86_400_000


@pytest.fixture
def app() -> Celery:
    app = Celery("unit", broker="redis://", set_as_current=False)
    app.conf.timezone = "Europe/Rome"
    return app


def row(**columns: Any) -> MonitorRow:
    """A monitor that fires every minute; ``columns`` replace what it says."""
    plain = dict.fromkeys(MonitorRow._fields)
    plain |= {"id": 42, "name": "m", "task": "proj.check", "args": "[]", "kwargs": "{}", "timezone": "UTC"}
    plain |= {"day_rule": "and", "one_off": False, "expires_next": False, "enabled": True, "misfire": "auto"}
    plain |= {"overlap": "allow", "effective_from_ms": SINCE_MS}
    if not columns.keys() & {"cron", "once_at_ms", "solar_event"}:
        plain["interval_ms"] = 60_000
    return MonitorRow(**(plain | columns))  # type: ignore[arg-type]


def lines(app: Celery, stored: Stored, settings: Settings | None = None, *reports: Any) -> str:
    found = explanation(app, settings or Settings(), stored, Beats("ns", reports), NOW_MS)
    return "\n".join(f"{label} {text}" for label, text in found)


def of_row(app: Celery, settings: Settings | None = None, *reports: Any, **columns: Any) -> str:
    return lines(app, Stored("m", row(**columns), None, "ns", None), settings, *reports)


def of_entry(app: Celery, when: Any, **entry: Any) -> str:
    return lines(app, Stored("e", None, {"task": "proj.check", "schedule": when, **entry}, None, None))


def status(**changes: Any) -> dict[str, Any]:
    runs = {"skipped": {"restart": 3}}
    document = {"state": "running", "runs": runs, "skips": [], **changes}
    return {"host": "h", "pid": 7, "age_s": 1.0, "status": document}


def test_an_interval_with_its_offset_its_fires_and_their_ids(app: Celery) -> None:
    text = of_row(app, jitter_s=0, interval_ms=1_800_000)
    assert "job monitor:42, task proj.check" in text
    assert "schedule every 30m" in text
    assert "offset 0s (exactly on its grid)" in text
    assert "shard 42 of 256" in text
    assert f"next 2025-11-24 16:30:00Z  run {run_id('monitor:42', NOW_MS + 1_800_000, 'ns')}" in text
    assert f"last 2025-11-24 16:00:00Z  run {run_id('monitor:42', NOW_MS, 'ns')} (computed)" in text
    assert "misfire auto: the newest missed run is sent" in text
    assert "enabled; in force since 2025-11-23 16:00:00Z" in text


def test_a_cron_in_words_with_its_zone_and_the_moved_hour(app: Celery) -> None:
    text = of_row(app, cron="30 2 29 3 *", timezone="Europe/Berlin", jitter_s=0)
    assert "time zone Europe/Berlin (30 2 29 3 *)" in text
    assert "next 2026-03-29 03:00:00 CEST (2026-03-29T01:00:00Z)" in text
    assert "last never with the current definition" in text
    assert "wheelbeat_cron_jitter is 30 s" in of_row(app, cron="30 2 * * *")
    assert "day rule 'or'" in of_row(app, cron="0 0 1 * 1", day_rule="or")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"enabled": False}, "state disabled: nothing is sent"),
        ({"finished_at_ms": NOW_MS}, "state finished: its only run was confirmed at 2025-11-24 16:00:00Z"),
        ({"end_at_ms": NOW_MS - 1000}, "state ended at 2025-11-24 15:59:59Z"),
        ({"end_at_ms": NOW_MS - 1000}, "next never again"),
        ({"once_at_ms": NOW_MS - HOUR_MS}, "next as soon as a beat runs: its time has passed"),
        ({"once_at_ms": NOW_MS - HOUR_MS, "finished_at_ms": NOW_MS}, "next never again"),
        ({"once_at_ms": NOW_MS - HOUR_MS, "enabled": False}, "next never again"),
        ({"once_at_ms": NOW_MS - HOUR_MS, "misfire": "skip"}, "next never again"),
        ({"start_at_ms": NOW_MS + HOUR_MS}, "start 2025-11-24 17:00:00Z, inclusive"),
        ({"start_at_ms": NOW_MS + HOUR_MS}, "(start_at names the phase)"),
        ({"incident_interval_ms": 10_000, "incident_until_ms": NOW_MS + HOUR_MS}, "incident every 10s until"),
        ({"once_at_ms": NOW_MS + HOUR_MS}, "schedule once at 2025-11-24 17:00:00Z"),
        (
            {"solar_event": "sunset", "solar_latitude": 41.9, "solar_longitude": 12.5},
            "schedule sunset at latitude 41.9",
        ),
        ({"misfire": "all"}, "misfire all: every missed run is sent"),
        ({"misfire": "skip"}, "misfire skip:"),
        ({}, "misfire auto: missed runs are skipped"),
        ({"overlap": "queue_one"}, "overlap queue one"),
        ({"overlap": "queue_one"}, "lane fast"),
        ({"one_off": True}, f"lane celery: {ONE_OFF}"),
        ({"expires_next": True}, "lane celery: it expires at its next fire time"),
        ({"options": '{"countdown": 5}'}, "lane celery: its option 'countdown'"),
        ({"cron": "0 0 31 2 *"}, "state quarantined, never sent: cron: cron '0 0 31 2 *' never fires"),
        ({"kwargs": "{"}, "state quarantined, never sent: kwargs"),
    ],
)
def test_what_a_monitor_says(app: Celery, columns: dict[str, Any], expected: str) -> None:
    assert expected in of_row(app, **columns)


def test_quarantine_and_a_name_that_an_entry_has_too(app: Celery) -> None:
    assert "quarantine not sent: no such task" in lines(app, Stored("m", row(), None, None, "no such task"))
    both = lines(app, Stored("m", row(), {"task": "proj.check", "schedule": 5.0}, None, None))
    assert "job entry:m" in both
    assert "conflict monitor 42 of the same name is quarantined" in both


def test_entries_of_every_kind(app: Celery) -> None:
    assert "schedule every 5s" in of_entry(app, 5.0)
    assert "time zone Europe/Rome (0 3 * * *)" in of_entry(app, crontab(hour=3, minute=0))
    assert "misfire latest" in of_entry(app, 5.0)
    assert "schedule sunset at latitude 1, longitude 2" in of_entry(app, solar("sunset", 1, 2))
    asked = of_entry(app, schedule(timedelta(seconds=5), nowfun=lambda: None))
    assert "polled at run time" in asked
    assert "without guarantees" in asked
    assert "misfire none: runs missed while no beat is running are lost" in asked
    assert "IANA" not in asked
    app.timezone = timezone(timedelta(hours=5, minutes=30))
    for nameless in (crontab(hour=3, minute=0), schedule(timedelta(days=1), relative=True)):
        text = of_entry(app, nameless)
        assert "polled at run time" in text
        assert "Celery's time zone is not an IANA zone of this machine" in text
    for broken in ("x", None, 0):
        assert "state quarantined, never sent" in of_entry(app, broken)
    assert "zz" in of_entry(app, 5.0, zz=1)
    assert f"lane celery: {ENTRY}" in of_entry(app, 5.0)


def test_sentry_keeps_the_jobs_that_it_checks_in_for_off_the_fast_lane(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_wheelbeat.commands.explain.check_ins", lambda: CheckIns(("left-out.*",)))
    assert "lane celery: Sentry checks in for its runs" in of_row(app)
    assert "lane celery: Sentry checks in for its runs" in of_row(app, cron="0 3 * * *")
    for columns in ({"name": "left-out-1"}, {"interval_ms": 30_000}):
        assert "lane fast" in of_row(app, **columns)
    assert "lane fast" in of_row(app, Settings(dispatch="fast"))


def test_the_lane_and_who_keeps_a_job_off_the_fast_one(app: Celery) -> None:
    assert "lane fast, as far as this process can tell" in of_row(app)
    assert "wheelbeat_dispatch is 'celery'" in of_row(app, Settings(dispatch="celery"))
    app.conf.task_send_sent_event = True
    assert "task_send_sent_event" in of_row(app)
    memory = Celery("memory", broker="memory://", set_as_current=False)
    assert "transport is 'memory'" in of_row(memory)


@pytest.mark.parametrize("broker", ["nowhere://", "sqs://"])
def test_a_broker_whose_transport_cannot_be_loaded(
    app: Celery, broker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    app.conf.update(broker_url=broker, beat_schedule={"e": {"task": "proj.check", "schedule": 60.0}})
    app.conf.beat_schedule_filename = str(tmp_path / "none")
    shown = asked(app, "explain", "e")
    assert "lane       none: broker_url: its transport cannot be loaded" in shown.output
    assert shown.exit_code == 0
    sent = asked(app, "run", "e")
    assert sent.output.startswith("Error: broker_url: its transport cannot be loaded")
    assert sent.exit_code == 1


def asked(app: Celery, *words: str) -> Result:
    """What ``celery wheelbeat …`` answers."""
    context = CLIContext(app=app, no_color=True, workdir=".")
    return CliRunner().invoke(wheelbeat, words, obj=context, standalone_mode=True)


def test_skips_that_concern_the_job(app: Celery) -> None:
    gap = {"reason": "restart", "runs": 500, "from_ms": NOW_MS - HOUR_MS, "until_ms": NOW_MS, "jobs": []}
    named = {"reason": "error", "runs": 2, "from_ms": NOW_MS, "until_ms": NOW_MS, "jobs": ["monitor:42"]}
    others = named | {"jobs": ["monitor:43"], "reason": "unroutable"}
    text = of_row(app, None, status(skips=[gap, named, others]))
    assert "beat h pid 7, running, reported now" in text
    assert "skipped, all jobs: restart 3" in text
    assert "skipped restart: 2025-11-24 15:00:00Z to 2025-11-24 16:00:00Z, 500 runs of all jobs; this job" in text
    assert "skipped error: 2025-11-24 16:00:00Z, runs of this job; 2 runs in total" in text
    assert "unroutable" not in text
    assert "skipped restart:" not in of_row(app, None, status(skips=[gap]), cron="0 3 * * *")
    assert "skipped restart:" not in of_row(app, None, status(skips=[gap]), effective_from_ms=NOW_MS + 1)
    assert "beats none has reported" in of_row(app)


def test_last_fires_look_back_as_far_as_needed_and_no_further() -> None:
    year_ms = 365 * 86_400_000
    assert last_fires(Bounded(Interval(timedelta(days=365))), 3 * year_ms, 0, 2) == [2 * year_ms, 3 * year_ms]
    assert last_fires(Bounded(Interval(0.001)), 5, 0, 3) == [3, 4, 5]
    assert last_fires(Bounded(Interval(1)), 5_000, 4_500, 3) == [5_000]
    assert last_fires(Bounded(Interval(1), start_ms=6_000), 5_000, -(10**15), 3) == []
