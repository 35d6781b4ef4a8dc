"""After a gap of two hours: each misfire policy as stated, the grid where it was, the same ids."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from processes import DjangoProject, Project, redis_conf

from celery_wheelbeat import run_id
from celery_wheelbeat.marks import EntryMark, MarkDocument
from celery_wheelbeat.runs import entry_id, interval_offset_ms

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

HOUR_MS = 3_600_000
GAP_MS = 2 * HOUR_MS + 600_000


def test_monitors_are_offered_as_their_policy_says(tmp_path: Path, redis_url: str) -> None:
    now_ms = round(time.time() * 1000)
    mark_ms = now_ms - GAP_MS
    start_ms = now_ms - 24 * HOUR_MS - 300_000  # no fire time lies within five minutes of now
    marks = json.dumps({"broker": MarkDocument(mark_ms).to_json()})
    with DjangoProject(tmp_path, redis_conf(redis_url)) as project:
        project.django(
            f"""
            from datetime import UTC, datetime, timedelta
            from django.core.management import call_command
            from django.db import connection
            from django.utils import timezone
            from django_wheelbeat.models import Beat

            phase = {{"start_at": datetime.fromtimestamp({start_ms} / 1000, UTC)}}
            for policy in ("auto", "skip", "latest", "all"):
                for name, every in (("hour", {HOUR_MS}), ("quick", 600_000)):
                    Monitor.objects.create(
                        name=f"{{name}} {{policy}}", task="proj.note", interval_ms=every, misfire=policy, **phase
                    )
            Monitor.objects.create(name="new", task="proj.note", interval_ms={HOUR_MS}, misfire="all", **phase)
            Monitor.objects.create(name="go", task="proj.note", interval_ms=1000)
            then = timezone.now() - timedelta(days=1)
            # the database keeps effective_from itself; here it has to lie a day back
            with connection.cursor() as cursor:
                cursor.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
                for (name,) in cursor.fetchall():
                    cursor.execute(f"DROP TRIGGER {{name}}")
            Monitor.objects.exclude(name="new").update(effective_from=then)
            call_command("wheelbeat_triggers", "--install")
            Beat.objects.create(
                beat_id="before", namespace="tests", host="h", pid=1, version="0", started_at=then, seen_at=then,
                marks='''{marks}''',
            )
            """
        )
        project.worker()
        beat = project.beat()
        beat.wait_for("jobs loaded")
        loaded_ms = round(time.time() * 1000)  # messages are taken in order: what a start offers comes before this
        runs = project.wait_for_runs(
            lambda runs: any(run.name == "go" and (run.fire_ms or 0) > loaded_ms for run in runs), "a run due by now"
        )
        assert beat.stop() == 0
        offered: dict[str, list[int]] = {}
        for run in runs:
            assert run.fire_ms is not None
            offered.setdefault(str(run.name), []).append(run.fire_ms)
        hours = [ms for ms in range(start_ms, now_ms, HOUR_MS) if mark_ms < ms]
        tens = [ms for ms in range(start_ms, now_ms, 600_000) if mark_ms < ms]
        assert offered.pop("go")
        assert offered == {
            "hour auto": hours[-1:],
            "hour latest": hours[-1:],
            "hour all": hours,
            "quick latest": tens[-1:],
            "quick all": tens,
        }
        keys = {name: f"monitor:{number}" for number, name in enumerate(
            (f"{name} {policy}" for policy in ("auto", "skip", "latest", "all") for name in ("hour", "quick")), start=1
        )}  # fmt: skip
        for run in runs:
            if run.name in keys:
                assert run.id == run_id(keys[run.name], run.fire_ms or 0, "tests")


def test_entries_are_offered_once_within_their_deadline(tmp_path: Path, redis_url: str) -> None:
    now_ms = round(time.time() * 1000)
    name = next(name for name in map("hour {}".format, range(99)) if 300 < _seconds_since_fire(name, now_ms) < 3300)
    schedule = {
        name: {"task": "proj.note", "schedule": 3600.0},
        "go": {"task": "proj.note", "schedule": 1.0},
    }
    extra = """
    from celery.schedules import crontab
    app.conf.beat_schedule = {
        **app.conf.beat_schedule,
        "daily": {"task": "proj.note", "schedule": crontab(minute=0, hour=(time.gmtime().tm_hour - 1) % 24)},
    }
    """
    conf = redis_conf(redis_url, beat_schedule=schedule, beat_cron_starting_deadline=60)
    with Project(tmp_path, conf, extra=extra) as project:
        first = project.beat()
        mark_file = project.folder / "celerybeat-schedule.wheelbeat"
        project.wait_for(
            lambda: mark_file.exists() and json.loads(mark_file.read_text())["marks"]["broker"]["entries"],
            "the mark is written",
        )
        assert first.stop() == 0
        row = json.loads(mark_file.read_text())
        document = MarkDocument.from_json(row["marks"]["broker"])
        entries = {
            name: EntryMark(mark.definition_hash, now_ms - 24 * HOUR_MS) for name, mark in document.entries.items()
        }
        row["marks"]["broker"] = MarkDocument(now_ms - GAP_MS, entries=entries).to_json()
        mark_file.write_text(json.dumps(row))
        project.worker()
        project.beat()
        runs = project.wait_for_runs(
            lambda runs: sum(run.name == "go" and (run.fire_ms or 0) > now_ms for run in runs) >= 3,
            "it is past its start",
        )
        missed = [run for run in runs if run.name == name]
        assert len(missed) == 1
        assert now_ms - HOUR_MS < (missed[0].fire_ms or 0) <= runs[-1].at_ms
        assert [run for run in runs if run.name == "daily"] == [], "a cron is not offered past its starting deadline"


def _seconds_since_fire(name: str, now_ms: int) -> float:
    """Return how long ago the hourly entry of this name fired."""
    return (now_ms - interval_offset_ms(entry_id(name), HOUR_MS)) % HOUR_MS / 1000
