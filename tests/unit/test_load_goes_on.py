"""While monitors are still being read: what was read already fires on time, ticks return, probes answer.

And what fired before its block was read goes by the misfire policy: no fire time is unaccounted for.
"""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from celery import Celery
from services import free_port
from support.beat.stepped import STEP_MS, SteppedBeat
from support.changelog.table import PLAIN, TableOfMonitors
from support.engine.definitions import batch_of

from celery_wheelbeat import sources
from celery_wheelbeat.beat.scheduler import WheelScheduler
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.sources import MonitorDatabase, ReportingBeat
from celery_wheelbeat.sources.changelog import bulk_load as bulk
from celery_wheelbeat.sources.changelog import table_pass as walk
from celery_wheelbeat.sources.changelog.bulk_load import ColumnBlock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from celery_wheelbeat.jobs.compile_columns import Shapes
    from celery_wheelbeat.schedules.kinds import Int64s

START_MS = 1_800_000_000_000
FAR_MS = 3_600_000
WAIT_S = 120.0
EARLY, LATE = range(1, 11), range(11, 21)
FREQUENT, LATEST, RARE = 11, 12, 13
"""Of the monitors that are read late: each five seconds, by three policies."""


class Store:
    """``BeatStore`` of an installation that starts for the first time."""

    def namespace(self) -> str:
        return "tests"

    def marks(self, _namespace: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {}

    def reporting(self, _namespace: str, _within_s: float) -> Sequence[ReportingBeat]:
        return []

    def later(self) -> Mapping[str, Any]:
        return {}

    def quarantined(self) -> Mapping[str, tuple[str, str]]:
        return {}

    def beats(self) -> Sequence[object]:
        return []

    def report(self, *_row: object) -> None: ...

    def finish(self, _finished: object) -> None: ...

    def quarantine(self, *_keys: object) -> None: ...


@pytest.fixture
def beat(monkeypatch: pytest.MonkeyPatch) -> Iterator[SteppedBeat]:
    """A beat that has read the first of two blocks of ten monitors each."""
    monkeypatch.setattr(walk, "BLOCK_ROWS", 10)
    table = TableOfMonitors()
    for job_id in (*EARLY, *LATE):
        table.rows[job_id] = PLAIN._replace(
            id=job_id, name=f"m{job_id}", args="[1]", interval_ms=5_000, jitter_s=0, enabled=job_id <= RARE
        )
    table.rows[LATEST] = table.rows[LATEST]._replace(misfire="latest")
    table.rows[RARE] = table.rows[RARE]._replace(interval_ms=FAR_MS)
    made = SteppedBeat(MonitorDatabase("sqlite", table, Store()), start_ms=START_MS - 10_000)  # type: ignore[arg-type]
    made.until(lambda: made.status["loaded_rows"] == len(EARLY), "the first block")
    made.database_answers = False
    yield made
    made.close()


def test_what_is_read_already_fires_on_time_while_the_load_continues(beat: SteppedBeat) -> None:
    for _ in range(200):
        beat.step()
        now_ms = beat.clock.wall_ms()
        fires = beat.fires()
        begun_ms = min((times[0] for times in fires.values()), default=now_ms)
        due = list(range(begun_ms, now_ms - STEP_MS + 1, 5_000))
        assert all(fires.get(job_id, [])[: len(due)] == due for job_id in EARLY)
    assert len(due) == 10
    assert not beat.status["loaded"]
    assert beat.scheduler._beat is not None
    assert beat.scheduler._beat.state == "loading"
    assert beat.difference == 0


def test_what_fired_before_its_block_was_read_goes_by_its_policy(beat: SteppedBeat) -> None:
    begun_ms = beat.engine.cursor_ms
    beat.run(40)
    assert {*beat.fires()} == {*EARLY}
    beat.database_answers = True
    beat.until(lambda: beat.current, "the second block")
    loaded_ms = beat.engine.cursor_ms
    beat.run(10)
    missed = list(range(begun_ms - begun_ms % 5_000 + 5_000, loaded_ms + 1, 5_000))
    lookback_ms = begun_ms + 5_000
    early = [at for at in missed if at <= lookback_ms]
    assert len(missed) - len(early) > 5
    assert [at for at in beat.sent(FREQUENT) if at <= loaded_ms] == early, "auto: a frequent run is not made up for"
    assert [at for at in beat.sent(LATEST) if at <= loaded_ms] == [*early, missed[-1]]
    assert beat.sent(RARE) == [START_MS], "auto: a rare one is"
    account = beat.account
    assert account["restart"] == 2 * (len(missed) - len(early)) - 1
    assert account["sent"] == len(beat.broker.messages), "nobody can have sent any of them before: each one counts"
    assert beat.difference == 0


class Gated:
    """``ColumnReader`` that does not come back with its second block before ``gate`` is open."""

    def __init__(self, table: TableOfMonitors, gate: threading.Event) -> None:
        self.table = table
        self.gate = gate

    def cuts(self, after_id: int, _block_rows: int) -> list[int]:
        return [last for last in (EARLY[-1], LATE[-1]) if last > after_id]

    def named(self, _names: Sequence[str]) -> Int64s:
        return np.empty(0, np.int64)

    def read(self, bounds: Sequence[int], _shapes: Shapes, _excluded: Int64s) -> ColumnBlock:
        after_id, up_to_id = bounds[0], bounds[-1]
        if after_id >= EARLY[-1]:
            assert self.gate.wait(WAIT_S)
        rows = [row for job_id, row in self.table.rows.items() if after_id < job_id <= up_to_id]
        return ColumnBlock(batch_of([], CronTable()), np.empty(0, np.uint32), rows)

    def read_ids(self, *_arguments: Any) -> ColumnBlock:
        raise AssertionError("not in a load")

    def close(self) -> None: ...


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_ticks_return_and_probes_answer_while_a_reader_waits_for_its_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "TOGETHER", 1)
    table, gate, port = TableOfMonitors(), threading.Event(), free_port()
    for job_id in (*EARLY, *LATE):
        table.rows[job_id] = PLAIN._replace(id=job_id, name=f"m{job_id}", interval_ms=1_000, jitter_s=0)
    app = Celery("loading", broker="memory://", set_as_current=False)
    app.conf.update(wheelbeat_http_port=port, wheelbeat_namespace="tests", result_expires=None)
    database = MonitorDatabase("postgresql", table, Store(), lambda: Gated(table, gate))  # type: ignore[arg-type]
    sources.register(lambda _app: database)
    scheduler = WheelScheduler(app=app, schedule_filename=str(tmp_path / "schedule"))
    end_s = time.monotonic() + WAIT_S

    def sent() -> int:
        assert scheduler._beat is not None
        return scheduler._beat.engine.ledger.sent

    try:
        scheduler.tick()  # nobody opens the gate: a tick that waited for the load would not come back
        while sent() < 3 * len(EARLY):
            assert time.monotonic() < end_s
            scheduler.tick()
        assert get(port, "/livez") == (200, "ok\n")
        status, body = get(port, "/readyz")
        assert (status, "[-] loaded: loading" in body) == (503, True)
        assert scheduler._beat is not None
        assert len(scheduler._beat.engine) == len(EARLY)
        gate.set()
        while get(port, "/readyz")[0] != 200:
            assert time.monotonic() < end_s
            scheduler.tick()
        assert len(scheduler._beat.engine) == len(EARLY) + len(LATE)
    finally:
        gate.set()
        scheduler.close()
        app.close()
