"""Definitions that cannot run are logged and quarantined, and released when they are corrected."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from celery_wheelbeat.beat.quarantine import QuarantineReports
from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.sources.databases.store import MAX_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROBLEM = InvalidMonitor("schedule", "never fires", name="a\nb")


class Table:
    """The table of the quarantine, behind a desk without a thread."""

    def __init__(self, *keys: str) -> None:
        self.reasons = dict.fromkeys(keys, "of an earlier process")

    def quarantine(self, added: Mapping[str, tuple[str, str]], lifted: Sequence[str]) -> None:
        for key in lifted:
            self.reasons.pop(key[:MAX_KEY], None)
        self.reasons.update((key[:MAX_KEY], reason) for key, (_, reason) in added.items())


@pytest.fixture
def entries() -> Any:
    return SimpleNamespace(refused={})


def test_of_many_monitors_that_are_refused_at_once_twenty_are_named(
    entries: Any, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = QuarantineReports(entries, Table())  # type: ignore[arg-type]
    with caplog.at_level(logging.ERROR):
        refusals.update_monitors(dict.fromkeys(range(100), PROBLEM), np.arange(100))
    assert len(refusals.monitors) == 100
    *named, last = [record.getMessage() for record in caplog.records]
    assert named == [f"beat: Monitor {number}, 'a\\nb', is quarantined: schedule: never fires" for number in range(20)]
    assert last == "beat: 80 more monitors are quarantined; the admin lists them"


def test_an_entry_is_reported_once_and_lifted_when_it_is_well(entries: Any, caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    refusals = QuarantineReports(entries, table)  # type: ignore[arg-type]
    entries.refused["a"] = PROBLEM
    with caplog.at_level(logging.ERROR):
        refusals.update_entries()
        refusals.update_entries()
    assert [record.getMessage() for record in caplog.records] == [
        "beat: Entry 'a' of beat_schedule is left out: schedule: never fires"
    ]
    assert table.reasons == {"entry:a": "schedule: never fires"}
    del entries.refused["a"]
    refusals.update_entries()
    assert table.reasons == {}


def test_rows_of_entries_that_earlier_processes_left_are_lifted_unless_they_are_broken_still(entries: Any) -> None:
    long = "entry:" + "x" * 300
    table = Table("entry:gone", "entry:well", "entry:broken", long[:MAX_KEY], "monitor:7")
    refusals = QuarantineReports(entries, table)  # type: ignore[arg-type]
    entries.refused |= {"broken": PROBLEM, long.removeprefix("entry:"): PROBLEM}
    refusals.update_entries()  # the database may answer after the entries have been read
    refusals.recall([*table.reasons])
    refusals.update_entries()
    assert sorted(table.reasons) == sorted(["entry:broken", long[:MAX_KEY], "monitor:7"])


def test_what_can_never_be_sent_is_lifted_by_its_key_when_its_definition_changes(entries: Any) -> None:
    table = Table()
    refusals = QuarantineReports(entries, table)  # type: ignore[arg-type]
    refusals.add_unsendable({7: ("monitor:7", ("h", "too big")), -9: ("entry:a", ("h", "no JSON"))})
    assert table.reasons == {"monitor:7": "too big", "entry:a": "no JSON"}
    refusals.lift([7])
    assert list(table.reasons) == ["entry:a"]
    refusals.lift([-9, -8])
    assert table.reasons == {}


def test_monitors_are_refused_until_they_are_seen_well(entries: Any) -> None:
    refusals = QuarantineReports(entries, Table())  # type: ignore[arg-type]
    refusals.update_monitors({1: PROBLEM, 2: PROBLEM}, np.array([1, 2, 3]))
    refusals.update_monitors({}, np.array([2]))
    assert refusals.monitors == {"monitor:1": PROBLEM}
