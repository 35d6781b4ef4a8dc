"""After a gap of two hours: each misfire policy as stated, the grid where it was, the same ids."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from services import PrivateRedis
from support.processes import DjangoProject, Project, RunLine, redis_conf

from celery_wheelbeat import run_id
from celery_wheelbeat.beat.marks import MarkDocument
from celery_wheelbeat.jobs.definitions import EntryMark
from celery_wheelbeat.jobs.identity import entry_id, interval_offset_ms

if TYPE_CHECKING:
    from pathlib import Path

    from support.processes import Process

pytestmark = pytest.mark.processes

HOUR_MS = 3_600_000
GAP_MS = 2 * HOUR_MS + 600_000
POLICIES = ("auto", "skip", "latest", "all")


@pytest.mark.promise("missed-runs-follow-one-rule")
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
        reply = gap_line(beat)
        loaded_ms = round(time.time() * 1000)

        accounts: list[dict[str, Any]] = []

        def all_are_settled() -> bool:
            row = newest_row(project)
            if row is not None and row.status.get("at_ms", 0) > loaded_ms:
                accounts.append(row.status["runs"])
            return bool(accounts) and settled(accounts[-1]) >= accounts[0]["expected"]

        project.wait_for(all_are_settled, "what was due by then is settled")
        sent_ms = round(time.time() * 1000)  # messages are taken in order: what a start offers comes before this
        runs = project.wait_for_runs(
            lambda runs: any(run.name == "go" and (run.fire_ms or 0) > sent_ms for run in runs), "a run due by now"
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
        assert reply.away_s == pytest.approx(GAP_MS / 1000, abs=60)
        assert reply.replayed == sum(map(len, offered.values())), "one line says what is sent now"
        assert reply.reasons == {"restart": accounts[-1]["skipped"]["restart"]}, (
            "and what is skipped, as the ledger has it"
        )
        keys = {name: f"monitor:{number}" for number, name in enumerate(
            (f"{name} {policy}" for policy in ("auto", "skip", "latest", "all") for name in ("hour", "quick")), start=1
        )}  # fmt: skip
        for run in runs:
            if run.name in keys:
                assert run.id == run_id(keys[run.name], run.fire_ms or 0, "tests")


class GapLine(NamedTuple):
    """What a beat's log says of a restart."""

    away_s: float
    replayed: int
    reasons: dict[str, int]
    again: int


def gap_line(beat: Process) -> GapLine:
    """Wait for the line and read it."""
    text = beat.lines[beat.wait_for("beat: Restart after") - 1]
    found = re.search(
        r"after ([\d.]+) s: replayed (\S+) runs?, skipped (\S+)(?: \((.*)\))?, offered (\S+) again$", text
    )
    assert found is not None, text
    reasons = {word: _number(count) for word, count in re.findall(r"(\w+) ([\d,]+)", found[4] or "")}
    assert sum(reasons.values()) == _number(found[3])
    return GapLine(float(found[1]), _number(found[2]), reasons, _number(found[5]))


def _number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.promise("missed-runs-follow-one-rule")
def test_a_restart_says_in_one_line_what_it_replays_and_skips(tmp_path: Path, redis_url: str) -> None:
    """The restart is real: the first beat is killed, and time passes until the second one is there."""
    entries = {name: {"task": "proj.note", "schedule": 1.0} for name in ("a", "b", "c")}
    with Project(tmp_path, redis_conf(redis_url, beat_schedule=entries)) as project:
        file = project.folder / "celerybeat-schedule.wheelbeat"

        def row() -> dict[str, Any]:
            return json.loads(file.read_text()) if file.exists() else {"pid": None}

        first = project.beat()
        first.wait_for("beat: First start: replayed 0 runs, skipped 0")
        project.wait_for(lambda: row()["pid"] == first.pid and row()["status"]["runs"]["sent"] >= 9, "runs are sent")
        first.kill()
        stopped_ms = row()["marks"]["broker"]["mark_ms"]
        project.wait_for(lambda: time.time() * 1000 > stopped_ms + 9_000, "time passes without a beat")
        second = project.beat()
        line = gap_line(second)
        project.wait_for(
            lambda: row()["pid"] == second.pid and row()["status"]["runs"]["sent"], "the second one reports"
        )
        account = row()["status"]["runs"]
        assert line.away_s >= 9.0
        assert line.again == 3 * 5, "the lookback of three entries"
        assert line.replayed == 3, "of each entry the newest run"
        assert line.reasons == {"restart": account["skipped"]["restart"]}
        assert line.reasons["restart"] // 3 - int(line.away_s) + 6 in (0, 1), "a mark may lie just before a second"
        assert account["difference"] == 0


def settled(account: dict[str, Any]) -> int:
    return int(account["sent"] + sum(account["skipped"].values()))


def test_runs_that_have_expired_meanwhile_are_not_sent(tmp_path: Path, redis_url: str) -> None:
    """``next`` is an instant and may have passed; seconds count from the send, as in Celery."""
    now_ms = round(time.time() * 1000)
    marks = json.dumps({"broker": MarkDocument(now_ms - HOUR_MS).to_json()})
    with DjangoProject(tmp_path, redis_conf(redis_url)) as project:
        project.django(
            f"""
            from datetime import timedelta
            from django.core.management import call_command
            from django.db import connection
            from django.utils import timezone
            from django_wheelbeat.models import Beat

            every = dict(task="proj.note", misfire="all", interval_ms=60_000)
            Monitor.objects.create(name="next", expires_next=True, **every)
            Monitor.objects.create(name="seconds", expires_s=600, **every)
            then = timezone.now() - timedelta(days=1)
            with connection.cursor() as cursor:
                cursor.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
                for (name,) in cursor.fetchall():
                    cursor.execute(f"DROP TRIGGER {{name}}")
            Monitor.objects.update(effective_from=then)
            call_command("wheelbeat_triggers", "--install")
            Beat.objects.create(
                beat_id="before", namespace="tests", host="h", pid=1, version="0", started_at=then, seen_at=then,
                marks='''{marks}''',
            )
            """
        )
        beat = project.beat()
        beat.wait_for("runs had expired before they could be sent: skipped(expired)")
        project.worker()
        project.wait_for_runs(lambda runs: sum(run.name == "seconds" for run in runs) >= 59, "what has not expired")
        assert beat.stop() == 0
        row = newest_row(project)
        assert row is not None
        account = row.status["runs"]
        runs = project.runs("next")
        assert all((run.fire_ms or 0) > now_ms - 60_000 for run in runs)
        assert account["skipped"]["expired"] >= 58
        assert account["difference"] == 0
        assert "expiration date in the past" not in beat.output


@pytest.mark.promise("missed-runs-follow-one-rule")
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
        restarted_ms = round(time.time() * 1000)  # what the first beat has sent may only be executed now
        project.beat()
        runs = project.wait_for_runs(
            lambda runs: sum(run.name == "go" and (run.fire_ms or 0) > restarted_ms for run in runs) >= 3,
            "it is past its start",
        )
        missed = [run for run in runs if run.name == name]
        assert len(missed) == 1
        assert now_ms - HOUR_MS < (missed[0].fire_ms or 0) <= runs[-1].at_ms
        assert [run for run in runs if run.name == "daily"] == [], "a cron is not offered past its starting deadline"


def _seconds_since_fire(name: str, now_ms: int) -> float:
    """Return how long ago the hourly entry of this name fired."""
    return (now_ms - interval_offset_ms(entry_id(name), HOUR_MS)) % HOUR_MS / 1000


class StatusRow(NamedTuple):
    """What a beat has stored about itself."""

    mark_ms: int
    status: dict[str, Any]


def newest_row(project: Project) -> StatusRow | None:
    with closing(sqlite3.connect(project.folder / "db.sqlite3")) as database:
        found = database.execute("SELECT marks, status FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 1").fetchone()
    marks = json.loads(found[0]) if found else {}
    return StatusRow(marks["broker"]["mark_ms"], json.loads(found[1] or "{}")) if marks else None


def test_the_broker_dies_and_then_the_beat(tmp_path: Path) -> None:
    lookback_ms = 2_000
    with PrivateRedis(appendonly="yes", appendfsync="always") as redis:
        conf = redis_conf(redis.url, wheelbeat_restart_lookback=lookback_ms / 1000)
        with DjangoProject(tmp_path, conf) as project:
            project.django(
                f"""
                for policy in {POLICIES}:
                    Monitor.objects.create(name=policy, task="proj.note", interval_ms=1000, misfire=policy)
                """
            )
            first = project.beat()
            project.wait_for(lambda: (row := newest_row(project)) and row.status["runs"]["sent"] >= 8, "runs are sent")
            redis.stop()
            first.wait_for("onnection")
            stays: list[int] = []

            def is_held() -> bool:
                row = newest_row(project)
                assert row is not None
                if not row.status["destinations"]["broker"]["connected"]:
                    stays.append(row.mark_ms)
                return bool(stays) and row.status["at_ms"] >= stays[0] + 2 * lookback_ms + 1000

            project.wait_for(is_held, "the broker is away for longer than is offered again")
            first.kill()
            died = newest_row(project)
            assert died is not None
            mark_ms = died.mark_ms
            assert set(stays) == {mark_ms}
            killed_ms = round(time.time() * 1000)

            redis.start()
            second = project.beat()
            project.worker()

            def all_go_on(runs: list[RunLine]) -> bool:
                newest_ms = max((run.fire_ms or 0 for run in runs if run.name == "skip"), default=0)
                return newest_ms > killed_ms and {run.name for run in runs if run.fire_ms == newest_ms} == {*POLICIES}

            runs = project.wait_for_runs(all_go_on, "every monitor runs again")
            assert second.stop() == 0
            stopped = newest_row(project)
            assert stopped is not None

    keys = {policy: f"monitor:{number}" for number, policy in enumerate(POLICIES, start=1)}
    fires: dict[str, list[int]] = {policy: [] for policy in POLICIES}
    copies = Counter((run.name, run.fire_ms) for run in runs)
    for name, fire_ms in sorted(copies):
        fires[name].append(fire_ms)
    assert all(run.id == run_id(keys[str(run.name)], run.fire_ms or 0, "tests") for run in runs)

    held = [fire_ms for fire_ms in fires["all"] if fire_ms <= mark_ms]
    account = died.status["runs"]
    assert account["reoffered"] == 0, "a first start offers nothing again"
    assert 4 * len(held) <= account["sent"] < 4 * len(held) + 4, "the mark is before the first run not confirmed"
    assert account["expected"] == account["sent"] + sum(account["skipped"].values()) + account["pending"]
    window = [held[-1] + 1000, held[-1] + lookback_ms]
    assert all(count == 1 for (_, fire_ms), count in copies.items() if fire_ms not in window)
    assert all(count <= 2 for count in copies.values()), "a copy only where the broker may have had the first"

    resumed_ms = next(fire_ms for fire_ms in fires["skip"] if fire_ms > window[-1])
    assert resumed_ms > killed_ms
    for policy, first_ms in (
        ("auto", resumed_ms),
        ("skip", resumed_ms),
        ("latest", resumed_ms - 1000),
        ("all", window[-1] + 1000),
    ):
        later = [*range(first_ms, fires[policy][-1] + 1, 1000)]
        assert fires[policy] == [*held, *window, *later], policy

    account = stopped.status["runs"]
    assert account["reoffered"] == 4 * len(window)
    assert account["expected"] == account["sent"] + sum(account["skipped"].values()) + account["pending"]
    assert account["skipped"]["restart"] > 0
