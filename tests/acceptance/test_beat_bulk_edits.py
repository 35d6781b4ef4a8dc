"""A million edits in one transaction under a running beat: it follows, and jobs due meanwhile are on time."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis
from services import PrivatePostgres, PrivateRedis
from support.processes import DjangoProject, redis_conf
from support.site.settings import database_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.soak, pytest.mark.timeout(1_800)]

FAST = 200
"""Monitors that fire each second."""
LATE_S = 1.0
"""What 99 % of the runs may be late: a soak test may say so, nothing else runs beside it."""


@pytest.mark.promise("an-edit-is-in-force-within-two-seconds")
@pytest.mark.parametrize("edits", [100_000, 1_000_000])
def test_the_others_stay_on_time(tmp_path: Path, edits: int) -> None:
    with (
        PrivatePostgres() as postgres,
        PrivateRedis() as broker,
        DjangoProject(tmp_path, redis_conf(broker.url), database=database_of(postgres.url)) as project,
        psycopg.connect(postgres.url, autocommit=True) as connection,
    ):
        insert = (
            "INSERT INTO wheelbeat_monitor (name, task, args, interval_ms) "
            "SELECT %s || n, 'proj.note', '[1]', %s FROM generate_series(1, %s) n"
        )
        connection.execute(insert, ("slow ", 86_400_000, edits))
        connection.execute(insert, ("fast ", 1_000, FAST))

        def status() -> Any:
            row = connection.execute("SELECT status FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 1").fetchone()
            return json.loads(row[0]) if row else None

        beat = project.beat()
        beat.wait_for(f"beat: {edits + FAST + 1} jobs loaded", timeout_s=300)
        project.wait_for(lambda: (status() or {}).get("lateness", {}).get("runs", 0) > 5 * FAST, "some runs")
        connection.execute("UPDATE wheelbeat_monitor SET args = '[2]' WHERE interval_ms = 86400000")
        committed_s = time.monotonic()
        project.wait_for(
            lambda: (found := status()["source"])["changes"] >= edits and not found["behind"],
            "all edits are in force",
            timeout_s=600,
        )
        after = status()
        took_s = time.monotonic() - committed_s
        logging.getLogger(__name__).info("%s edits in force after %.1f s; %s", edits, took_s, after["lateness"])
        assert after["lateness"]["p99_s"] < LATE_S, after["lateness"]
        assert after["source"]["drift_found"] == 0
        assert beat.stop() == 0
        after = status()
        assert after["runs"]["difference"] == 0
        assert after["watchdog"] == {}
        with redis.Redis.from_url(broker.url) as client:
            (queue,) = [key for key in client.keys("*celery") if client.type(key) == b"list"]
            headers = [json.loads(message)["headers"] for message in client.lrange(queue, 0, -1)]
        fast = [header for header in headers if header["periodic_task_name"].startswith("fast")]
        fires = sorted({header["wheelbeat_fire_ms"] for header in fast})
        assert fires == list(range(fires[0], fires[-1] + 1, 1_000))
        assert len({header["id"] for header in fast}) == len(fast) == FAST * len(fires)
