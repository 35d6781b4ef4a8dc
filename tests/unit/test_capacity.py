"""Whether the monitors fit: the refusal, what this process may still take, and the lines about the load."""

from __future__ import annotations

import logging
import os
import sys
import termios
from typing import TYPE_CHECKING

import pytest
from celery.utils.log import LoggingProxy
from support.engine.definitions import Job, changes_of

from celery_wheelbeat.beat import loading as capacity
from celery_wheelbeat.beat import loading as memory
from celery_wheelbeat.beat.loading import ERASE, Loading, TerminalLine
from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.errors import TooManyJobs
from celery_wheelbeat.schedules.cron import CronTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import TextIO


def started_engine() -> Engine:
    """Return an engine without jobs."""
    engine = Engine(EngineConfig(), CronTable(), Ledger())
    engine.start(1_900_000_000_000)
    return engine


def test_what_fits_is_not_refused() -> None:
    assert capacity.refusal(1_000_000, 120.0, max_jobs=1_000_000, available_bytes=220_000_000) is None
    assert capacity.refusal(25_000_000, 120.0, max_jobs=50_000_000, available_bytes=None) is None


def test_the_refusal_names_numbers_and_remedy() -> None:
    too_many = capacity.refusal(1_000_001, 120.0, max_jobs=1_000_000, available_bytes=None)
    assert too_many is not None
    assert "about 1,000,001 monitors, wheelbeat_max_jobs allows 1,000,000" in too_many
    too_large = capacity.refusal(25_000_000, 120.0, max_jobs=50_000_000, available_bytes=3_000_000_000)
    assert too_large is not None
    assert "about 25,000,000 monitors need 5.5 GB" in too_large
    assert "3.0 GB are available to this process: give it more memory" in too_large


def test_a_small_table_is_never_refused_for_its_memory() -> None:
    assert capacity.refusal(99_999, 10_000.0, max_jobs=1_000_000, available_bytes=1) is None


def test_the_tighter_of_host_and_control_groups_counts(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    8000000 kB\n")
    (tmp_path / "own").write_text("0::/beats/one\n")
    group = tmp_path / "groups" / "beats" / "one"
    group.mkdir(parents=True)
    paths = (tmp_path / "meminfo", tmp_path / "groups", tmp_path / "own")
    assert memory.available_bytes(*paths) == 8_192_000_000
    for name, text in (("max", "max"), ("current", "5"), ("stat", "inactive_file 0")):
        (group / f"memory.{name}").write_text(text)
    assert memory.available_bytes(*paths) == 8_192_000_000, "a group without a limit"
    for name, text in (("max", "3000000000"), ("current", "2500000000"), ("stat", "anon 1\ninactive_file 500000000\n")):
        (group.parent / f"memory.{name}").write_text(text)
    assert memory.available_bytes(*paths) == 1_000_000_000, "the group above has one"
    assert memory.available_bytes(tmp_path / "none", tmp_path / "none", tmp_path / "none") is None


def test_this_process_knows_its_own_room_and_survives_settling() -> None:
    available = memory.available_bytes()
    assert available is None or available > 0
    memory.settle()


def test_a_load_that_does_not_fit_ends_the_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1_000_000)
    with pytest.raises(TooManyJobs, match="1,000,000 monitors need"):
        Loading(started_engine()).begin(1_000_000, 100.0, 0.0)


def test_progress_is_reported_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "celery.beat")
    progress = Loading(started_engine())
    progress.begin(1_000_000, 100.0, 100.0)
    for now_s in (101.0, 105.0, 110.0, 111.0, 120.0):
        progress.go_on(now_s)
    progress.end(125.0)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:2] == ["beat: Read 0 of about 1,000,000 monitors; just begun"] * 2
    assert lines[2:] == ["beat: 0 jobs loaded in 25.0 s"]


@pytest.fixture
def terminal() -> Iterator[tuple[int, TextIO]]:
    """Both ends of a terminal: what a person sees, and what a process has as its standard error."""
    seen, own = os.openpty()
    with os.fdopen(own, "w") as stream:
        yield seen, stream
    os.close(seen)


def test_a_terminal_sees_the_progress_although_celery_has_put_a_log_in_the_place_of_stderr(
    terminal: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, stream = terminal
    monkeypatch.setattr(sys, "__stderr__", stream)
    monkeypatch.setattr(sys, "stderr", LoggingProxy(logging.getLogger("celery.redirected"), logging.WARNING))
    engine = started_engine()
    progress = Loading(engine)
    progress.begin(4, 100.0, 100.0)
    assert os.read(seen, 1_000).decode() == f"{ERASE}beat: Read 0 of about 4 monitors; just begun\r"
    engine.apply(changes_of(engine.crons, Job(1, interval_ms=60_000)))
    progress.go_on(100.5)
    progress.go_on(102.0)
    assert os.read(seen, 1_000).decode() == f"{ERASE}beat: Read 1 of about 4 monitors; 0/s, 6 s to go\r"
    progress.end(103.0)
    assert os.read(seen, 1_000).decode() == f"{ERASE}\r"


def test_a_terminal_that_is_stopped_or_gone_holds_nothing_up(terminal: tuple[int, TextIO]) -> None:
    seen, stream = terminal
    line = TerminalLine(stream)
    assert line._stream is stream
    termios.tcflow(stream, termios.TCOOFF)  # what Ctrl-S does
    line.show("passed by")
    termios.tcflow(stream, termios.TCOON)
    line.show("shown")
    assert os.read(seen, 1_000).decode() == f"{ERASE}shown\r"
    stream.close()
    line.show("gone")
    assert line._stream is None
    assert TerminalLine(stream)._stream is None
    assert TerminalLine(None)._stream is None
    with open(os.devnull, "w") as nothing:
        assert TerminalLine(nothing)._stream is None
