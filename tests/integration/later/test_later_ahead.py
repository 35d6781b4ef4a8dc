"""What a beat reports of the store: rows ahead, rows written, cancels, and the oldest unsent second."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from support.lanes.fast_lane import make_app
from support.lanes.later import LaterBench

from celery_wheelbeat.later import ahead
from celery_wheelbeat.later.ahead import meter
from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.ring import due_id
from celery_wheelbeat.later.run import LaterRun
from celery_wheelbeat.later.tables import create_tables, drop_tables
from celery_wheelbeat.later.writers import writer_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/later.sqlite3"
    return str(request.getfixturevalue("postgres_url"))


def connected(url: str) -> Any:
    return sqlite3.connect(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else psycopg.connect(url)


@pytest.fixture
def connection(url: str) -> Iterator[Any]:
    """A connection to the database, with the tables."""
    with closing(connected(url)) as opened:
        create_tables(opened)
        opened.commit()
        yield opened
        opened.rollback()
        drop_tables(opened)
        opened.commit()


def runs(count: int, in_s: float, task: str = "lanes.check") -> list[LaterRun]:
    at_ms = round((time.time() + in_s) * 1000)
    return [LaterRun(str(due_id(at_ms)), at_ms, None, task, f"[{n}]", "{}", "{}") for n in range(count)]


def test_the_store_is_measured(url: str, connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer_of(caller_of(connection)).insert([*runs(300, 3_600), *runs(40, -5)])
    connection.commit()
    if url.startswith("postgres"):
        connection.execute("SELECT pg_stat_force_next_flush()")
        connection.execute("ANALYZE wheelbeat_later")
        connection.commit()
    found = meter.StoreMeter(lambda: connected(url)).measure(int(time.time()) + 2)
    assert found == meter.StoreCounts(ahead.Count(300, ahead.Precision.EXACT), 340)
    monkeypatch.setattr(meter, "COUNTED_MAX", 100)
    many = meter.StoreMeter(lambda: connected(url)).measure(int(time.time()) + 2).ahead
    if url.startswith("postgres"):
        assert many.precision is ahead.Precision.ESTIMATE
        assert 200 < many.runs < 500
    else:
        assert many == ahead.Count(100, ahead.Precision.AT_LEAST)


@pytest.mark.redis
def test_a_beat_reports_what_is_ahead_and_what_was_cancelled(url: str, connection: Any, redis_url: str) -> None:
    writer = writer_of(caller_of(connection))
    far, soon, late = runs(3, 3_600), runs(2, 4), runs(5, -1)
    writer.insert([*far, *soon, *late])
    connection.commit()
    assert writer.cancel(soon[0].id)
    connection.commit()
    with LaterBench(make_app(redis_url), url) as bench:
        bench.settle(lambda: bench.ledger.sent >= 6, "the sending of everything that is due")
        bench.settle(lambda: not len(bench.later), "the end of every job")
        state = bench.later.as_json(round(time.time() * 1000))
    assert state is not None
    assert state["in_wheel"] == state["oldest_s"] == 0
    assert 3 <= state["ahead"] <= 9, "it was measured once, near the start"
    assert state["precision"] == "exact"
    assert state["cancelled"] == 1
    assert state["inserted"] is not None


def test_a_measurement_that_fails_is_logged_and_stops_nothing(
    tmp_path: Path, redis_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(meter.StoreMeter, "measure", fails)
    url = f"sqlite:///{tmp_path}/later.sqlite3"
    with closing(connected(url)) as opened:
        create_tables(opened)
        writer_of(caller_of(opened)).insert(runs(3, -1))
        opened.commit()
    with LaterBench(make_app(redis_url), url) as bench:
        bench.settle(lambda: bench.ledger.sent >= 3, "the sending of everything")
        assert bench.later.as_json(0)["ahead"] is None  # type: ignore[index]
    assert "The one-off runs ahead cannot be counted: no such file" in caplog.text
