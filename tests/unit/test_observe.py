"""What a beat says about itself: lateness, threads, lines of the log, the status document and its page."""

from __future__ import annotations

import json
import logging
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.beat.observed import observed

from celery_wheelbeat.dispatch.reports.lateness import Lateness, Quantiles
from celery_wheelbeat.dispatch.reports.send_log import LINES_MAX, SendLog
from celery_wheelbeat.engine.ledger import REASONS, Ledger
from celery_wheelbeat.observe.gap_log import OutageLog
from celery_wheelbeat.observe.liveness import Liveness
from celery_wheelbeat.observe.status import document
from celery_wheelbeat.observe.status_text import status_text

PAGE = Path(__file__).parent.parent.parent / "docs/reference/status.md"


def paths(value: Any, prefix: str = "") -> set[str]:
    """Return the dotted paths of a document's fields; what hangs on free keys counts as one field."""
    if not isinstance(value, dict) or prefix.rstrip(".") in (
        "jobs.reasons",
        "jobs.names",
        "runs.skipped",
        "watchdog",
        "threads",
    ):
        return {prefix.rstrip(".")}
    star = prefix == "destinations."
    return {path for key, item in value.items() for path in paths(item, f"{prefix}{'*' if star else key}.")}


def test_every_field_is_on_the_page_and_the_document_is_json() -> None:
    status = document(observed())
    assert json.loads(json.dumps(status)) == status
    page = PAGE.read_text()
    assert [path for path in sorted(paths(status)) if f"`{path}`" not in page] == []
    assert [reason for reason in REASONS if f"| `{reason}` |" not in page] == []


def test_the_account_and_the_ages_are_computed() -> None:
    status = document(observed())
    assert status["runs"]["difference"] == 0
    assert status["runs"]["skipped"] == {"backlog": 3}
    assert status["behind_s"] == 1.0
    assert status["destinations"]["broker"]["oldest_s"] == 2.0
    assert document(observed(pending=0))["runs"]["difference"] == 1


@pytest.mark.parametrize(
    ("changes", "age_s", "expected"),
    [
        ({}, 1.0, "running, reported 1 s ago"),
        ({}, 60.0, "running (silent), reported 60 s ago"),
        ({"state": "stopped"}, 60.0, "stopped, reported 60 s ago"),
        ({"wedged": ["sources"]}, 1.0, "WEDGED     hung threads: sources"),
        ({"pending": 0}, 1.0, "ACCOUNT    differs by 1 runs"),
        ({}, 1.0, "not connected: refused, 0 waiting, 1 in flight"),
        ({"state": "stopped"}, 1.0, "closed, 0 waiting, 1 in flight"),
        ({}, 1.0, "monitor:7, 'nightly': cron: no"),
        ({}, 1.0, "entry:a: never"),
    ],
)
def test_the_text_says_what_is_wrong(changes: dict[str, Any], age_s: float, expected: str) -> None:
    report = {"host": "h", "pid": 1, "version": "0", "namespace": "n", "age_s": age_s}
    assert expected in status_text({**report, "status": document(observed(**changes))}, alive_s=10)


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=300))
def test_quantiles_are_at_most_nine_percent_too_high(values_ms: list[int]) -> None:
    lateness = Lateness()
    for value_ms in values_ms:
        lateness.note(value_ms, 0.0)
    found = lateness.quantiles(1.0)
    ordered = sorted(values_ms)
    assert found.runs == len(values_ms)
    assert found.max_s * 1000 == pytest.approx(ordered[-1])
    for share, value_s in ((0.5, found.p50_s), (0.99, found.p99_s)):
        exact_ms = ordered[math.ceil(len(ordered) * share) - 1]
        assert exact_ms <= value_s * 1000 + 0.001
        assert value_s * 1000 <= max(1, exact_ms * 2 ** (1 / 8)) + 0.001


def test_old_runs_leave_the_quantiles() -> None:
    lateness = Lateness()
    lateness.note(5_000, 0.0)
    lateness.note(100, 70.0)
    assert lateness.quantiles(70.0).runs == 2
    assert lateness.quantiles(125.0).runs == 1
    assert lateness.quantiles(125.0).max_s == 0.1
    assert lateness.quantiles(1_000.0) == Quantiles(0, 0.0, 0.0, 0.0)


def test_a_clock_that_was_set_back_makes_no_negative_lateness() -> None:
    lateness = Lateness()
    lateness.note(-7_000, 0.0)
    assert lateness.quantiles(0.0).p99_s == 0.0


def test_a_thread_is_wedged_after_the_time_out_and_recovers() -> None:
    stamps: dict[str, float | None] = {"a": 0.0, "unwatched": None}
    liveness = Liveness(30.0)
    liveness.watch("a", lambda: stamps["a"])
    liveness.watch("unwatched", lambda: stamps["unwatched"])
    assert liveness.wedged(30.0) == []
    assert liveness.wedged(30.1) == ["a"]
    assert liveness.ages(40.0) == {"a": 40.0}
    stamps["a"] = 40.0
    assert liveness.wedged(41.0) == []


def test_a_patient_thread_is_busy_and_never_wedged() -> None:
    liveness = Liveness(30.0)
    liveness.watch("lane", lambda: 0.0, patient=True)
    liveness.watch("sources", lambda: 0.0)
    assert (liveness.busy(30.0), liveness.wedged(30.0)) == ([], [])
    assert (liveness.busy(31.0), liveness.wedged(31.0)) == (["lane"], ["sources"])
    assert liveness.ages(31.0)["lane"] == 31.0


def test_many_sends_of_one_tick_are_one_line_in_the_lanes_thread_only(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("celery.beat")
    lines = SendLog()
    lines.install()
    try:
        with caplog.at_level(logging.DEBUG, "celery.beat"):
            lines.turn(1)
            with lines.of(LINES_MAX):
                logger.info("Scheduler: Sending due task %s (%s)", "few", "t")
            for _ in range(3):
                with lines.of(1):
                    logger.info("Scheduler: Sending due task %s (%s)", "many", "t")
                    logger.debug("%s sent. id->%s", "many", "id")
                    logger.error("Message Error: %s", "still seen")
                    other = threading.Thread(target=logger.info, args=("Scheduler: Sending due task %s", "other"))
                    other.start()
                    other.join()
                lines.turn(1)
            assert not lines.admit(500), "the other lane's runs count, too"
            lines.turn(2)
            with lines.of(1):
                logger.info("Scheduler: Sending due task %s (%s)", "after", "t")
            lines.turn(2)
            lines.turn(3)
            assert not lines.admit(LINES_MAX + 1)
            lines.remove()
    finally:
        lines.remove()
    assert [record.getMessage() for record in caplog.records] == [
        "Scheduler: Sending due task few (t)",
        *["Message Error: still seen", "Scheduler: Sending due task other"] * 3,
        f"Scheduler: Sending 503 due tasks (one line each up to {LINES_MAX})",
        "Scheduler: Sending due task after (t)",
        f"Scheduler: Sending {LINES_MAX + 1} due tasks (one line each up to {LINES_MAX})",
    ]
    assert lines not in logger.filters


def test_an_outage_ends_with_the_number_of_runs_that_were_skipped(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    log = OutageLog(ledger)
    log.update(0.0, "")
    for second in range(1, 15):
        ledger.skip("backlog", 100)
        log.update(float(second), "the broker was down")
    assert caplog.messages == []
    log.update(15.0, "")
    log.update(16.0, "")
    assert caplog.messages == ["beat: 1,400 runs were skipped as backlog while the broker was down (14 s)"]
    log.update(17.0, "the broker was down")
    log.update(18.0, "")
    assert len(caplog.messages) == 1, "nothing was skipped"


def test_runs_that_are_skipped_without_an_outage_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger()
    log = OutageLog(ledger)
    for second in range(100):
        ledger.skip("backlog", 1)
        log.update(float(second), "")
    first, second_line = caplog.messages
    assert first.startswith("beat: 1 run was skipped as backlog with the broker connected")
    assert second_line.startswith("beat: 60 runs were skipped as backlog with the broker connected")
