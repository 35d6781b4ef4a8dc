"""Small parts of the tail: fingerprints, gaps, outbox, outage, statements."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.changelog.table import PLAIN

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.runtime.statements import read_statements
from celery_wheelbeat.sources.changelog import fingerprints as fingerprints_module
from celery_wheelbeat.sources.changelog.fingerprints import Fingerprints, fingerprint_of
from celery_wheelbeat.sources.changelog.outage import LONGEST_WAIT_S, REMIND_S, Outage
from celery_wheelbeat.sources.changelog.outbox import FINISH_BATCH, Outbox
from celery_wheelbeat.sources.databases.mariadb import IdGap, bounded, missing_between, without
from celery_wheelbeat.sources.databases.postgres import (
    History,
    PostgresCursor,
    _refuse_lost,
    parse_snapshot,
    unpack_int64s,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

IDS = st.integers(1, 40)
FAR_IDS = st.one_of(IDS, st.sampled_from([1 - 2**63, -1, 70_000, 2**33, 2**63 - 1]))
EDITS = st.lists(st.tuples(FAR_IDS, st.one_of(st.none(), st.integers(1, 5))), max_size=60)


@given(EDITS, st.integers(1, 8), IDS, st.integers(1, 45))
def test_fingerprints_are_a_dict_in_less_space(
    edits: list[tuple[int, int | None]], merge_at: int, after_id: int, up_to: int
) -> None:
    model: dict[int, int] = {}
    fingerprints = Fingerprints()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprints_module, "MERGE_AT", merge_at)
        for job_id, value in edits:
            if value is None:
                model.pop(job_id, None)
                fingerprints.forget([job_id])
            else:
                model[job_id] = value
                fingerprints.record([PLAIN._replace(id=job_id, interval_ms=value)])
    table = dict.fromkeys(range(after_id + 1, max(after_id + 1, up_to) + 1), 3)
    rows = [PLAIN._replace(id=job_id, interval_ms=value) for job_id, value in table.items()]
    found = fingerprints.differences(after_id, rows, last=True)
    beyond = {job_id for job_id in model if job_id > after_id}
    assert found.upserts == [job_id for job_id in table if model.get(job_id) != 3]
    assert found.deleted == sorted(beyond - table.keys())
    end = rows[-1].id
    assert fingerprints.differences(after_id, rows, last=False).deleted == sorted(
        job_id for job_id in beyond - table.keys() if job_id <= end
    )
    assert len(fingerprints) == len(model)
    assert fingerprints.ids().tolist() == sorted(model)


def test_a_number_that_is_none_is_the_same_each_time_it_is_read() -> None:
    """PostgreSQL stores NaN, and each read makes another object of it."""
    first, again = (PLAIN._replace(start_at_ms=1, expires_s=float("nan")) for _ in range(2))
    assert fingerprint_of(first) == fingerprint_of(again)
    assert fingerprint_of(first) != fingerprint_of(first._replace(expires_s=1.0))


@given(st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)), st.integers(1, 4))
def test_gaps_cover_exactly_what_was_not_read(first: set[int], second: set[int], limit: int) -> None:
    gaps = missing_between(1, sorted(first), 5.0)
    missing = set(range(1, max(first, default=0) + 1)) - first
    assert covered(gaps) == missing
    left = [rest for gap in gaps for rest in without(gap, sorted(n for n in second if gap.low <= n <= gap.high))]
    assert covered(left) == missing - second
    assert all(gap.since_s == 5.0 for gap in left)
    merged = bounded(left, limit)
    assert len(merged) <= limit
    assert covered(merged) >= covered(left)


def covered(gaps: Sequence[IdGap]) -> set[int]:
    return {n for gap in gaps for n in range(gap.low, gap.high + 1)}


def test_a_merged_gap_waits_for_its_youngest_part() -> None:
    assert bounded([IdGap(1, 2, 1.0), IdGap(4, 5, 9.0), IdGap(50, 60, 2.0)], 2) == (
        IdGap(1, 5, 9.0),
        IdGap(50, 60, 2.0),
    )


class Store:
    """A ``BeatStore`` that may fail."""

    def __init__(self) -> None:
        self.down = False
        self.reports: list[Mapping[str, Any]] = []
        self.finished: list[dict[int, int]] = []
        self.quarantined: list[tuple[dict[str, tuple[str, str]], list[str]]] = []

    def report(self, beat_id: str, row: Mapping[str, Any]) -> None:
        self._answer()
        self.reports.append(row)

    def finish(self, finished: Mapping[int, int]) -> None:
        self._answer()
        self.finished.append(dict(finished))

    def quarantine(self, added: Mapping[str, tuple[str, str]], lifted: Sequence[str]) -> None:
        self._answer()
        self.quarantined.append((dict(added), list(lifted)))

    def _answer(self) -> None:
        if self.down:
            raise SourceError("down")


def test_nothing_leaves_the_outbox_before_it_is_written() -> None:
    store, outbox = Store(), Outbox("beat")
    store.down = True
    outbox.put_status({"n": 1})
    outbox.put_finished({1: 10})
    outbox.put_quarantine({"monitor:1": ("h", "r")}, ["monitor:2"])
    for write in (outbox.write_status, outbox.write_rest):
        with pytest.raises(SourceError):
            write(store)
    assert outbox.urgent
    outbox.put_status({"n": 2})
    outbox.put_finished({2: 20})
    outbox.put_quarantine({}, ["monitor:1"])
    outbox.put_quarantine({"monitor:2": ("h2", "r2")})
    store.down = False
    for _ in range(2):
        outbox.write_status(store)
        outbox.write_rest(store)
    assert store.reports == [{"n": 2}]
    assert store.finished == [{1: 10, 2: 20}]
    assert store.quarantined == [({"monitor:2": ("h2", "r2")}, ["monitor:1"])]
    assert not outbox.urgent


def test_finished_one_offs_are_written_in_batches() -> None:
    store, outbox = Store(), Outbox("beat")
    outbox.put_finished({n: n for n in range(FINISH_BATCH * 2 + 1)})
    outbox.write_rest(store)
    assert [len(batch) for batch in store.finished] == [FINISH_BATCH, FINISH_BATCH, 1]


def test_an_outage_is_logged_once_and_waited_for_longer_and_longer(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    outage = Outage("changelog.read", lambda: now_s)
    waits = [outage.failed(SourceError("down")) for _ in range(10)]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_WAIT_S
    assert len(caplog.records) == 1
    now_s = REMIND_S
    outage.failed(SourceError("down"))
    assert len(caplog.records) == 2
    assert (outage.failures, outage.error) == (11, "down")
    outage.over()
    outage.over()
    assert outage.error is None
    assert "works again after 60.0 s" in caplog.text
    assert outage.failed(SourceError("down")) == waits[0]


def test_snapshots_and_packed_arrays_of_postgresql() -> None:
    assert parse_snapshot("10:20:10,14,15") == (10, 20, (10, 14, 15))
    assert parse_snapshot("10:10:") == (10, 10, ())
    head = (1).to_bytes(4, "big") + bytes(4) + (20).to_bytes(4, "big") + (2).to_bytes(4, "big") + (1).to_bytes(4, "big")
    elements = b"".join((8).to_bytes(4, "big") + n.to_bytes(8, "big", signed=True) for n in (-3, 2**40))
    assert unpack_int64s(head + elements).tolist() == [-3, 2**40]
    assert unpack_int64s(None).tolist() == []


HISTORY = History(7, 1, 5, 16, 100, 101, 102, "uuid")
CURSOR = PostgresCursor(50, 60, (50,), HISTORY)


@pytest.mark.parametrize(
    ("head", "pruned_xid", "reason"),
    [
        (CURSOR._replace(history=HISTORY._replace(timeline=2)), 0, "failover"),
        (CURSOR._replace(history=HISTORY._replace(system_identifier=8)), 0, "failover"),
        (CURSOR._replace(history=HISTORY._replace(statistics_since_us=6)), 0, "failover"),
        (CURSOR._replace(history=HISTORY._replace(database=17)), 0, "replaced"),
        (CURSOR._replace(history=HISTORY._replace(changelog_table=9)), 0, "replaced"),
        (CURSOR._replace(history=HISTORY._replace(changelog_file=9)), 0, "replaced"),
        (CURSOR._replace(history=HISTORY._replace(installation="other")), 0, "replaced"),
        (CURSOR._replace(xmax=59), 0, "failover"),
        (CURSOR._replace(xmin=49), 0, "failover"),
        (CURSOR._replace(xmin=55), 50, "pruned"),
        (CURSOR, 49, None),
        (CURSOR, 10**12, None),
    ],
)
def test_what_loses_a_cursor_of_postgresql(head: PostgresCursor, pruned_xid: int, reason: str | None) -> None:
    found = None
    try:
        _refuse_lost(CURSOR, head, pruned_xid)
    except SourceError as error:
        found = error.reason  # type: ignore[attr-defined]
    assert found == reason


@pytest.mark.parametrize("vendor", ["postgresql", "sqlite", "mysql"])
def test_every_vendor_has_the_same_statements(vendor: str) -> None:
    own = {"oldest_transaction", "recent", "head", "state"}
    own |= {"args_of", "begin_columns", "row_estimate", "extent", "sample", "named", "column_block"}
    own |= {"aggregates", "column_rows", "begin_rows"}
    own |= {
        "instant",
        "once_at_ms",
        "start_at_ms",
        "end_at_ms",
        "incident_until_ms",
        "finished_at_ms",
    }  # SQLite's texts
    own |= {"effective_ms", "plain", "shape", "joined", "text_bytes", "cut", "last", "count", "ids"}
    texts = read_statements("celery_wheelbeat.sources.databases", f"sql/{vendor}.sql")
    common = read_statements("celery_wheelbeat.sources.databases", "sql/sqlite.sql")
    assert texts.keys() - own == common.keys() - own
    assert not [name for name, text in texts.items() if not text or re.search(r"\{\w+\}", text)]
