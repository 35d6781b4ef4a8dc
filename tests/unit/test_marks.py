"""Marks: how far they move, what is stored, which one a start goes by, and the file for a beat without a database."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from celery_wheelbeat.beat.marks import InvalidMark, Mark, MarkDocument, NeededRows, choose, known_marks
from celery_wheelbeat.engine.sharing.shard_marks import UNKNOWN_MS, ShardMarks
from celery_wheelbeat.jobs.definitions import EntryMark
from celery_wheelbeat.schedules.kinds import NEVER_MS
from celery_wheelbeat.sources.files.mark_file import MarkFile

if TYPE_CHECKING:
    from pathlib import Path

NOW_MS = 1_700_000_000_000
FULL = MarkDocument(NOW_MS, steps=2, relived_until_ms=NOW_MS + 7, entries={"cleanup": EntryMark("ab" * 16, 12)})


def test_the_mark_stays_before_whatever_is_open():
    mark = Mark()
    assert mark.move(10_000) == 10_000
    assert mark.move(20_000, oldest_fire_ms=15_000) == 14_999
    assert mark.move(20_000, ask_ms=17_000, oldest_fire_ms=19_000) == 16_999
    assert mark.move(30_000, limit_ms=25_000) == 25_000
    assert mark.move(31_000, oldest_fire_ms=99_000) == 31_000


def test_the_mark_never_moves_back_but_with_the_clock():
    mark = Mark(50_000)
    assert mark.move(60_000, oldest_fire_ms=40_000) == 50_000
    mark.step_back(20_000, 50_000)
    assert mark.mark_ms == 20_000
    assert mark.move(21_000) == 21_000
    mark.step_back(30_000, 50_000)
    assert mark.mark_ms == 21_000


def test_what_still_waits_of_crons_is_not_settled():
    """They would not be offered again after a restart, though nobody has sent them."""
    mark = Mark(40_000)
    mark.step_back(10_000, 50_000)
    assert mark.settled_until_ms == 40_000
    mark.move(11_000, oldest_fire_ms=45_000)
    assert mark.settled_until_ms == 44_999
    mark.move(12_000, oldest_fire_ms=11_500)
    assert mark.settled_until_ms == 44_999
    mark.move(13_000)
    assert mark.settled_until_ms == 50_000
    unread = Mark()
    unread.step_back(10_000, 50_000)
    assert unread.mark_ms is None, "a mark that was never read is not overwritten"


def test_a_document_without_the_newer_columns_is_read_as_before():
    document = MarkDocument.from_json({"version": 1, "mark_ms": 5, "relived_until_ms": 9})
    assert (document.settled_until_ms, document.held_ms, document.reached_ms) == (9, 0, 0)


def test_a_document_survives_json():
    assert MarkDocument.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL
    assert MarkDocument.from_json({"version": 1, "mark_ms": 5}) == MarkDocument(5)


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"version": 1},
        {"version": 1, "mark_ms": "noon"},
        {"version": 1, "mark_ms": 1, "entries": {"a": 3}},
        {"version": 1, "mark_ms": 1, "entries": [1]},
        {"version": None, "mark_ms": 1},
        {"version": 1, "mark_ms": float("inf")},
        {"version": 1, "mark_ms": 10**30},
        {"version": 1, "mark_ms": -(2**62)},
        {"version": 1, "mark_ms": 1, "settled_until_ms": 10**30},
        {"version": 1, "mark_ms": 1, "steps": 10**12},
        {"version": 1, "mark_ms": 1, "steps": -1},
        {"version": 1, "mark_ms": 1, "entries": {"a": ["hash", 10**30]}},
    ],
)
def test_a_broken_document_is_refused(stored: dict[str, object]):
    with pytest.raises(InvalidMark, match="cannot be read"):
        MarkDocument.from_json(stored)


def test_a_document_of_a_newer_release_is_refused():
    with pytest.raises(InvalidMark, match="mark of version 2: this release reads up to 1"):
        MarkDocument.from_json({"version": 2, "mark_ms": 1})


def test_a_start_goes_on_whatever_was_stored_as_a_mark():
    stored = [{"version": 1, "mark_ms": mark_ms, "steps": 10**12} for mark_ms in (10**30, float("nan"), NOW_MS)]
    assert known_marks({"broker": stored}, NOW_MS) == ({}, 0)
    assert NeededRows().takes("namespace", "[" * 100_000)


def test_no_mark_is_a_first_start():
    assert choose([], NOW_MS) == (None, [])


def test_a_start_goes_by_the_latest_mark_and_reports_those_ahead_of_the_clock():
    old, new = MarkDocument(NOW_MS - 9_000, steps=3), MarkDocument(NOW_MS + 5_000, steps=1)
    ahead = MarkDocument(NOW_MS + 5_001, steps=4)
    chosen = choose([old, ahead, new], NOW_MS)
    assert chosen.document == MarkDocument(NOW_MS + 5_000, steps=4)
    assert chosen.ignored == [ahead]
    assert choose([ahead], NOW_MS) == (None, [ahead])


def test_a_mark_of_a_beat_that_ended_before_one_under_a_fast_clock_is_out_of_date():
    """Its successor has sent what was due since then: to go by it would send a week again."""
    ended = MarkDocument(NOW_MS - 7 * 86_400_000, age_s=7 * 86_400)
    beside = MarkDocument(NOW_MS - 4_000, age_s=34)
    ahead = MarkDocument(NOW_MS + 3_600_000, age_s=30)
    assert choose([ended, ahead], NOW_MS) == (None, [ahead])
    assert choose([ended, beside, ahead], NOW_MS).document == MarkDocument(beside.mark_ms)
    assert choose([ended, beside], NOW_MS).document == MarkDocument(beside.mark_ms)


def of_shards(*marks_ms: int | None) -> ShardMarks:
    return ShardMarks(np.array([UNKNOWN_MS if mark_ms is None else mark_ms for mark_ms in marks_ms]))


def test_a_start_goes_by_the_latest_mark_of_each_shard():
    """The latest mark of any beat would pass over what the other beat had not sent yet."""
    one = MarkDocument(NOW_MS - 900, shards=of_shards(NOW_MS - 900, NOW_MS - 10, None, None))
    other = MarkDocument(NOW_MS - 70, shards=of_shards(None, None, NOW_MS - 50, NOW_MS - 70))
    whole = MarkDocument(NOW_MS - 60)
    document = choose([one, other], NOW_MS).document
    assert document is not None
    assert document.by_shard == of_shards(NOW_MS - 900, NOW_MS - 10, NOW_MS - 50, NOW_MS - 70)
    assert document.mark_ms == NOW_MS - 900, "an earlier release goes by this one, for all shards"
    document = choose([one, whole, other], NOW_MS).document
    assert document is not None
    assert document.by_shard == of_shards(NOW_MS - 60, NOW_MS - 10, NOW_MS - 50, NOW_MS - 60)


def test_marks_of_shards_survive_json():
    document = MarkDocument(NOW_MS - 900, shards=of_shards(NOW_MS - 900, NOW_MS, None, NOW_MS - 50))
    assert MarkDocument.from_json(json.loads(json.dumps(document.to_json()))) == document
    with pytest.raises(InvalidMark, match="cannot be read"):
        MarkDocument.from_json({**document.to_json(), "shards": {"mask": "x"}})


def test_each_shard_moves_up_to_its_own_oldest_run():
    mark = Mark(10_000)
    assert mark.move_shards(20_000, np.array([15_000, NEVER_MS, 30_000, 5_000])) == of_shards(
        14_999, 20_000, 20_000, 10_000
    )
    mark.move(21_000, oldest_fire_ms=15_000)
    mark.step_back(12_000, 12_000)
    assert mark.shards == of_shards(12_000, 12_000, 12_000, 10_000)
    assert Mark().move_shards(20_000, np.array([NEVER_MS])) is None


def test_a_row_is_needed_while_it_has_the_latest_mark_of_a_shard():
    needed = NeededRows()

    def row(document: MarkDocument, namespace: str = "a") -> bool:
        return needed.takes(namespace, json.dumps({"broker": document.to_json()}))

    assert row(MarkDocument(NOW_MS - 9, shards=of_shards(NOW_MS - 9, None)))
    assert not row(MarkDocument(NOW_MS - 10, shards=of_shards(NOW_MS - 10, None)))
    assert row(MarkDocument(NOW_MS - 900, shards=of_shards(NOW_MS - 900, NOW_MS - 800)))
    assert not row(MarkDocument(NOW_MS - 1_000))
    assert row(MarkDocument(NOW_MS - 1_000), namespace="b")
    assert needed.takes("c", "no JSON")
    assert not needed.takes("b", "no JSON")


def test_the_number_of_clock_steps_is_kept_without_a_usable_mark():
    """An interval run of step 5 would otherwise get the id of another run of step 5."""
    ahead = MarkDocument(NOW_MS + 60_000, steps=4).to_json()
    newer = {"version": 99, "mark_ms": NOW_MS, "steps": 5}
    unreadable = {"version": 1, "mark_ms": "noon", "steps": 3}
    assert known_marks({"broker": [ahead, newer], "other": [unreadable]}, NOW_MS) == ({}, 5)
    usable = MarkDocument(NOW_MS, steps=1).to_json()
    known = known_marks({"broker": [ahead, newer], "other": [usable]}, NOW_MS)
    assert known == ({"other": MarkDocument(NOW_MS, steps=1)}, 5)


def test_the_entries_are_those_of_the_latest_mark():
    older = MarkDocument(NOW_MS - 1, relived_until_ms=NOW_MS + 9, entries={"gone": EntryMark("cd", 1)})
    document = choose([older, FULL], NOW_MS).document
    assert document is not None
    assert document.entries == FULL.entries
    assert document.relived_until_ms == NOW_MS + 9


def test_the_file_lies_beside_the_schedule_of_s_and_is_replaced_whole(tmp_path: Path):
    celery_file = tmp_path / "celerybeat-schedule"
    celery_file.write_bytes(b"not ours")
    file = MarkFile(celery_file)
    assert file.read() == {}
    assert file.write({"broker": FULL.to_json()})
    assert file.write({"broker": FULL.to_json(), "other": MarkDocument(1).to_json()})
    assert file.path == tmp_path / "celerybeat-schedule.wheelbeat"
    assert MarkDocument.from_json(MarkFile(celery_file).read()["broker"]) == FULL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["celerybeat-schedule", "celerybeat-schedule.wheelbeat"]
    assert celery_file.read_bytes() == b"not ours"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"marks": 3}', b"[" * 100_000])
def test_an_unreadable_file_is_a_warning_and_a_first_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
):
    file = MarkFile(tmp_path / "schedule")
    file.path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert file.read() == {}
    assert "treated as a first start" in caplog.text


def test_what_a_killed_beat_has_half_written_is_removed(tmp_path: Path):
    file = MarkFile(tmp_path / "schedule")
    abandoned, fresh, foreign = (tmp_path / f"schedule.wheelbeat.{end}" for end in ("71", "72", "bak"))
    for path in (abandoned, fresh, foreign, file.path):
        path.touch()
    for path in (abandoned, foreign):
        os.utime(path, (0, 0))
    file.read()
    assert sorted(tmp_path.iterdir()) == [file.path, fresh, foreign]


def test_an_unwritable_place_is_one_warning_until_it_works_again(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = tmp_path / "missing"
    file = MarkFile(folder / "schedule")
    with caplog.at_level(logging.WARNING):
        assert not file.write({})
        assert not file.write({})
        assert len(caplog.records) == 1
        folder.mkdir()
        assert file.write({})
        file.path.unlink()
        file.path.mkdir()
        assert not file.write({})
    assert len(caplog.records) == 2
    assert str(file.path) in caplog.text
    assert [path.name for path in folder.iterdir()] == ["schedule.wheelbeat"]
