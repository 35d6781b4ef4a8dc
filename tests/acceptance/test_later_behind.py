"""A beat that is behind: overdue one-off runs, a kill in between, slow transactions that write beside them."""

from __future__ import annotations

import json
import signal
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis
from services import PrivatePostgres, PrivateRedis
from support.processes import DjangoProject, redis_conf
from support.site.settings import database_of

from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.ring import due_id
from celery_wheelbeat.later.run import LaterRun
from celery_wheelbeat.later.writers import writer_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.redis]

OVERDUE = """
INSERT INTO wheelbeat_later (part, second, id, at_ms, task, args, kwargs)
SELECT mod(second / 86400, 32), second, gen_random_uuid(), second * 1000, 'proj.note', '[' || n || ']', '{}'
FROM (SELECT n, %s::bigint + n %% 1200 AS second FROM generate_series(1, %s) AS n) AS overdue
RETURNING id::text
"""
WRITTEN = 100
"""Runs of each slow transaction."""


def written(connection: Any) -> set[str]:
    """Insert runs that are due at once; the transaction stays open."""
    now_ms = round(time.time() * 1000)
    runs = [LaterRun(str(due_id(now_ms)), now_ms, None, "proj.note", f"[{n}]", "{}", "{}") for n in range(WRITTEN)]
    writer_of(caller_of(connection)).insert(runs)
    return {run.id for run in runs}


def sent(client: redis.Redis) -> list[str]:
    """Return the task id of every message in the queue."""
    keys = [key for key in client.scan_iter("*celery") if client.type(key) == b"list"]
    return [json.loads(message)["headers"]["id"] for key in keys for message in client.lrange(key, 0, -1)]


@pytest.mark.parametrize(
    "overdue", [3_000, pytest.param(300_000, marks=[pytest.mark.soak, pytest.mark.timeout(1_800)])]
)
def test_nothing_is_lost_after_an_outage_and_a_kill(tmp_path: Path, overdue: int) -> None:
    with (
        PrivatePostgres() as postgres,
        PrivateRedis() as broker,
        DjangoProject(tmp_path, redis_conf(broker.url), database=database_of(postgres.url)) as project,
        redis.Redis.from_url(broker.url) as client,
        psycopg.connect(postgres.url, autocommit=True) as connection,
        closing(psycopg.connect(postgres.url)) as commits,
        closing(psycopg.connect(postgres.url)) as rolls_back,
    ):

        def wanted() -> bool:
            return expected <= set(sent(client))

        first_s = int(time.time()) - 1_300
        expected = {row[0] for row in connection.execute(OVERDUE, (first_s, overdue)).fetchall()}
        late, never = written(commits), written(rolls_back)
        beat = project.beat()
        project.wait_for(lambda: len(sent(client)) >= overdue // 5, "a part is sent", timeout_s=300)
        beat.send(signal.SIGKILL)
        beat.wait()
        late |= written(commits)
        beat = project.beat()
        project.wait_for(wanted, "every overdue run is sent", timeout_s=600)
        assert not (late | never) & set(sent(client))
        commits.commit()
        rolls_back.rollback()
        expected |= late
        project.wait_for(wanted, "the runs of the slow transaction are sent", timeout_s=120)
        assert beat.stop() == 0
        ids = sent(client)
        assert set(ids) == expected
        (status,) = connection.execute("SELECT status FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 1").fetchone()
        assert json.loads(status)["runs"]["difference"] == 0
        assert json.loads(status)["watchdog"] == {}
        updates = "SELECT coalesce(sum(n_tup_upd), 0) FROM pg_stat_user_tables WHERE relname LIKE 'wheelbeat_later%'"
        assert connection.execute(updates).fetchone() == (0,)
