"""Monitors in PostgreSQL, messages in Redis: exactly the computed runs arrive, and nothing is written per run."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis
from services import PrivatePostgres, PrivateRedis
from support.processes import DjangoProject, redis_conf
from support.site.settings import database_of

from celery_wheelbeat import Cron, run_id
from celery_wheelbeat.jobs.identity import fnv1a64

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes

INTERVALS_S = (1, 2, 3, 5, 7, 10, 30, 60, 61, 300)
CRONS = ("* * * * *", "*/2 * * * *", "0 * * * *")
CRON_JITTER_S = 30
WRITES = """
    SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables
    WHERE relname LIKE 'wheelbeat%' AND relname <> 'wheelbeat_beat'
"""


def definition(number: int) -> dict[str, Any]:
    """Return the schedule of the n-th monitor: three crons to seven intervals."""
    if number % 10 < 3:
        return {"cron": CRONS[number % 3]}
    return {"interval_ms": 1000 * INTERVALS_S[number % len(INTERVALS_S)]}


def fires(job_id: int, schedule: dict[str, Any], after_ms: int, until_ms: int) -> Iterator[int]:
    """Compute the fire times of a monitor in (after, until] from what is documented."""
    digest = fnv1a64(job_id.to_bytes(8, "little"))
    if "interval_ms" in schedule:
        every_ms = schedule["interval_ms"]
        offset_ms = 1000 * (digest % (every_ms // 1000))
        first_ms = (after_ms - offset_ms) // every_ms * every_ms + every_ms + offset_ms
        yield from range(first_ms, until_ms + 1, every_ms)
        return
    offset_ms = 1000 * (digest % CRON_JITTER_S)
    after = datetime.fromtimestamp((after_ms - offset_ms) / 1000, UTC)
    for fire in Cron(schedule["cron"]).next_fires(after, 1 + (until_ms - after_ms) // 60_000):
        fire_ms = round(fire.timestamp() * 1000) + offset_ms
        if fire_ms <= until_ms:
            yield fire_ms


@pytest.mark.promise("no-drift")
@pytest.mark.promise("a-schedule-is-a-pure-function")
@pytest.mark.parametrize(
    ("monitors", "seconds"),
    [
        pytest.param(300, 12, id="short"),
        pytest.param(5000, 600, id="full", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_exactly_the_computed_runs_arrive(tmp_path: Path, monitors: int, seconds: int) -> None:
    with PrivatePostgres() as postgres, PrivateRedis() as broker:
        conf = {**redis_conf(broker.url), "broker_transport_options": {}}
        with DjangoProject(tmp_path, conf, database=database_of(postgres.url)) as project:
            definitions = {number: definition(number) for number in range(1, monitors + 1)}
            project.django(
                f"""
                Monitor.objects.bulk_create(
                    Monitor(id=number, name=f"m {{number}}", task="proj.note", args=f"[{{number}}]", **schedule)
                    for number, schedule in {definitions!r}.items()
                )
                """
            )
            beat = project.beat()
            beat.wait_for(f"beat: {monitors + 1} jobs loaded")  # celery.backend_cleanup is the one more
            begin_ms = round(time.time() * 1000) + 2000
            with psycopg.connect(postgres.url, autocommit=True) as connection:
                written = connection.execute(WRITES).fetchall()

                def stored_marks() -> Any:
                    row = connection.execute("SELECT marks FROM wheelbeat_beat").fetchone()
                    return json.loads(row[0]) if row else {}

                project.wait_for(
                    lambda: stored_marks().get("broker", {}).get("mark_ms", 0) >= begin_ms + seconds * 1000,
                    "everything until then is confirmed",
                    timeout_s=seconds + 60,
                )
                assert beat.stop() == 0
                assert connection.execute(WRITES).fetchall() == written, "a beat writes its status row and nothing else"
                row = connection.execute("SELECT marks, status FROM wheelbeat_beat").fetchone()
                updates = connection.execute(
                    "SELECT n_tup_ins + n_tup_upd FROM pg_stat_user_tables WHERE relname = 'wheelbeat_beat'"
                ).fetchone()
            assert row is not None
            assert updates is not None
            assert updates[0] <= (time.monotonic() - beat.started_s) / 2 + 10
            marks, status = json.loads(row[0]), json.loads(row[1])
            end_ms = marks["broker"]["mark_ms"]
            assert end_ms >= begin_ms + seconds * 1000
            with redis.Redis.from_url(broker.url) as client:
                headers = [json.loads(message)["headers"] for message in client.lrange("celery", 0, -1)]
            arrived = [header["id"] for header in headers if begin_ms < header["wheelbeat_fire_ms"] <= end_ms]
            expected = [
                run_id(f"monitor:{job_id}", fire_ms, "tests")
                for job_id, schedule in definitions.items()
                for fire_ms in fires(job_id, schedule, begin_ms, end_ms)
            ]
            assert len(expected) > monitors * seconds / 20
            assert sorted(arrived) == sorted(expected)
            assert status["runs"]["difference"] == 0
            assert status["watchdog"] == {}
            # A signal in the middle of a turn leaves what was just confirmed to the next start.
            settled = sum(header["wheelbeat_fire_ms"] <= end_ms for header in headers)
            account = status["runs"]
            assert account["reoffered"] == 0
            assert settled <= account["sent"] <= len(headers)
            late = status["lateness"]
            print(f"{monitors} monitors, {len(headers)} runs, lateness p50 {late['p50_s']} s, p99 {late['p99_s']} s")  # noqa: T201
