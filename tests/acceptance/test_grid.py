"""Exactly the computed runs arrive: monitors in PostgreSQL, messages in Redis, every one recomputed from its row."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django_settings import database_of
from processes import DjangoProject, Process
from recorder import Recorder
from services import PrivateRedis, wait_until

from celery_wheelbeat import Cron, run_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.postgres, pytest.mark.redis]

INTERVALS_S = (1, 2, 5, 10, 15, 30, 60, 90)
CRONS = ("* * * * *", "*/2 * * * *", "*/5 * * * *")
ZONES = ("UTC", "Asia/Kolkata", "America/New_York")
CRON_SHARE = 5
"""Every fifth monitor is a cron."""
CRON_JITTER_S = 30
TABLES_OF_THE_BEAT = ("wheelbeat_monitor", "wheelbeat_changelog", "wheelbeat_quarantine", "wheelbeat_installation")


@pytest.fixture
def project(tmp_path: Path, postgres_url: str) -> Iterator[DjangoProject]:
    with PrivateRedis() as broker:
        conf = {"broker_url": broker.url, "wheelbeat_namespace": "grid"}
        with DjangoProject(tmp_path, conf, database=database_of(postgres_url)) as project:
            project.env["BROKER"] = broker.url
            yield project


def fnv1a64(data: bytes) -> int:
    """The hash of the offsets, written down a second time."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def spec(position: int) -> tuple[str, Any]:
    """The schedule of the monitor number ``position``."""
    if position % CRON_SHARE == 0:
        return "cron", (CRONS[position // CRON_SHARE % len(CRONS)], ZONES[position // CRON_SHARE % len(ZONES)])
    return "interval", INTERVALS_S[position % len(INTERVALS_S)]


def expected_fires(monitor_id: int, position: int, begin_ms: int, end_ms: int) -> list[int]:
    """Every fire time in ``(begin_ms, end_ms]``."""
    kind, value = spec(position)
    spread = fnv1a64(monitor_id.to_bytes(8, "little", signed=True))
    if kind == "interval":
        offset_ms = spread % value * 1000
        first = (begin_ms - offset_ms) // (value * 1000) + 1
        last = (end_ms - offset_ms) // (value * 1000)
        return [k * value * 1000 + offset_ms for k in range(first, last + 1)]
    offset_ms = spread % CRON_JITTER_S * 1000
    cron = Cron(*value)
    fires, at_ms = [], begin_ms - offset_ms
    while True:
        at_ms = round(cron.next_fires(datetime.fromtimestamp(at_ms / 1000, UTC), 1)[0].timestamp() * 1000)
        if at_ms + offset_ms > end_ms:
            return fires
        fires.append(at_ms + offset_ms)


def fill(project: DjangoProject, monitors: int) -> dict[str, int]:
    """Create the monitors and return name → primary key."""
    specs = [spec(position) for position in range(monitors)]
    (project.folder / "specs.json").write_text(json.dumps(specs))
    text = project.django(
        """
        import json
        rows = []
        for position, (kind, value) in enumerate(json.load(open("specs.json"))):
            schedule = {"interval_ms": value * 1000} if kind == "interval" else {"cron": value[0], "timezone": value[1]}
            rows.append(Monitor(name=f"m{position}", task="proj.note", **schedule))
        Monitor.objects.bulk_create(rows, batch_size=1000)
        print(json.dumps(dict(Monitor.objects.values_list("name", "id"))))
        """
    )
    return json.loads(text)


def status(postgres_url: str) -> dict[str, Any]:
    """The newest status document."""
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute("SELECT status FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 1").fetchone()
    return {} if row is None else json.loads(row[0])


def writes(postgres_url: str) -> dict[str, int]:
    """Rows written per table so far, from the server's statistics."""
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute(
            "SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables WHERE relname LIKE 'wheelbeat%'"
        ).fetchall()
    return dict(rows)


def stable_writes(postgres_url: str, expected_monitors: int) -> dict[str, int]:
    """Statistics arrive late: wait until those of the filling are in."""
    wait_until(
        lambda: writes(postgres_url).get("wheelbeat_monitor", 0) >= expected_monitors, "statistics of the filling", 30
    )
    return writes(postgres_url)


@pytest.mark.parametrize(
    ("monitors", "seconds"),
    [
        pytest.param(400, 15, id="short"),
        pytest.param(5000, 600, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_exactly_the_computed_runs_arrive(
    project: DjangoProject, postgres_url: str, monitors: int, seconds: int
) -> None:
    ids = fill(project, monitors)
    before = stable_writes(postgres_url, monitors)
    with Recorder(project.env["BROKER"]) as recorder:
        beat = project.beat()
        beat.wait_for("jobs loaded")
        recorder.wait_until(lambda: recorder.arrivals, "the first run")
        begin_ms = int(time.time()) * 1000 + 2000
        end_ms = begin_ms + seconds * 1000
        recorder.wait_until(
            lambda: any(arrival.fire_ms > end_ms for arrival in reversed(recorder.arrivals[-50:])),
            "the end of the stretch",
            seconds + 30,
        )
        wait_until(lambda: status(postgres_url)["at_ms"] > end_ms + 2000, "a status row after the stretch", 30)
        document = status(postgres_url)
        written = {table: rows - before.get(table, 0) for table, rows in writes(postgres_url).items()}
        reported_s = stop_and_measure(beat)
        arrivals = [arrival for arrival in recorder.arrivals if begin_ms < arrival.fire_ms <= end_ms]

    computed = {
        (name, fire_ms)
        for name, monitor_id in ids.items()
        for fire_ms in expected_fires(monitor_id, int(name[1:]), begin_ms, end_ms)
    }
    assert len(computed) > monitors
    assert {(arrival.name, arrival.fire_ms) for arrival in arrivals} == computed
    assert len(arrivals) == len(computed)
    for arrival in arrivals:
        assert arrival.id == run_id(f"monitor:{ids[arrival.name]}", arrival.fire_ms, "grid")
        assert arrival.at_ms >= arrival.fire_ms, "a run came before its fire time"

    runs = document["runs"]
    assert runs["expected"] == runs["sent"] + sum(runs["skipped"].values()) + runs["pending"]
    assert runs["difference"] == 0
    assert runs["skipped"] == {}
    assert document["watchdog"].get("found", 0) == 0
    for table in TABLES_OF_THE_BEAT:
        assert written.get(table, 0) == 0, f"the beat wrote into {table}"
    assert written["wheelbeat_beat"] <= reported_s / 2 + 5, "status rows depend on time, not on runs"
    lateness_s = sorted((arrival.at_ms - arrival.fire_ms) / 1000 for arrival in arrivals)
    print(  # noqa: T201 - the figures of the soak run
        f"{monitors} monitors, {seconds} s: {len(arrivals)} runs; lateness at the consumer p50 "
        f"{lateness_s[len(lateness_s) // 2]:.3f} s, p99 {lateness_s[len(lateness_s) * 99 // 100]:.3f} s, "
        f"max {lateness_s[-1]:.3f} s; {written['wheelbeat_beat']} status rows"
    )


def stop_and_measure(beat: Process) -> float:
    """Stop the beat; return how long it ran, in seconds."""
    assert beat.stop() == 0
    return time.monotonic() - beat.started_s
