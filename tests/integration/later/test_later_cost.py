"""What a one-off run may cost from the table to the broker: Python calls of the scheduling thread, not time."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from support.lanes.fast_lane import make_app
from support.lanes.later import LaterBench

from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.ring import due_id
from celery_wheelbeat.later.run import LaterRun
from celery_wheelbeat.later.tables import create_tables, drop_tables
from celery_wheelbeat.later.writers import writer_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.postgres, pytest.mark.redis]

FEW, MANY = 500, 6_500
CALLS_MAX = 9
"""Calls for each further run: its text, its size, the check of the signature, and its share of what a batch takes."""


@pytest.fixture
def connection(postgres_url: str) -> Iterator[Any]:
    with closing(psycopg.connect(postgres_url)) as opened:
        create_tables(opened)
        opened.commit()
        yield opened
        opened.rollback()
        drop_tables(opened)
        opened.commit()


def calls_of(count: int, connection: Any, database_url: str, redis_url: str) -> int:
    """Return how many Python functions the scheduling thread calls to send ``count`` overdue runs."""
    connection.execute("TRUNCATE wheelbeat_later")
    at_ms = round(time.time() * 1000) - 1_000
    runs = [
        LaterRun(str(due_id(at_ms)), at_ms, None, "lanes.check", f"[{n}]", '{"url": "https://example.org"}', "{}")
        for n in range(count)
    ]
    writer_of(caller_of(connection)).insert(runs)
    connection.commit()
    calls = 0

    def counting(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    with LaterBench(make_app(redis_url), database_url, backlog_max=4 * MANY) as bench:
        deadline = time.monotonic() + 60
        while bench.ledger.sent < count or len(bench.later):
            assert time.monotonic() < deadline
            due = bench.later._feed._reads.waiting() or bench.lanes.pending or len(bench.later)  # type: ignore[union-attr]
            sys.setprofile(counting if due else None)
            bench.tick()
            sys.setprofile(None)
            if not bench.lanes.can_submit():
                bench.beat.wake.wait(0.05)
        assert bench.ledger.difference(bench.lanes.pending) == 0
    return calls


def test_a_further_run_costs_few_calls(connection: Any, postgres_url: str, redis_url: str) -> None:
    calls_of(FEW, connection, postgres_url, redis_url)  # what is loaded once
    few, many = (calls_of(count, connection, postgres_url, redis_url) for count in (FEW, MANY))
    assert (many - few) / (MANY - FEW) <= CALLS_MAX
