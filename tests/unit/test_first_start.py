"""A first start stores its mark before its first run: a kill in its first seconds loses nothing from the account."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from celery.schedules import crontab
from support.beat.bench import Bench

from celery_wheelbeat.beat import supervision
from celery_wheelbeat.beat.first_mark import RECORD_S
from celery_wheelbeat.beat.standing.member import ALONE_S
from celery_wheelbeat.commands.migrate import make_tables
from celery_wheelbeat.sources.changelog import reader
from celery_wheelbeat.sources.databases.store import SqlBeatStore
from celery_wheelbeat.sources.files.mark_file import MarkFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.promise("every-due-run-is-accounted-for")


@pytest.fixture(params=["file", "database"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Settings of a beat that keeps its mark there."""
    if request.param == "file":
        return {}
    path = tmp_path / "monitors.sqlite3"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        make_tables(connection)
        if connection.in_transaction:
            connection.commit()
    return {"wheelbeat_database_url": f"sqlite:///{path}"}


@pytest.fixture
def make(tmp_path: Path, storage: dict[str, Any]) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**conf: Any) -> Bench:
        made.append(Bench(tmp_path, **storage, **conf))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def stored_mark_ms(tmp_path: Path) -> int | None:
    """Return the latest mark that another process would find now."""
    database = tmp_path / "monitors.sqlite3"
    if not database.exists():
        marks = MarkFile(tmp_path / "schedule").read().values()
        return max((mark["mark_ms"] for mark in marks), default=None)
    with closing(sqlite3.connect(database)) as connection:
        query = "SELECT max(json_extract(value, '$.mark_ms')) FROM wheelbeat_beat, json_each(marks)"
        return connection.execute(query).fetchone()[0]


def note_first_send(bench: Bench, look: Callable[[], int | None]) -> list[int | None]:
    """Return a list that gets the stored mark when the first runs are to be sent."""
    seen: list[int | None] = []
    submit_due = bench.dispatcher.submit_due

    def noted(now_s: float) -> None:
        if bench.dispatcher.pending and not seen:
            seen.append(look())
        submit_due(now_s)

    bench.dispatcher.submit_due = noted  # type: ignore[method-assign]
    return seen


def test_the_mark_is_stored_before_the_first_run_is_sent(make: Callable[..., Bench], tmp_path: Path) -> None:
    bench = make()
    began_ms = bench.clock.wall_ms()
    seen = note_first_send(bench, lambda: stored_mark_ms(tmp_path))
    bench.turn_until(lambda: bench.ledger.sent)
    (mark_ms,) = seen
    assert mark_ms is not None
    assert began_ms - 1_000 < mark_ms <= bench.clock.wall_ms()


def test_the_start_after_a_killed_first_start_knows_what_was_missed(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="celery.beat")
    schedule = {"a": {"task": "t", "schedule": 1.0}, "nightly": {"task": "t", "schedule": crontab(hour=3, minute=0)}}
    killed = make(beat_schedule=schedule)
    killed.turn_until(lambda: killed.ledger.expected)
    killed.beat.sources.report = lambda *_: None  # type: ignore[method-assign] - nothing more is written
    after = make(later_s=86_400, beat_schedule=schedule)
    after.turn_until(lambda: after.beat.state == "running" and after.ledger.sent)
    assert "Restart after 86" in caplog.text
    assert after.ledger.skipped["restart"] > 80_000
    assert after.ledger.difference(after.dispatcher.pending) == 0


@pytest.mark.parametrize("failure", ["error", "silence"])
def test_a_store_that_does_not_take_the_mark_delays_the_first_runs_for_a_moment(
    failure: str, make: Callable[..., Bench], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise sqlite3.OperationalError("disk full")

    bench = make()
    if failure == "error":
        monkeypatch.setattr(SqlBeatStore, "report", fail)
        monkeypatch.setattr(MarkFile, "write", lambda *_: False)
    else:
        monkeypatch.setattr(bench.beat.sources, "report", lambda *_: None)
        bench.turn_until(lambda: bench.beat.startup.first_mark.receipt)
        bench.turn_until(lambda: bench.ledger.expected)
        assert not bench.ledger.sent
        bench.clock.passed_s += RECORD_S
    bench.turn_until(lambda: bench.ledger.sent)
    assert caplog.text.count("The mark of this first start is not stored yet") == 1
    assert bench.ledger.difference(bench.dispatcher.pending) == 0


def test_a_clock_set_back_moves_the_stored_mark_at_once(
    make: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark ahead of the clock is ignored by the next start, which would then be a first start."""
    monkeypatch.setattr(supervision, "REPORT_EVERY_S", 1e9)
    monkeypatch.setattr(reader, "WRITE_S", 1e9)
    bench = make()
    bench.turn_until(lambda: bench.ledger.sent)
    bench.clock.wall_s -= 3_600
    bench.turn_until(lambda: bench.engine.relived.step)
    bench.turn_until(lambda: (stored_mark_ms(tmp_path) or 0) <= bench.clock.wall_ms())
    after = make(later_s=-3_500)
    after.turn_until(lambda: after.ledger.sent)
    assert after.beat.startup.stored is not None


def test_a_first_start_with_rolls_stores_the_mark_of_every_shard_and_its_entries(
    make: Callable[..., Bench], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits for a look before it loads its entries; a mark without them would make them new to the next start."""
    killed = make(wheelbeat_rolls=str(tmp_path / "roll.d"))
    killed.turn_until(lambda: killed.ledger.sent)
    killed.beat.sources.report = lambda *_: None  # type: ignore[method-assign] - nothing more is written
    after = make(later_s=1_000)
    after.turn_until(lambda: after.beat.state == "running" and after.ledger.sent)
    assert "A mark is missing" not in caplog.text
    assert after.ledger.skipped["restart"] >= 990


def test_a_first_start_whose_rolls_do_not_answer_stores_its_mark_before_it_goes_on_alone(
    make: Callable[..., Bench], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    bench = make(wheelbeat_rolls=str(tmp_path / "file" / "roll.d"))
    bench.turn_until(lambda: bench.beat.startup.first_mark.receipt)
    seen = note_first_send(bench, lambda: stored_mark_ms(tmp_path))
    bench.clock.passed_s += ALONE_S
    bench.turn_until(lambda: bench.ledger.sent)
    assert seen[0] is not None
    assert "The mark of this first start is not stored yet" not in caplog.text


@pytest.mark.parametrize("storage", ["database"], indirect=True)
def test_rows_of_other_beats_that_cannot_be_read_do_not_stop_a_start(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "monitors.sqlite3")) as connection, connection:
        for marks, status in (("[" * 100_000, "{"), ('{"broker": {"later": [1]}}', "[" * 100_000), ("{}", "[]")):
            connection.execute(
                "INSERT INTO wheelbeat_beat VALUES (?, ?, 'h', 1, '1', datetime('now'), datetime('now'), ?, ?)",
                (f"{len(marks)}", "tests" if status == "{" else "other", marks, status),
            )
    bench = make()
    bench.turn_until(lambda: bench.beat.state == "running")
    assert not bench.beat.sources.status()["error"]


def test_a_restart_waits_for_no_mark(make: Callable[..., Bench]) -> None:
    first = make()
    first.turn_until(lambda: first.ledger.sent)
    again = make()
    again.turn_until(lambda: again.ledger.expected or again.ledger.reoffered)
    assert again.beat.startup.first_mark.receipt is None


def test_a_changed_namespace_is_named_with_what_follows(
    make: Callable[..., Bench], storage: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A mark file belongs to its path, not to a namespace: without a database this is a restart."""
    first = make()
    first.turn_until(lambda: first.ledger.sent)
    first.close()
    again = make()
    again.turn_until(lambda: again.ledger.sent)
    again.close()
    assert "No beat has run in the namespace" not in caplog.text
    changed = make(wheelbeat_namespace="other")
    changed.turn_until(lambda: changed.ledger.sent)
    output = (
        "No beat has run in the namespace 'other'; the last one ran in 'tests'. This is a first start: nothing counts"
    )
    assert caplog.text.count(output) == len(storage)
